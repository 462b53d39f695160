"""Noise-calibrated clustering: merge groups of clients as long as one distribution can explain both."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.neighbors import NearestNeighbors

from fedflux.flux.descriptor import Descriptors
from fedflux.flux.evidence import EFFECT_FLOOR, Array, Index, Pool, compare, log_splits

NEIGHBOURS = 64


class CalibratedClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Agglomerative clustering of descriptors in which every merge is a test. Needs no number of clusters.

    Groups that look most alike merge first; two groups merge only if the hypothesis that all their clients hold one
    distribution survives at level `alpha`, corrected for the number of ways the union could have been parted and for
    the number of such unions in the federation. What is left when no merge survives are the clusters.

    Parameters
    ----------
    alpha : float, default=0.01
        The probability that a federation without any shift is split at all.
    floor : float, default=0.02
        Differences of class means below this many within-class deviations do not count, however many samples.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client.
    pool_ : Pool
        The pooled moments of every cluster, in order of label.
    """

    def __init__(self, alpha: float = 0.01, floor: float = EFFECT_FLOOR) -> None:
        self.alpha = alpha
        self.floor = floor

    def fit(self, X: Descriptors, y: Any = None) -> Self:
        """Cluster labelled descriptors."""
        pool = Pool.of(X)
        labels = np.arange(len(pool))
        while len(pool) > 1:
            first, second = candidate_pairs(pool)
            group = self._merge_alike(pool, first, second, len(X))
            if group.max() + 1 == len(pool):
                break
            pool, labels = pool.merge(group), group[labels]
        self.labels_, self.pool_ = labels, pool
        return self

    def _merge_alike(self, pool: Pool, first: Index, second: Index, clients: int) -> Index:
        """One sweep: every group whose best surviving partner also prefers it merges with it."""
        evidence = compare(pool, first, second, self.floor).total
        sizes = pool.members[first], pool.members[second]
        unions = np.log(clients / (sizes[0] + sizes[1]))
        survives = evidence + log_splits(*sizes) + unions >= np.log(self.alpha)
        first, second, evidence = first[survives], second[survives], evidence[survives]
        partner = _best_partner(len(pool), first, second, evidence)
        mutual = (partner >= 0) & (partner[partner] == np.arange(len(pool)))
        group = np.where(mutual, np.minimum(np.arange(len(pool)), partner), np.arange(len(pool)))
        return np.unique(group, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _best_partner(groups: int, first: Index, second: Index, evidence: Array) -> Index:
    """For every group the partner with the largest p-value, −1 where none survives; ties go to the lowest pair."""
    ends, others = np.concatenate([first, second]), np.concatenate([second, first])
    lowest = np.minimum(ends, others) * groups + np.maximum(ends, others)
    order = np.lexsort((lowest, -np.concatenate([evidence, evidence]), ends))
    found, position = np.unique(ends[order], return_index=True)
    partner = np.full(groups, -1, dtype=np.int64)
    partner[found] = others[order][position]
    return partner


def candidate_pairs(pool: Pool) -> tuple[Index, Index]:
    """Every pair of groups up to 65 of them; beyond, each group with its nearest in one common whitening."""
    groups = len(pool)
    if groups <= NEIGHBOURS + 1:
        first, second = np.triu_indices(groups, k=1)
        return first.astype(np.int64), second.astype(np.int64)
    points = _common_whitening(pool)
    neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS // 4 + 1).fit(points).kneighbors(return_distance=False)
    pairs = np.stack([np.repeat(np.arange(groups), neighbours.shape[1]), neighbours.ravel()], axis=1)
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def _common_whitening(pool: Pool) -> NDArray[np.float64]:
    """Class means and label shares on one scale for all groups, where distance² is roughly the test statistic."""
    total = np.maximum(pool.count.sum(axis=0), 1e-12)
    covariance = np.einsum("gu,guij->uij", pool.count, pool.covariance) / total[:, None, None]
    centre = np.einsum("gu,gui->ui", pool.count, pool.mean) / total[:, None]
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 1e-6 * values.max(axis=1, keepdims=True) + 1e-30)
    present = (pool.weight >= 1)[..., None]
    white = np.einsum("gui,uij->guj", np.where(present, pool.mean - centre, 0.0), axes) / np.sqrt(values)
    typical = np.median(np.where(pool.weight > 0, pool.weight, np.nan)) if (pool.weight > 0).any() else 1.0
    sizes = np.maximum(pool.labels.sum(axis=1, keepdims=True), 1e-12)
    shares = 2 * np.sqrt(pool.labels / sizes) * np.sqrt(np.median(sizes) / typical)
    return np.concatenate([white.reshape(len(pool), -1), shares], axis=1)
