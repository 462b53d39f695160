"""Noise-calibrated clustering: merge groups of clients as long as one distribution can explain both."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from fedflux.clustering.evidence.comparison import (
    FIRST_RULES,
    RULES,
    compare,
    label_evidence,
    log_splits,
)
from fedflux.clustering.evidence.pool import Array, Index, Pool
from fedflux.clustering.evidence.strongest import MOST_PAID, PAID
from fedflux.clustering.neighbours import approximate_neighbours
from fedflux.clustering.settling import settled
from fedflux.clustering.variation import UNKNOWN, Variation, estimate
from fedflux.clustering.variation.clumps import in_clumps
from fedflux.clustering.variation.spreads import LEAST_CLIENTS
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import EXACT

ALL_PAIRS = 65
"""Up to so many groups every pair is tested."""
NEIGHBOURS = 8
"""Beyond, each group is tested against so many of its nearest."""
SCOUTS = 3
"""Beyond 20,000 groups merging begins with so many of the nearest, as long as it gets along."""
WORTHWHILE = 0.95
"""Scouting ends with the first sweep that leaves more than this share of the groups."""
ENOUGH = 0.98
"""Beyond 20,000 groups everyone is looked at once more only if the last such look left less than this share of them."""
SAMPLED = 400
"""Beyond so many clients their variation is estimated from an even sample of as many."""
LOOKS = 8
"""How often clusters and the variation within them are estimated in turn, at most."""
REFUSED = -np.inf
"""The likeness of a pair whose test says no."""


class CalibratedClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Agglomerative clustering of descriptors in which every merge is a test. Needs no number of clusters.

    Groups that look most alike merge first; two groups merge only if the hypothesis that all their clients hold one
    distribution survives at level `alpha`, corrected for the number of ways the union could have been parted and for
    the number of such unions in the federation. What is left when no merge survives are the clusters, and clients
    that another of them explains clearly better than their own move there. Clients of one cluster may differ by nature:
    the size of that is estimated, and groups are parted only by more.

    Up to 65 groups every pair is tested, up to 20,000 each group with its eight nearest; beyond, neighbours are looked
    for in cells nearby instead of everywhere. The tests, and with them the level, are the same at every size.

    Parameters
    ----------
    alpha : float, default=0.01
        The probability that a federation without any shift is split at all.
    floor : float, optional
        Version 0.1's rules: no variation between clients, but differences of class means below so many within-class
        deviations do not count. By default the variation is estimated instead.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client.
    pool_ : Pool
        The pooled moments of every cluster, in order of label.
    variation_ : Variation
        What clients of one cluster differ by, as the tests granted it.
    """

    def __init__(self, alpha: float = 0.01, floor: float | None = None) -> None:
        self.alpha = alpha
        self.floor = floor

    def __sklearn_tags__(self) -> Any:
        """It takes descriptors, not an array of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags

    def fit(self, X: Descriptors, y: Any = None) -> Self:
        """Cluster labelled descriptors."""
        self.variation_ = self._variation(X)
        # made there, and again here, so that very many single clients are not held while groups merge
        pool, labels = self._agglomerate(partial(Pool.of, X), self.variation_)
        clients = Pool.of(X)
        self.labels_ = self._settled(clients, labels, self.variation_)
        self.pool_ = pool if self.labels_ is labels else clients.merge(self.labels_)
        return self

    def _settled(self, clients: Pool, labels: Index, variation: Variation) -> Index:
        """Everyone where it fits best; then clusters that nothing sets apart any more, once some have left, merge.

        A cluster of few examples merges with any that these cannot rule out, though another explains them far better:
        hence everyone settles once more.
        """
        moved = settled(clients, labels, variation)
        if moved is labels or self.floor is not None:
            return moved
        merged = self._agglomerate(partial(clients.merge, moved), variation)[1][moved]
        return merged if merged.max() == moved.max() else settled(clients, merged, variation)

    def _variation(self, descriptors: Descriptors) -> Variation:
        """The variation within the clusters that it leads to itself, from above.

        One cluster of all has the largest; what it cannot explain is split off, which leaves less, and so on until the
        same clusters come again. So clients that differ by one cloud of noise stay together, and clumps part. Where
        they are too few for that, clusters that sampling noise alone would give count if they leave nothing within.
        """
        if self.floor is not None:
            return Variation(floor=self.floor)
        if len(descriptors) < LEAST_CLIENTS:
            return UNKNOWN
        if len(descriptors) > SAMPLED:
            descriptors = descriptors.take(np.linspace(0, len(descriptors) - 1, SAMPLED).astype(np.int64))
        clients, labels = Pool.of(descriptors), np.zeros(len(descriptors), dtype=np.int64)
        variation = estimate(clients, labels)
        for _ in range(LOOKS):
            if not variation.estimated:
                break
            found = self._settled(clients, self._agglomerate(lambda: clients, variation)[1], variation)
            if adjusted_rand_score(found, labels) == 1:
                break
            labels, variation = found, estimate(clients, found).within(variation)
        if variation.means > 0:
            alone = variation.capped(0.0)
            found = self._settled(clients, self._agglomerate(lambda: clients, alone)[1], alone)
            variation = alone if in_clumps(clients, found) else variation
        return variation

    def _agglomerate(self, made: Callable[[], Pool], variation: Variation) -> tuple[Pool, Index]:
        """Merge while the test allows it: the groups, and where each of those that are made went."""
        pool = made()
        labels, clients = np.arange(len(pool)), int(pool.members.sum())
        tested, changed = _nothing(), np.ones(len(pool), dtype=bool)
        asking, scouting, looked = changed, len(pool) > EXACT, np.inf
        while len(pool) > 1:
            first, second = candidate_pairs(pool, SCOUTS if scouting else NEIGHBOURS, asking)
            fresh = (changed[first] | changed[second]) & ~tested.hold(first, second)
            tested = tested.join(self._test(pool, first[fresh], second[fresh], clients, variation))
            group = _couple(tested, len(pool), mutual=len(pool) <= ALL_PAIRS)
            sizes = np.bincount(group)
            if len(sizes) < len(pool):
                hopeful = np.bincount(group, weights=tested.hopes(len(pool))) > 0
                tested, changed = tested.kept(sizes[group] == 1, group), sizes > 1
                asking = changed | (hopeful & ~tested.hopes(len(sizes)))  # those whose partner went to another
                scouting = scouting and EXACT < len(sizes) < WORTHWHILE * len(pool)
                pool, labels = pool.merge(group), group[labels]
            elif (changed.all() and not scouting) or len(pool) > max(EXACT, ENOUGH * looked):
                break
            else:  # nothing new among what changed: look at every pair once more before stopping
                changed, scouting, looked = np.ones(len(pool), dtype=bool), False, len(pool)
                asking = changed
        return pool, labels

    def _test(self, pool: Pool, first: Index, second: Index, clients: int, variation: Variation = UNKNOWN) -> "_Pairs":
        """The pairs with their likeness, `REFUSED` where one distribution cannot explain both."""
        sizes = pool.members[first], pool.members[second]
        found = log_splits(*sizes) + np.log(clients / (sizes[0] + sizes[1]))
        level, rules = np.log(self.alpha), RULES if self.floor is None else FIRST_RULES
        likeness = np.full(len(first), REFUSED)
        rest = np.arange(len(first))
        if not pool.label_noise.any():  # labels alone refuse many a pair, and cost next to nothing
            paid = MOST_PAID if rules.leading else PAID
            shares = [
                paid + label_evidence(pool, first, second, floor, variation.labels, rules.expected)
                for floor in (0.0, variation.floor)
            ]
            rest = np.flatnonzero((shares[0] + found >= level) | ((shares[1] >= level) & (variation.floor > 0)))
        evidence = compare(pool, first[rest], second[rest], variation, rules)
        survives = evidence.total + found[rest] >= level
        if variation.floor > 0:
            survives |= evidence.trifle >= level
        likeness[rest] = np.where(survives, evidence.likeness, REFUSED)
        return _Pairs(first, second, likeness)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of groups that were tested, in order of their numbers, and how alike they are as far as they may merge."""

    first: Index
    second: Index
    likeness: Array

    def join(self, other: "_Pairs") -> "_Pairs":
        both = _Pairs(*(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(_Pairs)))
        order = np.argsort(both.keys(), kind="stable")  # two runs in order: a merge, not a sort
        return _Pairs(*(getattr(both, f.name)[order] for f in fields(_Pairs)))

    def keys(self) -> Index:
        """One number a pair, in the order of pairs."""
        return _keys(self.first, self.second)

    def hopes(self, groups: int) -> NDArray[np.bool_]:
        """Which groups have a partner they may merge with."""
        alive = self.likeness > REFUSED
        hopes = np.zeros(groups, dtype=bool)
        hopes[self.first[alive]] = hopes[self.second[alive]] = True
        return hopes

    def hold(self, first: Index, second: Index) -> NDArray[np.bool_]:
        """Which pairs are among these."""
        if not len(self.first):
            return np.zeros(len(first), dtype=bool)
        mine, asked = self.keys(), _keys(first, second)
        at = np.minimum(np.searchsorted(mine, asked), len(mine) - 1)
        return np.asarray(mine[at] == asked)

    def kept(self, alone: NDArray[np.bool_], group: Index) -> "_Pairs":
        """The pairs of which neither side merged, under their new numbers, which keep their order: tests stay."""
        still = alone[self.first] & alone[self.second]
        return _Pairs(group[self.first[still]], group[self.second[still]], self.likeness[still])


