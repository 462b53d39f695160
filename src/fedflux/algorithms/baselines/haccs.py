"""HACCS: clients sum up their data in histograms once; those with like histograms train one model together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import OPTICS

from fedflux.algorithms.base import UNPLACED, Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import averaged, by_membership, count_round, validated
from fedflux.algorithms.shared.membership import own_model, unplaced, with_placed
from fedflux.data import Cohort, Features, Federation, Labelled
from fedflux.data.holding import About, Holding, Pass, Seen
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.queries import AskedAlone
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.operations import Arrays, operation
from fedflux.streams import stream

BINS = 20
"""Of pixel values on [0, 1]: the authors'."""
NEAR = 0.25
"""The authors' ε of the DBSCAN cut on P(y)."""
COUNT_BYTES = 4
NEARLY = 1e-3
"""How far frequencies in single precision may be from summing to one."""
Kind = Literal["pxgy", "py"]


@operation("histograms")
@dataclass(frozen=True)
class AskHistograms(AskedAlone):
    """Frequencies of pixel values by label, or of labels alone, with the noise that privacy asks for."""

    kind: Kind
    classes: int
    seed: int
    """Of the run: a client's noise is drawn from a stream of its own."""
    epsilon: float | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """A row a label for P(x|y), one row for P(y)."""
        return (self.classes, BINS) if self.kind == "pxgy" else (1, self.classes)

    def passes(self) -> Sequence[Pass]:
        """No latents."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, NDArray[np.generic]]:
        """Counts with their noise, as frequencies; a label that the client does not hold is a row of zeros."""
        data = held.data("train")
        counts = label_counts(data, self.classes)[None] if self.kind == "py" else pixel_counts(data, self.classes)
        if self.epsilon is not None:
            own = stream(self.seed, "haccs noise", client=held.client)
            counts = noisy(counts * data.copies, self.epsilon, own)
        frequencies = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
        return {"frequencies": frequencies.astype(np.float32)}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Histograms of another form, not finite, below zero, or with rows that sum to neither one nor zero."""
        what = "its histograms"
        fault = shape_fault(answer, {"frequencies": self.shape}, what) or finite_fault(answer, what)
        if fault is not None:
            return fault
        found = answer["frequencies"].astype(np.float64)
        sums = found.sum(axis=1)
        if (found < 0).any() or (np.minimum(np.abs(sums), np.abs(sums - 1)) > NEARLY).any():
            return f"{what} are no frequencies"
        return None


@dataclass(frozen=True, eq=False)
class HaccsState:
    """The models (one, until the first members are clustered), who is in which cluster, and everyone's histograms."""

    models: Stack
    assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    summaries: Annotated[NDArray[np.float32], PerClient(0)]
    """Frequencies (clients × rows × bins): a row a label for P(x|y), one row for P(y); zeros where not yet asked."""
    round: int = 0


