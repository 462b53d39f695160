"""One local step as a pure function: a rule maps parameters, optimiser memory and a batch to the next ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.engine.stack import Parameters

Apply = Callable[[Parameters, Tensor], Tensor]
"""(parameters and buffers, images) → logits."""
Extras = Mapping[str, Tensor]
"""What a method sends to one client beside the model: anchors, sample weights, mixing coefficients."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images, labels, and the position of each example in the client's training part."""

    x: Tensor
    y: Tensor
    positions: Tensor


class Rule(Protocol):
    """Local training, one batch at a time, on one or more parameter sets at once."""

    def start(self, params: tuple[Parameters, ...]) -> Any:
        """The memory at the start of an epoch."""

    def step(
        self, apply: Apply, params: tuple[Parameters, ...], memory: Any, batch: Batch, extras: Extras, index: int
    ) -> tuple[tuple[Parameters, ...], Any]:
        """The parameters and memory after one batch."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum, as in the paper: v ← m·v + g, θ ← θ − η·v."""

    lr: float
    momentum: float

    def start(self, trained: list[Tensor]) -> list[Tensor]:
        """No velocity yet."""
        return [torch.zeros_like(tensor) for tensor in trained]

    def update(
        self, trained: list[Tensor], gradients: list[Tensor], velocity: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One step."""
        velocity = list(torch._foreach_add(torch._foreach_mul(velocity, self.momentum), gradients))
        return list(torch._foreach_add(trained, velocity, alpha=-self.lr)), velocity


@dataclass(frozen=True)
class LossRule:
    """The default rule: descend the mean cross-entropy; momentum starts anew at each epoch."""

    optimiser: Sgd

    def start(self, params: tuple[Parameters, ...]) -> list[Tensor]:
        """Zero velocity for every trained tensor."""
        return self.optimiser.start([tensor for tensor in params[0].values() if tensor.requires_grad])

    def step(
        self,
        apply: Apply,
        params: tuple[Parameters, ...],
        memory: list[Tensor],
        batch: Batch,
        extras: Extras,
        index: int,
    ) -> tuple[tuple[Parameters, ...], list[Tensor]]:
        """One gradient step."""
        (model,) = params
        names = [name for name, tensor in model.items() if tensor.requires_grad]
        trained = [model[name] for name in names]
        loss = cross_entropy(apply(model, batch.x), batch.y)
        gradients = list(torch.autograd.grad(loss, trained))
        with torch.no_grad():
            moved, memory = self.optimiser.update(trained, gradients, memory)
        return ({**model, **{n: t.requires_grad_() for n, t in zip(names, moved, strict=True)}},), memory
