"""What a method is: rules of a round over an explicit, frozen state."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.describe import DescriptorSettings
from fedflux.clustering import Clusterer, Clusters
from fedflux.clustering.change.drift import FALSE_ALARMS
from fedflux.clustering.placement.novelty import LEVEL
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Predictor, Stack, Training
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays

S = TypeVar("S")
OF_STEPS = frozenset({"optimiser", "weight_decay", "schedule"})
"""Settings of local training that every method reads but those whose own rule fixes what a step is."""
UNPLACED = -1
"""The cluster of a client that has none yet."""


@dataclass(frozen=True, eq=False)
class Described:
    """What a clustered run can show of its clients: who was described, how, and where each was put."""

    clients: NDArray[np.int64]
    sent: Arrays
    """Their descriptors in the wire form, which is an eighth of what is computed with."""
    labels: NDArray[np.int64]
    clusters: Clusters


@dataclass
class RoundMetrics:
    """What one round did: validation accuracy, traffic in bytes by client id, seconds by phase, events in words."""

    validation: dict[int, float] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=dict)
    """Models sent and passes over a client's own data, summed over clients (`count` adds to them)."""
    parts: dict[str, float] = field(default_factory=dict)
    """What each branch of a clustered method has in the answers to members, on average."""

    def count(
        self,
        clients: Collection[int] | Cohort,
        *,
        models_down: float = 0,
        models_up: float = 0,
        forward: float = 0,
        training: float = 0,
    ) -> None:
        """Count, for each of these clients, models received and sent and forward and training passes over its data."""
        amounts = {"models_down": models_down, "models_up": models_up, "forward": forward, "training": training}
        for what, amount in amounts.items():
            self.work[what] = self.work.get(what, 0.0) + amount * len(clients)

    def send(self, clients: Collection[int] | Cohort, *, up: int = 0, down: int = 0) -> None:
        """Count messages from and to each of these clients."""
        for client in clients:
            self.up[client] = self.up.get(client, 0) + up
            self.down[client] = self.down.get(client, 0) + down

    def missed(self, round: int, missing: Mapping[int, str]) -> None:
        """Say who did not answer, and why."""
        for client, reason in missing.items():
            self.events.append(f"round {round}: client {client} did not answer: {reason}")

    def add(self, other: "RoundMetrics") -> None:
        """Count in what was done for other clients."""
        for mine, theirs in ((self.up, other.up), (self.down, other.down)):
            mine.update({client: mine.get(client, 0) + count for client, count in theirs.items()})
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        for what, amount in other.work.items():
            self.work[what] = self.work.get(what, 0.0) + amount
        self.validation.update(other.validation)
        self.events += other.events

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        begin = perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - begin


@dataclass(frozen=True)
class Settings:
    """What every method is given; each reads what it names in `reads`."""

    rounds: int
    training: Training
    seed: int
    paper_baselines: bool = False
    """What the paper's comparison ran under a baseline's name, instead of what its authors define."""
    clusters: int | None = None
    """The number of models M for methods that must be told it; None where nobody knows it."""
    clusterer: Clusterer = field(default_factory=Clusterer)
    true_count: bool = False
    """Tell the clusterer the true number of clusters."""
    cluster_round: int | None = None
    """After how many FedAvg rounds to cluster; None: early and again, or when C(r) fires."""
    look_again: bool = True
    """Without a round of choice: look for clusters early, and again as the model learns; False: once C(r) fires."""
    assignment: Literal["mixture", "calibrated", "euclidean"] = "mixture"
    """Place unseen clients by their clusters' class mixtures, by the calibrated distance of means, or by the paper's
    scaled Euclidean one; late clients, who have labels, by the same rule."""
    min_members: int = 1
    """Clusters of fewer clients are not offered to unseen ones."""
    regroup: bool = True
    """Find clusters anew when many clients have come late; False: late clients are placed, as in the paper."""
    redescribe: int = 1
    """Every how many rounds clients describe themselves anew, to find out whether they drifted."""
    false_alarms: float = FALSE_ALARMS
    """The share of rounds without drift in which somebody may be said to drift."""
    drift_test: Literal["history", "chunk"] = "history"
    """What is tested for drift: slow changes too, corrected over clients, or each client's newest chunk by itself."""
    everyone: bool = True
    """Whether every client that is there takes part in every round; else who does is a matter of chance."""
    sharing: Literal["auto", "none", "trunk", "general"] = "auto"
    """What clusters train together: `none`, nothing; `trunk`, all layers but the last, over everybody; `general`, a
    model of everybody's beside their own, both heard as validation weighs them; `auto`, both a model of their own and
    one with a shared trunk, as validation weighs them, until one of the two can go."""
    novel: Literal["nearest", "global"] = "nearest"
    """What answers for unlabelled clients that fit no cluster: the nearest cluster's model, or a general one."""
    novelty_level: float = LEVEL
    """How many clients that do fit one may be called novel, at most."""
    server_momentum: float = 0.0
    """β: how much of a round's movement the server's models go on with in the next (FedAvgM)."""
    descriptor: DescriptorSettings = field(default_factory=DescriptorSettings)
    average: "Averaging | None" = None
    """A robust rule in place of the weighted mean, where a deployment asks for one."""


