"""How clients are run: the one interface behind which runners differ in speed, never in results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Features, Split
from fedflux.engine.predictor import Predictor
from fedflux.engine.rules import Extras, Rule, Sgd
from fedflux.engine.stack import Stack

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One client's local work: whose data, and which rows of the start stack it begins from."""

    client: int
    models: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Key:
    """Where random draws come from: the run's seed and the round."""

    seed: int
    round: int


@dataclass(frozen=True)
class Training:
    """Local training: passes over the client's data, batch size, SGD."""

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

    @property
    def optimiser(self) -> Sgd:
        """What takes the steps."""
        return Sgd(self.lr, self.momentum, self.clip)


class Statistic(Protocol[T]):
    """A per-client summary of latents, built batch by batch so that no latent leaves the device.

    Copies of a client's examples are met once; whoever counts multiplies by the client's `copies` afterwards.
    """

    def add(self, so_far: T | None, latents: Tensor, labels: Tensor | None) -> T:
        """The summary with one more batch; `labels` is None where the client has none."""


@runtime_checkable
class ManyAtOnce(Protocol[T]):
    """A statistic that is faster for many clients at once, with the same result as `add` for each."""

    def of_each(self, latents: Tensor, labels: Tensor | None, ends: Sequence[int]) -> list[T]:
        """The summary of every client; their latents lie one after another and end at `ends`."""


class DivergedError(RuntimeError):
    """Training left the finite numbers; the message names the client and the round."""


class Engine(Protocol):
    """Runs clients. Engines know no method."""

    name: str
    device: str
    precision: str
    trained_names: frozenset[str]
    """The tensors of a model that training changes by gradients: neither buffers nor frozen parameters."""

    def initial(self, count: int = 1) -> Stack:
        """The initial model, as a stack of one, or `count` models drawn independently, that one first."""

    def train(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        key: Key,
        rule: Rule | None = None,
        extras: Sequence[Extras] | None = None,
    ) -> Stack:
        """Local training of every job; the result holds each job's parameter sets, in job order."""

    def evaluate(self, predictor: Predictor, cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """Accuracy of every member, NaN where the split is empty."""

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of every client's images."""

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """Per-sample cross-entropy, one array (models × samples, in dataset order, copies too) a member."""

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """A statistic of every client's latents under the stack's only model."""
