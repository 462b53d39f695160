"""HACCS: clients sum up their data in histograms once; those with like histograms train one model together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import OPTICS

from fedflux.algorithms.base import Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import by_membership
from fedflux.algorithms.shared.one_shot import OneShot, OneShotState, as_they_appear
from fedflux.data import Features, Federation, Labelled
from fedflux.data.holding import About, Holding, Pass, Seen
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.queries import AskedAlone
from fedflux.engine import Engine, Predictor
from fedflux.operations import Arrays, operation
from fedflux.streams import stream

BINS = 20
"""Of pixel values on [0, 1]: the authors'."""
NEAR = 0.25
"""The authors' ε of the DBSCAN cut on P(y)."""
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
    name: ClassVar[str] = "frequencies"

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


@algorithm("haccs")
@dataclass(frozen=True)
class Haccs(OneShot):
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
    reads: ClassVar[frozenset[str]] = frozenset(("finetune",))

    def question(self, federation: Federation) -> AskHistograms:
        """Its histograms."""
        return AskHistograms(self.histogram, federation.classes, self.settings.seed, self.epsilon)

    def distances(self, mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float64]:
        """The mean over their rows."""
        each = [row_distances(mine[:, u], theirs[:, u], self.distance) for u in range(mine.shape[1])]
        return np.asarray(np.mean(each, axis=0))

    def clustered(self, distances: NDArray[np.float64]) -> NDArray[np.int64]:
        """By OPTICS."""
        return optics(distances, NEAR if self.histogram == "py" else None)

    def nearest(self, distances: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """That of the least mean distance to its members."""
        return nearest(distances, labels)

    def unseen(self, state: OneShotState, features: Sequence[Features], engine: Engine) -> Predictor:
        """Both summaries need labels: all models, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))


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
    return as_they_appear(labels)


def nearest(distances: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The cluster with the least mean distance to its members (rows: newcomers, columns: members)."""
    clusters = np.unique(labels)
    means = np.stack([distances[:, labels == m].mean(axis=1) for m in clusters], axis=1)
    return np.asarray(clusters[means.argmin(axis=1)])