Averaging = Callable[[Stack, Stack, NDArray[np.int64], NDArray[np.float64]], Stack]
"""(models, trained, the model of each, sizes) → models: how what clients trained becomes models."""


class Algorithm(Protocol[S]):
    """Explicit state in, explicit state out; no hidden attributes."""

    revision: ClassVar[int]
    """Raised whenever a change alters the method's numbers."""
    states: ClassVar[tuple[type, ...]]
    """The kinds of state it goes through, all of them frozen dataclasses that can be saved."""
    reads: ClassVar[frozenset[str]]
    """Which of the settings that not everyone reads it reads; the others cannot change its numbers."""
    own_rule: ClassVar[bool]
    """Whether clients train by a rule of the method's own; else by the default one."""
    needs_batch_norm: ClassVar[bool]
    """Whether it is for models with BatchNorm alone."""

    @property
    def settings(self) -> Settings:
        """What it was made with."""

    @classmethod
    def make(cls, settings: Settings) -> Self:
        """The method with these settings."""

    @property
    def uses_truth(self) -> bool:
        """Whether the true clusters may be read; others are given a blind federation."""

    def init(self, federation: Federation, engine: Engine) -> S:
        """The state before the first round."""

    def round(self, state: S, cohort: Cohort, engine: Engine) -> tuple[S, RoundMetrics]:
        """One communication round, with those that answer."""

    def complete(self, state: S, clients: Cohort, engine: Engine) -> tuple[S, RoundMetrics]:
        """After the last round: place those of these clients that never took part, and what that costs.

        A large federation is completed some clients at a time, so that it need not fit into memory.
        """

    def known(self, state: S, clients: Cohort, engine: Engine) -> Predictor | None:
        """What clients of the federation answer with; None where the method is for unlabelled clients only."""

    def unseen(self, state: S, features: Sequence[Features], engine: Engine) -> Predictor | None:
        """What unlabelled clients are given from their features alone; None where the method has no answer."""

    def assignment(self, state: S) -> NDArray[np.int64]:
        """The cluster of every client, −1 where it has none yet."""

    def described(self, state: S) -> Described | None:
        """Descriptors and clusters, where the method makes them."""

    def models(self, state: S) -> Mapping[str, Stack]:
        """The server's models, by the name of the file that they are saved under."""

    def summary(self, state: S) -> Mapping[str, Any]:
        """What else a result says of the run: `cluster_round`, `sharing_parts`, `releases`, …."""


class Method:
    """What most methods have in common; a method overrides what is otherwise with it."""

    reads: ClassVar[frozenset[str]] = frozenset()
    own_rule: ClassVar[bool] = False
    needs_batch_norm: ClassVar[bool] = False
    several_labels: ClassVar[bool] = False
    """Whether records may have several labels: nothing in it takes labels for classes, and losses for cross-entropy."""
    fixes: ClassVar[frozenset[str]] = frozenset()
    """Which of `OF_STEPS` the method's own rule fixes, so that the settings cannot change its numbers."""
    settings: Settings

    @classmethod
    def make(cls, settings: Settings) -> Self:
        """The method with these settings."""
        return cls(settings)  # type: ignore[call-arg]

    @property
    def uses_truth(self) -> bool:
        """Never."""
        return False

    def complete(self, state: Any, clients: Cohort, engine: Engine) -> tuple[Any, RoundMetrics]:
        """Everyone has a model already."""
        return state, RoundMetrics()

    def described(self, state: Any) -> Described | None:
        """No descriptors."""
        return None

    def models(self, state: Any) -> Mapping[str, Stack]:
        """The models of the state."""
        return {"models": state.models}

    def summary(self, state: Any) -> Mapping[str, Any]:
        """Nothing else."""
        return {}


@dataclass(frozen=True)
class PerClient:
    """Marks a field of a state that has an entry a client along `axis`, or counts them; newcomers begin with `fill`.

    >>> # assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    """

    fill: float | bool = 0
    axis: int = 0


def grown(state: S, clients: int) -> S:
    """The state of a federation that has so many clients by now."""
    changed: dict[str, Any] = {}
    for name, kind in get_type_hints(type(state), include_extras=True).items():
        for mark in getattr(kind, "__metadata__", ()):
            if isinstance(mark, PerClient):
                changed[name] = _grown(getattr(state, name), clients, mark)
    return replace(state, **changed) if changed else state  # type: ignore[type-var]


def _grown(value: Any, clients: int, mark: PerClient) -> Any:
    if isinstance(value, int):
        return max(value, clients)
    missing = clients - value.shape[mark.axis]
    if missing <= 0:
        return value
    shape = [missing if axis == mark.axis else size for axis, size in enumerate(value.shape)]
    return np.concatenate([value, np.full(shape, mark.fill, dtype=value.dtype)], axis=mark.axis)


def told_clusters(settings: Settings, method: str) -> int:
    """The number of models that a method must be told."""
    if settings.clusters is None:
        raise FedfluxError(f"{method} must be told the number of clusters of these clients: --clusters M")
    return settings.clusters
