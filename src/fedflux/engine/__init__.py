"""How clients are run: one interface, several runners."""

from collections.abc import Callable

import torch

from fedflux.data import Federation
from fedflux.engine.auto import Choice, Work, choose, worth_compiling
from fedflux.engine.base import (
    Answers,
    Backend,
    DistantEngine,
    DivergedError,
    Engine,
    Job,
    Key,
    Preparation,
    Presence,
    Query,
    Scores,
    Statistic,
    Trained,
)
from fedflux.engine.batched.stacked import stacked_engine
from fedflux.engine.loop import LoopEngine
from fedflux.engine.modes import one_thread
from fedflux.engine.predictor import Adaptation, Predictor
from fedflux.engine.processes.engine import ProcessesEngine
from fedflux.engine.recipe import Recipe
from fedflux.engine.simulated import SimulatedEngine
from fedflux.engine.slots import Kept
from fedflux.engine.stack import Stack
from fedflux.engine.training import Training
from fedflux.errors import FedfluxError, unknown
from fedflux.models import OwnModel

ENGINES: dict[str, Callable[..., Backend]] = {
    "loop": LoopEngine,
    "processes": ProcessesEngine,
    "stacked": stacked_engine,
}
PRECISIONS = ("fp32", "fp32-strict", "bf16")

__all__ = [
    "Adaptation",
    "Answers",
    "Backend",
    "DistantEngine",
    "DivergedError",
    "Engine",
    "Job",
    "Kept",
    "Key",
    "LoopEngine",
    "Predictor",
    "Preparation",
    "Presence",
    "ProcessesEngine",
    "Query",
    "Recipe",
    "Scores",
    "SimulatedEngine",
    "Stack",
    "Statistic",
    "Trained",
    "Training",
    "Work",
    "make_backend",
    "make_engine",
    "one_thread",
    "pick_device",
    "place_of",
]


def make_engine(
    engine: str,
    model: str | OwnModel,
    federation: Federation,
    seed: int,
    device: str = "auto",
    precision: str = "fp32",
    work: Work | None = None,
    share: float = 1.0,
) -> SimulatedEngine:
    """The engine over a federation that lives in this process, computing with the backend of that name."""
    return SimulatedEngine(make_backend(engine, model, federation, seed, device, precision, work, share))


def make_backend(
    engine: str,
    model: str | OwnModel,
    federation: Federation,
    seed: int,
    device: str = "auto",
    precision: str = "fp32",
    work: Work | None = None,
    share: float = 1.0,
) -> Backend:
    """A backend by name, holding a model made for the federation's images; `auto` picks one for the `work` to do.

    `share` is the part of a GPU's memory that it may take.
    """
    if engine not in (*ENGINES, "auto"):
        raise unknown("engine", engine, [*ENGINES, "auto"])
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    place = place_of(engine, device)
    recipe = Recipe(model, federation.input_shape, federation.classes, seed, federation.integers, federation.task)
    built = recipe.build()
    choice = Choice(engine, "")
    if engine == "auto":
        choice = choose(built, recipe, place, work) if work else Choice("loop", "")
    if choice.name == "processes" and isinstance(model, OwnModel) and not model.travels:
        if engine == "processes":
            words = f"model {model.name} cannot be made in another process"
            raise FedfluxError(f"{words}: define it in a module of its own, or take --engine loop")
        choice = Choice("loop", "loop: the model cannot be made in another process")
    if choice.name == "processes":
        return ProcessesEngine(recipe, place, precision, federation.dataset.scaling.pixels)
    made: LoopEngine
    if choice.name == "stacked":
        compiled = worth_compiling(built, place, work)
        made = stacked_engine(built, place, precision, federation.dataset.scaling.pixels, compiled, share, recipe.task)
    else:
        made = LoopEngine(built, place, precision, federation.dataset.scaling.pixels, recipe.task)
    made.recipe = recipe
    return made


def place_of(engine: str, device: str) -> str:
    """The device that an engine of this name computes on."""
    return "cpu" if engine == "processes" and device == "auto" else pick_device(device)


def pick_device(device: str) -> str:
    """`auto`, `cpu`, `cuda` or `cuda:N`, checked against this machine."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise FedfluxError(f"unknown device '{device}': choose auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise FedfluxError(
            f"device '{device}' is not there: this machine shows {torch.cuda.device_count()} CUDA devices"
        )
    return device