@algorithm("haccs")
@dataclass(frozen=True)
class Haccs(Method):
    """Wolfrath et al., "HACCS: Heterogeneity-Aware Clustered Client Selection", IPDPS 2022.

    The original schedules clients for one global model by these clusters; here, as in FLUX's comparison, each cluster
    trains a model of its own by FedAvg. The paper leaves open which summary it compares; P(x|y) tells more.
    """

    settings: Settings
    histogram: Kind = "pxgy"
    """`pxgy`: for every label a histogram of all pixel values; `py`: the label frequencies."""
    distance: Literal["hellinger", "euclidean"] = "hellinger"
    """Between frequencies: the paper's, averaged over labels for P(x|y); the authors' code is Euclidean for P(y)."""
    epsilon: float | None = None
    """Laplace(0, 1/ε) noise on every count that is not zero; the authors' default is 0.1, FLUX compares without."""
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (HaccsState,)
    reads: ClassVar[frozenset[str]] = frozenset(("finetune",))

    def init(self, federation: Federation, engine: Engine) -> HaccsState:
        """One model, nobody placed."""
        summaries = np.zeros((len(federation), *self._question(federation).shape), dtype=np.float32)
        return HaccsState(engine.initial(), np.full(len(federation), UNPLACED, dtype=np.int64), summaries)

    def _question(self, federation: Federation) -> AskHistograms:
        return AskHistograms(self.histogram, federation.classes, self.settings.seed, self.epsilon)

    def round(self, state: HaccsState, cohort: Cohort, engine: Engine) -> tuple[HaccsState, RoundMetrics]:
        """Cluster the first members, place later ones, then FedAvg inside every cluster."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        state = self._place(state, cohort, engine, metrics)
        members = cohort.only(set(cohort) - set(unplaced(state.assignment, cohort)))
        jobs = [Job(client, (int(state.assignment[client]),)) for client in members]
        with metrics.timed("training"):
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, members, jobs, self.settings.training, key)
            models = averaged(self.settings, state.models, trained, cohort)
        state = replace(state, models=models)
        metrics.send(cohort)
        count_round(metrics, members, trained, models.model_bytes(), self.settings.training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _place(self, state: HaccsState, clients: Cohort, engine: Engine, metrics: RoundMetrics) -> HaccsState:
        """Ask newcomers for their summaries; the first are clustered, later ones join the nearest cluster."""
        newcomers = clients.only(unplaced(state.assignment, clients))
        if not len(newcomers):
            return state
        with metrics.timed("descriptor"):
            answers = engine.ask(self._question(clients.federation), newcomers)
        metrics.missed(state.round, answers.missing)
        if not len(answers):
            return state
        told, summaries = list(answers.clients), state.summaries.copy()
        summaries[told] = answers.stacked("frequencies")
        metrics.send(told, up=COUNT_BYTES * summaries[0].size)
        with metrics.timed("clustering"):
            placed = np.flatnonzero(state.assignment != UNPLACED)
            models = state.models
            if len(placed):
                between = self._distances(summaries[told], summaries[placed])
                labels = nearest(between, state.assignment[placed])
            else:
                labels = optics(self._distances(summaries[told]), NEAR if self.histogram == "py" else None)
                models = models.take([0] * (labels.max() + 1))
                metrics.events.append(f"round {state.round}: {len(models)} clusters of {len(told)} clients")
        assignment = with_placed(state.assignment, told, labels)
        return replace(state, models=models, assignment=assignment, summaries=summaries)

    def _distances(self, mine: NDArray[np.float32], theirs: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
        """Between all pairs of summaries, the mean over their rows."""
        theirs = mine if theirs is None else theirs
        each = [row_distances(mine[:, u], theirs[:, u], self.distance) for u in range(mine.shape[1])]
        return np.asarray(np.mean(each, axis=0))

    def complete(self, state: HaccsState, clients: Cohort, engine: Engine) -> tuple[HaccsState, RoundMetrics]:
        """Whoever never took part is asked for its summary now."""
        metrics = RoundMetrics()
        return self._place(state, clients, engine, metrics), metrics

    def known(self, state: HaccsState, clients: Cohort, engine: Engine) -> Predictor:
        """The model of the client's cluster."""
        return own_model(state.models, state.assignment, clients)

    def unseen(self, state: HaccsState, features: Sequence[Features], engine: Engine) -> Predictor:
        """Both summaries need labels: all models, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))

    def assignment(self, state: HaccsState) -> NDArray[np.int64]:
        """The cluster of every client, −1 where it was not asked yet."""
        return state.assignment


def label_counts(data: Labelled, classes: int) -> NDArray[np.float64]:
    """How many examples of every label."""
    return np.bincount(data.y.numpy(), minlength=classes).astype(np.float64)


def pixel_counts(data: Labelled, classes: int) -> NDArray[np.float64]:
    """For every label, how many pixel values lie in each of the bins on [0, 1] (labels × bins)."""
    pixels = data.x.flatten(1).numpy()
    values = pixels / np.float32(255) if pixels.dtype == np.uint8 else pixels
    bins = np.clip((values * BINS).astype(np.int64), 0, BINS - 1)
    cells = data.y.numpy()[:, None] * BINS + bins
    return np.bincount(cells.ravel(), minlength=classes * BINS).reshape(classes, BINS).astype(np.float64)


def noisy(counts: NDArray[np.float64], epsilon: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """Laplace noise where there is a count; what falls below zero becomes min(count, 1)."""
    drawn = counts + generator.laplace(0, 1 / epsilon, counts.shape)
    return np.where(counts == 0, 0.0, np.where(drawn < 0, np.minimum(counts, 1), drawn))


def row_distances(p: NDArray[np.floating], q: NDArray[np.floating], distance: str) -> NDArray[np.float64]:
    """Hellinger: H(p, q) = ‖√p − √q‖ / √2, or Euclidean: ‖p − q‖, between all pairs of frequencies."""
    if distance == "euclidean":
        return np.asarray(cdist(p, q))
    return np.asarray(cdist(np.sqrt(p), np.sqrt(q)) / np.sqrt(2))


def optics(distances: NDArray[np.float64], near: float | None = None) -> NDArray[np.int64]:
    """OPTICS with at least two clients a cluster, cut by steepness or at `near`; noise becomes clusters of one.

    OPTICS depends on the order of its points, so clients are put in an order that does not depend on their numbers.
    """
    if len(distances) < 2:
        return np.zeros(len(distances), dtype=np.int64)
    cut = {"cluster_method": "xi"} if near is None else {"cluster_method": "dbscan", "eps": near}
    order = np.lexsort(np.sort(np.round(distances, 9), axis=1).T)
    found = OPTICS(min_samples=2, metric="precomputed", **cut).fit(distances[np.ix_(order, order)]).labels_
    labels = found[np.argsort(order)].astype(np.int64)
    alone = np.flatnonzero(labels < 0)
    labels[alone] = labels.max() + 1 + np.arange(len(alone))
    _, first, index = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[index], dtype=np.int64)  # numbered as they first appear


def nearest(distances: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The cluster with the least mean distance to its members (rows: newcomers, columns: members)."""
    clusters = np.unique(labels)
    means = np.stack([distances[:, labels == m].mean(axis=1) for m in clusters], axis=1)
    return np.asarray(clusters[means.argmin(axis=1)])