def _keys(first: Index, second: Index) -> Index:
    return (first << 32) | second


def _nothing() -> _Pairs:
    return _Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def _couple(pairs: _Pairs, groups: int, mutual: bool) -> Index:
    """Merge couples: those who prefer each other or, to get along faster among very many groups, every group with its
    preferred partner in order of liking, while both are free.
    """
    alive = pairs.likeness > REFUSED
    partner, liking = _best_partner(groups, pairs.first[alive], pairs.second[alive], pairs.likeness[alive])
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


def candidate_pairs(pool: Pool, neighbours: int, asking: NDArray[np.bool_]) -> tuple[Index, Index]:
    """Every pair of groups; beyond `ALL_PAIRS` of them, each with its nearest in one common whitening; beyond `EXACT`
    of them only those that ask, and looked for in cells nearby instead of everywhere.
    """
    groups = len(pool)
    if groups <= ALL_PAIRS:
        first, second = np.triu_indices(groups, k=1)
        return first.astype(np.int64), second.astype(np.int64)
    points = common_whitening(pool)
    count = min(neighbours, groups - 1)
    if groups <= EXACT:
        near = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(return_distance=False).astype(np.int64)
    else:
        near = approximate_neighbours(points, count, asking)
    one, other = np.repeat(np.arange(groups), count), near.ravel()
    found = (other >= 0) & (one != other)
    keys = np.unique((np.minimum(one, other) * groups + np.maximum(one, other))[found])
    return keys // groups, keys % groups


def common_whitening(pool: Pool) -> NDArray[np.float64]:
    """Class means and label shares on one scale for all groups, where distance² is roughly the test statistic."""
    total = np.maximum(pool.weight.sum(axis=0), 1e-12)
    covariance = np.einsum("gu,guij->uij", pool.weight, pool.covariance) / total[:, None, None]
    centre = np.einsum("gu,gui->ui", pool.weight, pool.mean) / total[:, None]
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 1e-6 * values.max(axis=1, keepdims=True) + 1e-30)
    typical = np.median(pool.weight[pool.weight > 0]) if (pool.weight > 0).any() else 1.0
    if pool.noise.any():
        values = values + typical * np.median(pool.noise[pool.noise > 0])
    present = (pool.weight >= 1)[..., None]
    white = np.einsum("gui,uij->guj", np.where(present, pool.mean - centre, 0.0), axes) / np.sqrt(values)
    sizes = np.maximum(pool.labels.sum(axis=1, keepdims=True), 1e-12)
    shares = 2 * np.sqrt(np.maximum(pool.labels, 0) / sizes) * np.sqrt(np.median(sizes) / typical)
    return np.concatenate([white.reshape(len(pool), -1), shares], axis=1)
