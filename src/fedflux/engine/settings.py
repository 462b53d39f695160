"""The engine's settings: how clients train, and on what."""

from dataclasses import dataclass
from typing import Literal

from fedflux.engine import ENGINES
from fedflux.models import MODELS
from fedflux.settings import Declared, above, at_least, between, known, setting


@dataclass(frozen=True)
class TrainingSettings(Declared):
    """What clients train, for how long, and how."""

    model: str = setting("auto", "{names} or package.module:factory", panel="Training", names=MODELS)
    rounds: int = setting(10, "communication rounds", panel="Training", check=at_least(1))
    epochs: int = setting(2, "local epochs a round", panel="Training", check=at_least(1))
    batch_size: int = setting(64, "examples in a step", panel="Training", check=at_least(1))
    lr: float = setting(0.005, "learning rate; 0.001 for Adam unless given", panel="Training", check=above(0))
    momentum: float = setting(0.9, "momentum of SGD", panel="Training in detail", check=between(0, 1, "[)"))
    optimiser: Literal["sgd", "adam", "adamw"] = setting(
        "sgd", "what takes clients' steps: sgd, adam or adamw, as PyTorch has them", panel="Training"
    )
    weight_decay: float = setting(
        0.0,
        "sgd, adam: how much of a weight is added to its gradient; adamw: shrinks weights apart from gradients",
        panel="Training in detail",
        check=between(0, 1),
    )
    schedule: Literal["constant", "cosine"] = setting(
        "constant",
        "the learning rate by round: constant, or cosine, which ends near zero",
        panel="Training in detail",
    )
    clip: float | None = setting(
        None,
        "the largest norm of a step's gradient; longer ones are shortened to it",
        panel="Experiments",
        unset="none",
        check=above(0),
    )


@dataclass(frozen=True)
class MachineSettings(Declared):
    """How and where clients are run."""

    engine: str = setting(
        "auto",
        "auto, loop, processes or stacked",
        panel="Run",
        check=known("engine", ("auto", "flower", *ENGINES)),
        counts=False,
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N", panel="Run", counts=False)
    precision: Literal["fp32", "fp32-strict", "bf16"] = setting(
        "fp32", "fp32 (TF32 allowed on CUDA), fp32-strict or bf16", panel="Run"
    )
