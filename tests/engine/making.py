"""Rules, statistics and models that worker processes can import."""

import os
import signal
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedflux.engine.rules import Batch, Extras, Operations
from fedflux.engine.stack import Parameters


@dataclass(frozen=True)
class Coupled:
    """Two parameter sets: both descend the loss of their mixture, each pulled towards its client's anchor."""

    lr: float

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> None:
        """No memory."""

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        share = extras["share"]

        def loss(at: Parameters) -> Tensor:
            pair = [{name: at[f"{k}.{name}"] for name in one} for k, one in enumerate(params)]
            logits = share * operations.apply(pair[0], batch.x) + (1 - share) * operations.apply(pair[1], batch.x)
            losses = extras["weights"][batch.positions] * cross_entropy(logits, batch.y, reduction="none")
            pulls = [(one["classifier.weight"] - extras["anchor"]).square().sum() for one in pair]
            return batch.mean(losses) + 0.01 * (pulls[0] + pulls[1])

        joined = {f"{k}.{name}": tensor for k, one in enumerate(params) for name, tensor in one.items()}
        moved = operations.add(joined, operations.gradient(loss, joined), -self.lr)
        return tuple({name: moved[f"{k}.{name}"] for name in one} for k, one in enumerate(params)), memory


class OddError(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


@dataclass(frozen=True)
class Failing:
    """Fails for clients whose extras say so."""

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> None:
        """No memory."""

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        match int(extras["what"]):
            case 1:
                raise KeyError(f"extras of client {int(extras['client'])}")
            case 2:
                os.kill(os.getpid(), signal.SIGKILL)
            case 3:
                raise OddError("this", "that")
            case 4:
                time.sleep(600)
            case 5:
                return tuple({n: t * float("nan") for n, t in one.items()} for one in params), memory
        return params, memory


@dataclass(frozen=True)
class Collect:
    """All latents, and the labels if any."""

    def add(
        self, so_far: tuple[Tensor, Tensor | None] | None, latents: Tensor, labels: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if so_far is None:
            return latents, labels
        both = None if labels is None or so_far[1] is None else torch.cat([so_far[1], labels])
        return torch.cat([so_far[0], latents]), both


class Dropping(nn.Module):
    """A model with random layers."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 32), nn.ReLU(), nn.Dropout(0.5))
        self.out = nn.Linear(32, classes)

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encode(x))


class Normed(nn.Module):
    """A small model with BatchNorm."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 16), nn.BatchNorm1d(16), nn.ReLU())
        self.out = nn.Linear(16, classes)

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encode(x))


@dataclass(frozen=True)
class Shifting:
    """Moves set k of a client by k + 1 times what its extras say; `how` it is answered may be odd."""

    how: str = "plain"

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> None:
        """No memory."""

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        moved = [{name: t + (k + 1) * extras["by"] for name, t in one.items()} for k, one in enumerate(params)]
        if self.how == "wide" or (self.how == "some wide" and extras["by"] > 2):
            moved = [{name: tensor.double() for name, tensor in one.items()} for one in moved]
        if self.how == "first":
            moved = moved[:1]
        if self.how == "backwards":
            moved = [dict(reversed(one.items())) for one in moved]
        return tuple(moved), memory


def echo() -> Any:
    """A worker that answers with its part of what it was given."""
    return lambda method, arguments, position: arguments[position]


def stumble() -> Any:
    """A worker that fails at the first position and notes which it began."""

    def do(method: str, folder: str, position: int) -> None:
        (Path(folder) / str(position)).touch()
        if position == 0:
            raise KeyError("the first")
        time.sleep(0.1)

    return do
