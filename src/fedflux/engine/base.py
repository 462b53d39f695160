"""The one seam between methods and clients: requests, answers, and the engine that carries them.

Everything that is computed from a client's data is computed behind an engine, and what an engine returns is all that
leaves a client. Simulated clients in a loop, in processes or stacked on a GPU, and real nodes elsewhere are the same to
a method. Answers say who answered and why others did not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Features, Federation, Held, Split
from fedflux.data.holding import About, Holding, Pass, Seen
from fedflux.data.scaling import Scaling
from fedflux.engine.predictor import Predictor
from fedflux.engine.rules import Extras, Rule
from fedflux.engine.slots import Kept
from fedflux.engine.stack import Stack
from fedflux.engine.training import Training
from fedflux.operations import Arrays

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One client's local work: whose data, what it begins from, and what it keeps."""

    client: int
    models: tuple[int, ...] = (0,)
    """Rows of the start stack."""
    own: tuple[str | None, ...] = ()
    """For each of them the slot whose model the client begins from instead, once it has one; (): none."""
    keep: tuple[str | None, ...] = ()
    """For each of them the slot that the trained model stays in, None where it is sent back; (): all are sent."""
    layers: tuple[str, ...] = ()
    """The tensors that are personal where not the whole model is: slots hold these alone, the client begins from a row
    of the start with its own in place, and what it trained is kept in part and, if it `sends`, sent back whole."""
    sends: bool = True

    @property
    def sent(self) -> tuple[bool, ...]:
        """For each of the models whether it is sent back."""
        both = bool(self.layers) and self.sends
        return tuple(slot is None or both for slot in self.keep or (None,) * len(self.models))


@dataclass(frozen=True)
class Key:
    """Where random draws come from: the run's seed and the round."""

    seed: int
    round: int


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


class Query(Protocol):
    """A question about data, a registered operation (`fedflux.operations`): what is computed at the client and sent."""

    def passes(self) -> Sequence[Pass]:
        """The passes through the encoder that the answer is made of."""

    @property
    def losses(self) -> Split | None:
        """The split whose losses under every model that was sent enter the answer; None: none do."""

    def answer(self, held: Holding, seen: Seen) -> Arrays:
        """What leaves the client: a few named arrays, never one number an example."""

    def fault(self, answer: Arrays, about: About) -> str | None:
        """What is wrong with an answer that came from elsewhere, None where it can be used."""

    def faults(self, answers: Sequence[Arrays]) -> Sequence[str | None]:
        """What is wrong with answers beside each other's, each of which is right by itself."""


class Preparation(Protocol):
    """What a client computes before it trains, a registered operation: its rule's extras, of which only sums leave."""

    @property
    def split(self) -> Split:
        """Whose losses under every model that was sent it needs."""

    def prepare(
        self, held: Holding, losses: NDArray[np.float32], extras: Extras
    ) -> tuple[Sequence[Extras], Mapping[str, NDArray[np.generic]]]:
        """Extras for the training of each model that was sent, and what the client tells besides."""

    def fault(self, told: Arrays, about: About) -> str | None:
        """What is wrong with what a client told, None where it can be used."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What came back from training: the jobs that were done, in order, and the models that they sent."""

    jobs: tuple[Job, ...]
    models: Stack
    """Of each job those that it does not keep, one job after another."""
    told: Mapping[int, Arrays] = field(default_factory=dict)
    """By client, what its preparation told."""
    missing: Mapping[int, str] = field(default_factory=dict)
    """Clients that did not answer, and why."""

    @property
    def clients(self) -> tuple[int, ...]:
        """Whose work each job is."""
        return tuple(job.client for job in self.jobs)


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to a query, in the order in which clients were asked."""

    clients: tuple[int, ...]
    arrays: tuple[Arrays, ...]
    missing: Mapping[int, str] = field(default_factory=dict)
    refused: frozenset[int] = frozenset()
    """Those of the missing whose answers were wrong: they are out for good, and must leave no trace."""

    def __len__(self) -> int:
        return len(self.clients)

    def stacked(self, name: str) -> NDArray[Any]:
        """One named array of everybody's, a row a client."""
        return np.stack([one[name] for one in self.arrays])


