"""Noise-calibrated clustering: merge groups of clients as long as one distribution can explain both."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.neighbors import NearestNeighbors

from fedflux.flux.descriptor import Descriptors
from fedflux.flux.evidence import EFFECT_FLOOR, Array, Index, Pool, compare, log_splits

ALL_PAIRS = 65
"""Up to so many groups every pair is tested."""
NEIGHBOURS = 8
"""Beyond, each group is tested against so many of its nearest."""


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
        known, changed = _nothing(), np.ones(len(pool), dtype=bool)
        while len(pool) > 1:
            known = known.join(self._survivors(pool, changed, len(X)))
            group = _couple(known, len(pool), mutual=len(pool) <= ALL_PAIRS)
            sizes = np.bincount(group)
            if len(sizes) < len(pool):
                alone = sizes[group] == 1
                known, changed = known.kept(alone, group), sizes > 1
                pool, labels = pool.merge(group), group[labels]
            elif changed.all():
                break
            else:  # nothing new among what changed: look at every pair once more before stopping
                known, changed = _nothing(), np.ones(len(pool), dtype=bool)
        self.labels_, self.pool_ = labels, pool
        return self

    def _survivors(self, pool: Pool, changed: NDArray[np.bool_], clients: int) -> "_Pairs":
        """Candidate pairs with a group that changed, as far as one distribution can explain both."""
        first, second = candidate_pairs(pool)
        fresh = changed[first] | changed[second]
        first, second = first[fresh], second[fresh]
        evidence = compare(pool, first, second, self.floor)
        sizes = pool.members[first], pool.members[second]
        unions = np.log(clients / (sizes[0] + sizes[1]))
        chance = evidence.total + log_splits(*sizes) + unions >= np.log(self.alpha)
        survives = chance | (evidence.trifle >= np.log(self.alpha))
        return _Pairs(first[survives], second[survives], evidence.likeness[survives])


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of groups that may merge, and how alike they are."""

    first: Index
    second: Index
    likeness: Array

    def join(self, other: "_Pairs") -> "_Pairs":
        return _Pairs(*(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(_Pairs)))

    def kept(self, alone: NDArray[np.bool_], group: Index) -> "_Pairs":
        """The pairs of which neither side merged, under their new numbers: their test stays as it was."""
        still = alone[self.first] & alone[self.second]
        return _Pairs(group[self.first[still]], group[self.second[still]], self.likeness[still])


def _nothing() -> _Pairs:
    return _Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def _couple(pairs: _Pairs, groups: int, mutual: bool) -> Index:
    """Merge couples: those who prefer each other or, to get along faster among very many groups, every group with its
    preferred partner in order of liking, while both are free.
    """
    partner, liking = _best_partner(groups, pairs.first, pairs.second, pairs.likeness)
    group = np.arange(groups)
    if mutual:
        agreed = np.flatnonzero((partner >= 0) & (partner[partner] == group))
        group[agreed] = np.minimum(agreed, partner[agreed])
    else:
        free = np.ones(groups, dtype=bool)
        for one in np.argsort(-liking, kind="stable"):
            other = partner[one]
            if other >= 0 and free[one] and free[other]:
                free[one] = free[other] = False
                group[max(one, other)] = min(one, other)
    return np.unique(group, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _best_partner(groups: int, first: Index, second: Index, likeness: Array) -> tuple[Index, Array]:
    """For every group the partner it is most like, −1 where none survives, and how much; ties go to the lowest pair."""
    ends, others = np.concatenate([first, second]), np.concatenate([second, first])
    lowest = np.minimum(ends, others) * groups + np.maximum(ends, others)
    order = np.lexsort((lowest, -np.concatenate([likeness, likeness]), ends))
    found, position = np.unique(ends[order], return_index=True)
    partner = np.full(groups, -1, dtype=np.int64)
    partner[found] = others[order][position]
    liking = np.full(groups, -np.inf)
    liking[found] = np.concatenate([likeness, likeness])[order][position]
    return partner, liking


def candidate_pairs(pool: Pool) -> tuple[Index, Index]:
    """Every pair of groups; beyond `ALL_PAIRS` of them, each with its nearest in one common whitening."""
    groups = len(pool)
    if groups <= ALL_PAIRS:
        first, second = np.triu_indices(groups, k=1)
        return first.astype(np.int64), second.astype(np.int64)
    points = _common_whitening(pool)
    neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS, groups - 1)).fit(points).kneighbors(return_distance=False)
    pairs = np.stack([np.repeat(np.arange(groups), neighbours.shape[1]), neighbours.ravel()], axis=1)
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def _common_whitening(pool: Pool) -> NDArray[np.float64]:
    """Class means and label shares on one scale for all groups, where distance² is roughly the test statistic."""
    total = np.maximum(pool.weight.sum(axis=0), 1e-12)
    covariance = np.einsum("gu,guij->uij", pool.weight, pool.covariance) / total[:, None, None]
    centre = np.einsum("gu,gui->ui", pool.weight, pool.mean) / total[:, None]
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 1e-6 * values.max(axis=1, keepdims=True) + 1e-30)
    present = (pool.weight >= 1)[..., None]
    white = np.einsum("gui,uij->guj", np.where(present, pool.mean - centre, 0.0), axes) / np.sqrt(values)
    typical = np.median(pool.weight[pool.weight > 0]) if (pool.weight > 0).any() else 1.0
    sizes = np.maximum(pool.labels.sum(axis=1, keepdims=True), 1e-12)
    shares = 2 * np.sqrt(pool.labels / sizes) * np.sqrt(np.median(sizes) / typical)
    return np.concatenate([white.reshape(len(pool), -1), shares], axis=1)
