"""Clusterers by name, and the one call that clusters descriptors with any of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.neighbors import NearestNeighbors

from fedflux.clustering.adaptive_dbscan import AdaptiveDBSCAN, import_kneed, noise_to_singletons
from fedflux.clustering.calibrated import CalibratedClustering, common_whitening
from fedflux.clustering.evidence.comparison import EFFECT_FLOOR, Pool, compare
from fedflux.clustering.evidence.label_counts import fitted_prior, log_predictive, observed
from fedflux.clustering.placement.marginals import Marginals, cluster_centroids, nearest_centroid
from fedflux.clustering.placement.mixtures import ClassMixtures
from fedflux.clustering.placement.novelty import LEVEL, Null, judge
from fedflux.clustering.scaling import BlockScaler
from fedflux.clustering.silhouette import SilhouetteKMeans
from fedflux.clustering.variation import UNKNOWN, Variation
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import EXACT
from fedflux.errors import FedfluxError, unknown
from fedflux.placement import Placement
from fedflux.plugins import find, hand_in, path_of, source_digest

ALPHA = 0.01


@dataclass(frozen=True)
class Clusterer:
    """Which clusterer, and what it needs: `significance`, `clusters` for k-means, `eps_scale` for DBSCAN."""

    name: str = "calibrated"
    clusters: int | None = None
    eps_scale: float = 1.0
    significance: float = ALPHA
    variation: Literal["estimated", "fixed"] = "estimated"
    """Of `calibrated`: what clients of one cluster may differ by is estimated, or version 0.1's fixed floor."""


def _kmeans(how: Clusterer) -> KMeans:
    if how.clusters is None:
        raise FedfluxError("kmeans needs the number of clusters: --clusters M, or --clusters true")
    if how.clusters < 1:
        raise FedfluxError(f"{how.clusters} clusters: give 1 or more")
    return KMeans(how.clusters, n_init=10, random_state=0)


CLUSTERERS: dict[str, Callable[[Clusterer], Any]] = {
    "calibrated": lambda how: CalibratedClustering(
        how.significance, EFFECT_FLOOR if how.variation == "fixed" else None
    ),
    "adaptive-dbscan": lambda how: AdaptiveDBSCAN(scale=how.eps_scale),
    "kmeans": _kmeans,
    "kmeans-silhouette": lambda how: SilhouetteKMeans(),
    "hdbscan": lambda how: HDBSCAN(min_cluster_size=2, copy=True),
    "agglomerative": lambda how: AgglomerativeClustering(n_clusters=None, distance_threshold=1.2, linkage="ward"),
}


GROUP = "fedflux.clusterers"
"""Entry points by which packages offer clusterers."""
SMALL = ("kmeans-silhouette", "hdbscan", "agglomerative")
"""Clusterers that need every pair of clients at once, which beyond 20,000 of them is too much."""
LISTED = 1000
"""Clusters up to which a newcomer is tested against each of them."""
SHORTLIST = 64
"""Beyond, it is tested against so many of the nearest."""


def check_clusterer(name: str) -> None:
    """Refuse an unknown name, or one whose helper library is missing, before any training."""
    find_clusterer(name)
    if name == "adaptive-dbscan":
        import_kneed()


def find_clusterer(name: str) -> Callable[[Clusterer], Any]:
    """What makes the clusterer of that name: ours, or another's scikit-learn estimator with `fit` and `labels_`."""
    if name in CLUSTERERS:
        return CLUSTERERS[name]
    found = find(GROUP, name, "clusterer")
    if found is None:
        raise unknown("clusterer", name, CLUSTERERS)
    return lambda how: found() if isinstance(found, type) else clone(found)


def name_of_clusterer(clusterer: object) -> str:
    """The name under which a run finds a clusterer: its own, or that of an estimator that is handed in."""
    if isinstance(clusterer, str):
        return clusterer
    kind = clusterer if isinstance(clusterer, type) else type(clusterer)
    if not hasattr(kind, "fit"):
        raise FedfluxError(f"clusterer: {kind.__name__} is none; give a name, or a scikit-learn estimator with fit")
    own = "" if isinstance(clusterer, type) else " ".join(repr(clusterer).split()).removeprefix(kind.__name__)
    return hand_in(GROUP, f"{path_of(kind)}{'' if own == '()' else own}", clusterer)


def whole_name(name: str) -> str:
    """One name for a clusterer however it was named: by an entry point, by where it is, or handed in."""
    return name if name in CLUSTERERS else name_of_clusterer(find(GROUP, name, "clusterer"))