@dataclass(frozen=True, eq=False)
class Scores:
    """Accuracies (predictors × clients asked), NaN where a client has no such examples or did not answer."""

    values: NDArray[np.float64]
    missing: Mapping[int, str] = field(default_factory=dict)

    def by_client(self, cohort: Cohort, row: int = 0) -> dict[int, float]:
        """One predictor's accuracies, of the clients that answered."""
        pairs = zip(cohort, self.values[row].tolist(), strict=True)
        return {client: score for client, score in pairs if client not in self.missing}


@dataclass(frozen=True, eq=False)
class Presence:
    """Who is there: a federation whose clients may have become more, and which of them can be asked now."""

    federation: Federation
    labelled: tuple[int, ...]
    unlabelled: tuple[int, ...] = ()
    """Clients without labels: they never train, and are given a model at the end."""


class DivergedError(RuntimeError):
    """Training left the finite numbers; the message names the client and the round."""


class Engine(Protocol):
    """The only way from a method to clients. Engines know no method."""

    name: str
    device: str
    precision: str

    @property
    def trained_names(self) -> frozenset[str]:
        """The tensors of a model that training changes by gradients: neither buffers nor frozen parameters."""

    @property
    def head_names(self) -> frozenset[str]:
        """The tensors of a model's last layer, which gives the answer; all others are its trunk."""

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
        extras: Mapping[int, Extras] | None = None,
        preparation: Preparation | None = None,
    ) -> Trained:
        """Local training of every job; `extras` is what single clients are sent besides models."""

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Accuracy of every member with each of the predictors, in one exchange."""

    def ask(self, query: Query, clients: "Cohort | Held | Sequence[Features]", models: Stack | None = None) -> Answers:
        """Every client's answer to a query, under these models; features come without labels."""

    def public(self, models: Stack, images: Tensor, statistic: Statistic[T]) -> T:
        """A statistic of images that nobody owns, computed by the server itself."""

    def copy_slot(self, clients: Sequence[int], source: str, target: str) -> Sequence[int]:
        """These clients keep the model of one slot in another, too; returns those that did."""

    def drop_slot(self, clients: Sequence[int], name: str) -> None:
        """These clients need the model of a slot no more."""

    def hand_out(self, predictor: Predictor, cohort: Cohort) -> None:
        """The run is over: clients may keep what they answer with. Simulated ones have no use for it."""

    def present(self, round: int) -> "Presence | None":
        """Who is there for a round (0: after the last one); None: everyone, always."""

    def report(self) -> Mapping[str, Any]:
        """What a result says of how the clients were reached: chunk size, refusals, bytes on the wire."""

    def remember(self) -> Mapping[str, Any]:
        """What the engine needs to find its clients again when a run is resumed, in plain values."""

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with what was remembered."""

    def kept(self) -> Kept:
        """The slots of clients that live in this process: they are saved with a run's state."""

    def restore(self, kept: Kept) -> None:
        """Go on with slots that were saved."""


class DistantEngine(Engine, Protocol):
    """An engine to clients elsewhere, who have to be told what a simulated federation says by itself."""

    def scale(self, scaling: Scaling) -> None:
        """From now on clients scale their inputs so."""


class Backend(Protocol):
    """How clients of this machine are computed: loop, processes, stacked. Backends differ in speed, not in results."""

    name: str
    device: str
    precision: str
    trained_names: frozenset[str]

    @property
    def head_names(self) -> frozenset[str]:
        """As the engine's."""

    def initial(self, count: int = 1) -> Stack:
        """As the engine's."""

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

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """Accuracy (predictors × members), NaN where the split is empty; a model that several mix is run once."""

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of every client's images."""

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """Per-sample cross-entropy, one array (models × samples, in dataset order, copies too) a member."""

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """A statistic of every client's latents under the stack's only model."""
