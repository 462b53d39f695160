"""One local step as a pure function: a rule maps parameters, optimiser memory and a batch to the next ones.

A rule is written for one client. Engines that stack clients map it over a leading axis, so a rule uses tensor
operations only: no branching on values, no `.item()`, no change in place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedflux.engine.stack import Parameters
from fedflux.engine.training import Optimiser
from fedflux.operations import operation

Extras = Mapping[str, Tensor]
"""What a method sends to one client beside the model: anchors, sample weights, mixing coefficients."""
Loss = Callable[[Parameters], Tensor]
"""(trained tensors) → a scalar."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images, labels, and the position of each example in the part of the client's data that is trained on."""

    x: Tensor
    y: Tensor
    positions: Tensor
    real: Tensor | None = None
    """False where an example only fills up a stacked batch; None where all are real."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the batch's real examples; a rule never averages over a batch in another way."""
        if self.real is None:
            return values.mean()
        return torch.where(self.real, values, 0).sum() / self.real.sum().clamp(min=1)


class Operations(Protocol):
    """What an engine lends to a rule."""

    def apply(self, params: Parameters, x: Tensor) -> Tensor:
        """Logits under these parameters and buffers."""

    def example_losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """What each example loses, by the task that the data sets."""

    def trained(self, params: Parameters) -> Parameters:
        """The tensors that training changes, without buffers and frozen parameters."""

    def gradient(self, loss: Loss, at: Parameters) -> Parameters:
        """d loss / d at, name by name, of first order; in evaluation `at` may hold BatchNorm's running statistics."""

    def statistics(self, params: Parameters, x: Tensor) -> Parameters:
        """In evaluation: mean and unbiased variance of what each BatchNorm layer meets, by its running statistics."""

    def add(self, left: Parameters, right: Parameters, factor: float) -> Parameters:
        """left + factor · right, name by name."""


class Rule(Protocol):
    """Local training, one batch at a time, on one or more parameter sets at once."""

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> Any:
        """The memory at the start of an epoch, of a round with Adam: tensors in dicts, lists or tuples."""

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        """The parameters and memory after one batch; `index` counts the steps of this call."""


@operation("sgd")
@dataclass(frozen=True)
class LossRule:
    """The default rule: descend the task's mean loss by the optimiser of the settings."""

    optimiser: Optimiser

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> Any:
        """What the optimiser begins with."""
        return self.optimiser.start(operations.trained(params[0]))

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        """One gradient step."""
        (model,) = params
        trained = operations.trained(model)

        def loss(at: Parameters) -> Tensor:
            return batch.mean(self.losses(operations, {**model, **at}, batch, extras))

        gradients = operations.gradient(loss, trained)
        moved, memory = self.optimiser.update(operations, trained, gradients, memory, extras)
        return ({**model, **moved},), memory

    def losses(self, operations: Operations, params: Parameters, batch: Batch, extras: Extras) -> Tensor:
        """What is averaged over the batch: each example's loss."""
        return operations.example_losses(operations.apply(params, batch.x), batch.y)
