"""Local training: how long, on what, and what takes the steps, SGD or Adam as PyTorch has them.

An optimiser is a pure function of tensors, as rules are: what changes from step to step is in its memory, what changes
from round to round in a rule's extras, so that a step that was recorded on a GPU stays right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import cos, pi
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedflux.data import Split
from fedflux.engine.stack import Parameters

RATE = "learning_rate"
"""The extra that holds a round's learning rate, where it is not the same in every round."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam, as PyTorch and its authors have them."""


class Sums(Protocol):
    """What an optimiser needs of an engine."""

    def add(self, left: Parameters, right: Parameters, factor: float) -> Parameters:
        """left + factor · right, name by name."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum, as in the paper: v ← m·v + g, θ ← θ − η·v.

    With `clip` a gradient longer than that is shortened to it first: g ← g · min(1, clip / ‖g‖), over all tensors.
    Weight decay λ is added to the gradient after that: g ← g + λ·θ.
    """

    lr: float
    momentum: float
    clip: float | None = None
    weight_decay: float = 0.0

    def start(self, trained: Parameters) -> Parameters:
        """No velocity yet."""
        return {name: torch.zeros_like(tensor) for name, tensor in trained.items()}

    def update(
        self,
        operations: Sums,
        trained: Parameters,
        gradients: Parameters,
        velocity: Parameters,
        extras: Mapping[str, Tensor],
    ) -> tuple[Parameters, Parameters]:
        """One step, at the rate of the round."""
        slopes = decayed(operations, bounded(gradients, self.clip), trained, self.weight_decay)
        velocity = operations.add(slopes, velocity, self.momentum)
        return descended(operations, trained, velocity, rate_of(extras, self.lr)), velocity


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015): m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², θ ← θ − η·m̂ / (√v̂ + ε), bias corrected.

    Clipping comes first, as for SGD. Weight decay λ is added to the gradient, as in PyTorch's Adam; `decoupled`, as in
    its AdamW (Loshchilov and Hutter, 2019), it shrinks the weights instead: θ ← θ − η·λ·θ.
    """

    lr: float
    clip: float | None = None
    weight_decay: float = 0.0
    decoupled: bool = False

    def start(self, trained: Parameters) -> dict[str, Any]:
        """No moments yet, and no step taken: the count is a tensor, as a recorded step reads it anew each time."""
        moments = [{name: torch.zeros_like(tensor) for name, tensor in trained.items()} for _ in range(2)]
        device = next((tensor.device for tensor in trained.values()), None)
        return {"m": moments[0], "v": moments[1], "step": torch.zeros((), dtype=torch.float64, device=device)}

    def update(
        self,
        operations: Sums,
        trained: Parameters,
        gradients: Parameters,
        memory: Mapping[str, Any],
        extras: Mapping[str, Tensor],
    ) -> tuple[Parameters, dict[str, Any]]:
        """One step, at the rate of the round."""
        rate = rate_of(extras, self.lr)
        slopes = bounded(gradients, self.clip)
        if self.decoupled and self.weight_decay:
            trained = descended(operations, trained, trained, rate * self.weight_decay)
        elif not self.decoupled:
            slopes = decayed(operations, slopes, trained, self.weight_decay)
        (first, second), step = BETAS, memory["step"] + 1
        m = {name: tensor * first + slopes[name] * (1 - first) for name, tensor in memory["m"].items()}
        v = {name: tensor * second + slopes[name].square() * (1 - second) for name, tensor in memory["v"].items()}
        size, root = rate / (1 - first**step), (1 - second**step).sqrt()
        moved = {
            name: tensor - size.to(tensor.dtype) * m[name] / (v[name].sqrt() / root.to(tensor.dtype) + EPSILON)
            for name, tensor in trained.items()
        }
        return moved, {"m": m, "v": v, "step": step}


Optimiser = Sgd | Adam


@dataclass(frozen=True)
class Training:
    """Local training: passes over the client's data, batch size, and what takes the steps."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    clip: float | None = None
    """The largest norm that a step's gradient may have; longer ones are shortened to it."""
    split: Split = "train"
    """Which part of the client's data is passed over."""
    evaluating: bool = False
    """Layers as in evaluation: BatchNorm keeps its running statistics, dropout drops nothing."""
    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    rounds: int = 0
    """How many rounds the schedule spans."""

    @property
    def optimiser(self) -> Optimiser:
        """What takes the steps."""
        if self.kind == "sgd":
            return self.sgd
        return Adam(self.lr, self.clip, self.weight_decay, self.kind == "adamw")

    @property
    def sgd(self) -> Sgd:
        """The same settings for SGD."""
        return Sgd(self.lr, self.momentum, self.clip, self.weight_decay)

    @property
    def plain(self) -> "Training":
        """The same by SGD without weight decay, for rules that fix what a step is."""
        return replace(self, kind="sgd", weight_decay=0.0)

    @property
    def lasting(self) -> bool:
        """Whether memory lasts from epoch to epoch of a round: Adam's does, SGD's momentum starts anew at each."""
        return self.kind != "sgd"

    def rate(self, round: int) -> float:
        """The learning rate of a round; what comes after the last one (fine-tuning) takes it undiminished."""
        if self.schedule == "constant" or not 1 <= round <= self.rounds:
            return self.lr
        return self.lr * (1 + cos(pi * (round - 1) / self.rounds)) / 2

    def extras(self, round: int) -> dict[str, Tensor]:
        """What a rule is told beside what its method sends: the round's rate, where rounds have different ones."""
        if self.schedule == "constant":
            return {}
        return {RATE: torch.tensor(self.rate(round), dtype=torch.float64)}


def rate_of(extras: Mapping[str, Tensor], usual: float) -> Tensor | float:
    """The learning rate of the round."""
    return extras.get(RATE, usual)


def bounded(gradients: Parameters, clip: float | None) -> Parameters:
    """These gradients, shortened together where their common norm is longer than allowed."""
    if clip is None:
        return gradients
    squares = torch.stack([tensor.square().sum() for tensor in gradients.values()])
    factor = shortening(squares.sum().sqrt(), clip)
    return {name: tensor * factor for name, tensor in gradients.items()}


def shortening(norm: Tensor, longest: float) -> Tensor:
    """What to multiply a gradient of this norm with: min(1, longest / norm)."""
    return (longest / norm).clamp(max=1)


def decayed(operations: Sums, gradients: Parameters, trained: Parameters, weight_decay: float) -> Parameters:
    """g + λ·θ."""
    return operations.add(gradients, trained, weight_decay) if weight_decay else gradients


def descended(operations: Sums, trained: Parameters, slopes: Parameters, size: Tensor | float) -> Parameters:
    """θ − η·g."""
    if isinstance(size, float):
        return operations.add(trained, slopes, -size)
    return {name: tensor - size.to(tensor.dtype) * slopes[name] for name, tensor in trained.items()}