def clusterer_digest(name: str) -> str | None:
    """The digest of the source of a clusterer that is not ours: clusters follow from it."""
    if name in CLUSTERERS:
        return None
    found = find(GROUP, name, "clusterer")
    return source_digest(found if isinstance(found, type) or not hasattr(found, "fit") else type(found))


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of clients, and what places others in them: centroids in scaled space, and pooled moments."""

    labels: NDArray[np.int64]
    scaler: BlockScaler
    centroids: NDArray[np.float64]
    """γ_m in the full, scaled descriptor space."""
    pool: Pool
    """Pooled class moments of every cluster."""
    marginals: Marginals
    """Pooled P(X) of every cluster."""
    null: Null
    """How far from it those that belong to it lie."""
    variation: Variation = UNKNOWN
    """What clients of one cluster differ by besides their sampling noise."""

    def place(self, newcomers: Descriptors, calibrated: bool = True) -> NDArray[np.int64]:
        """Clusters of labelled late clients: the best-fitting pooled moments, or the paper's nearest centroid."""
        if not calibrated:
            return nearest_centroid(self.scaler.transform(newcomers), self.centroids)[0]
        both = self.pool.join(Pool.of(newcomers))
        clusters, clients = len(self.pool), len(newcomers)
        listed = np.tile(np.arange(clusters), (clients, 1))
        if clusters > LISTED:
            points = common_whitening(both)
            search = NearestNeighbors(n_neighbors=SHORTLIST).fit(points[:clusters])
            listed = np.sort(search.kneighbors(points[clusters:], return_distance=False), axis=1)
        second = np.repeat(np.arange(clients), listed.shape[1]) + clusters
        evidence = compare(both, listed.ravel(), second)
        if both.label_noise.any():
            best = evidence.likeness.reshape(listed.shape).argmax(axis=1)
            return np.asarray(listed[np.arange(clients), best], dtype=np.int64)
        # how likely the labels are tells more than how unusual: some cannot be
        counts = observed(both.labels, both.weight)
        known = np.tile(counts[:clusters].any(axis=0), (len(second), 1))
        likely = log_predictive(counts[second], counts[listed.ravel()], known, fitted_prior(counts[:clusters]))
        fit = (evidence.likeness - evidence.labels + likely).reshape(listed.shape)
        return self._of_two(newcomers, listed, fit, likely.reshape(listed.shape))

    def _of_two(
        self, newcomers: Descriptors, listed: NDArray[np.int64], fit: NDArray[np.float64], likely: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """The best fit or, where labels speak for another cluster, the better of the two on the classes that both know.

        Else a class would count against the one cluster that has it, and a client's one image of it against its labels.
        """
        rows = np.arange(len(listed))
        pair = np.stack([fit.argmax(axis=1), likely.argmax(axis=1)])
        found = np.asarray(listed[rows, pair[0]], dtype=np.int64)
        rows = np.flatnonzero(pair[0] != pair[1])
        if len(rows):
            first, other = (listed[rows, one[rows]] for one in pair)
            late = Pool.of(newcomers.take(rows))
            shared = (self.pool.weight[first] > 0) & (self.pool.weight[other] > 0)
            both = self.pool.join(replace(late, weight=late.weight * shared, holders=late.holders * shared))
            at = np.arange(len(rows)) + len(self.pool)
            seen = [compare(both, clusters, at) for clusters in (first, other)]
            scores = [one.likeness - one.labels + likely[rows, k[rows]] for one, k in zip(seen, pair, strict=True)]
            found[rows] = np.where(scores[1] > scores[0], other, first)
        return found

    def likeliest(self, newcomers: Descriptors) -> NDArray[np.int64]:
        """Clusters of labelled late clients: those under whose class mixtures their moments are likeliest."""
        if newcomers.noise.any() or newcomers.count_noise.any():
            return self.place(newcomers)
        return np.asarray(self.mixtures.labelled(newcomers).argmax(axis=1), dtype=np.int64)

    @cached_property
    def mixtures(self) -> ClassMixtures:
        """How likely images are in every cluster."""
        return ClassMixtures.of(self.pool)

    def place_unlabelled(
        self, newcomers: Descriptors, calibrated: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Clusters of unlabelled clients, and their distances to all: calibrated, or the paper's scaled Euclidean."""
        if calibrated:
            return self.marginals.nearest(newcomers)
        vectors = self.scaler.transform(newcomers)
        return nearest_centroid(vectors, self.centroids[:, : vectors.shape[1]])

    def judge(self, newcomers: Descriptors, level: float = LEVEL, calibrated: bool = True) -> Placement:
        """The same, and which of them fit no cluster, and how sure each placement is."""
        return judge(self.marginals, self.null, newcomers, level, self.place_unlabelled(newcomers, calibrated))


def takes(how: Clusterer, clients: int) -> bool:
    """Whether a clusterer can take so many clients."""
    return how.name not in SMALL or clients <= EXACT


def find_clusters(descriptors: Descriptors, how: Clusterer) -> Clusters:
    """U({d}; λ): scale the blocks, cluster, and number the clusters in order of their first client."""
    check_clusterer(how.name)
    estimator = find_clusterer(how.name)(how)
    if how.name == "calibrated":
        fitted = estimator.fit(descriptors)
        return replace(with_centroids(descriptors, fitted.labels_), variation=fitted.variation_)
    if how.name == "kmeans" and how.clusters is not None and how.clusters > len(descriptors):
        raise FedfluxError(f"{how.clusters} clusters of {len(descriptors)} clients: ask for fewer")
    if not takes(how, len(descriptors)):
        told = f"{how.name} takes up to {EXACT:,} clients, not {len(descriptors):,}"
        raise FedfluxError(f"{told}: use calibrated, adaptive-dbscan or kmeans")
    vectors = BlockScaler.fit(descriptors).transform(descriptors)
    if len(descriptors) == 1 or np.ptp(vectors, axis=0).max() == 0:
        labels = np.zeros(len(descriptors), dtype=np.int64)
    else:
        labels = noise_to_singletons(estimator.fit(vectors).labels_)
    return with_centroids(descriptors, labels)


def with_centroids(descriptors: Descriptors, labels: NDArray[np.int64]) -> Clusters:
    """Clusters whose labels are known already (found above, or the truth given to the oracle)."""
    scaler = BlockScaler.fit(descriptors)
    labels = in_order_of_appearance(labels)
    marginals = Marginals.of(descriptors, labels)
    return Clusters(
        labels,
        scaler,
        cluster_centroids(scaler.transform(descriptors), labels),
        Pool.of(descriptors).merge(labels),
        marginals,
        Null.of(descriptors, labels, marginals),
    )


def in_order_of_appearance(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters, numbered by their first member."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int64)
