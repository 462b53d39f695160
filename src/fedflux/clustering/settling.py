"""After merging: clients that another cluster explains clearly better than their own move there.

Merging two clients rests on their few examples alone, and whom a client was merged with first is never undone. Whole
clusters know better: against their pooled means a client's own noise is nearly all that is left.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.evidence.label_counts import fitted_prior, log_predictive, observed
from fedflux.clustering.evidence.pool import Array, Index, Pool, typical_weight, white_means
from fedflux.clustering.variation import UNKNOWN, Variation
from fedflux.clustering.variation.spreads import SPREAD_FREEDOM, log_spreads
from fedflux.descriptors.sums import group_sums, spans

CLEARLY = 10.0
"""By how much another cluster must explain a client better, besides 2·log M for the choice among M of them."""
AT_ONCE = 8
"""One in so many of a cluster's members, at least one, may leave or join it at a time: both sides of a swap that move
at once would only change places."""
PASSES = 20
FREEDOM = 10.0
"""Degrees of freedom that each coordinate of the common whitening must have; with fewer, everyone stays."""
ENTRIES = 1_000_000
"""Distances computed at once, which bounds memory."""
MOST = 200_000_000
"""Clients times clusters up to which everyone is compared with every cluster; beyond, they stay where they are."""


def settled(pool: Pool, labels: Index, variation: Variation = UNKNOWN) -> Index:
    """Clusters of single clients (the groups of `pool`) after everyone has moved who should; empty ones are gone."""
    freedom = pool.freedom.sum()
    if freedom < FREEDOM * pool.mean.shape[2] or pool.noise.any() or pool.label_noise.any():
        return labels  # too little to tell noise by; or privacy's noise, which is larger than what this could mend
    clients = _Groups.of(pool, variation)
    for _ in range(PASSES):
        clusters = int(labels.max()) + 1
        if clusters == 1 or clusters * len(pool) > MOST:
            break
        moved = _moves(clients, labels, clusters)
        if np.array_equal(moved, labels):
            break
        labels = np.unique(moved, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return labels


@dataclass(frozen=True, eq=False)
class _Groups:
    """Clients or clusters: whitened class means with the examples behind each, and label counts."""

    points: Array
    """(G, U, l), in which scatter within classes is one."""
    weight: Array
    """(G, U)."""
    counts: Array
    """(G, U)."""
    spread: Array
    """(G, U): mean log variances within classes."""
    firmness: Array
    """(G, U): precisions of those; 0 where spreads are not compared."""

    @staticmethod
    def of(pool: Pool, variation: Variation) -> "_Groups":
        """Clients that vary by nature say less: 1/(1/e + τ²) examples' worth of means, 1/(1/n + ρ²) of labels."""
        weight = np.where(pool.weight >= 1, pool.weight, 0.0)
        counts = observed(pool.labels, pool.weight)
        fewer = 1 + variation.labels**2 * counts.sum(axis=1, keepdims=True)
        points = white_means(pool, variation.along, variation.apart)
        own = variation.whitened
        worth = (1 + own * typical_weight(pool)) / (1 + own * weight)  # one for a client of typical size
        return _Groups(points, weight * worth, counts / fewer, *_spreads(pool, variation))

    @property
    def sizes(self) -> Array:
        """(G,)."""
        return np.asarray(self.counts.sum(axis=1))

    @property
    def roots(self) -> Array:
        """(G, U): square roots of label shares, in which squared distance is a quarter of χ² over precision."""
        return np.asarray(np.sqrt(self.counts / np.maximum(self.sizes, 1e-12)[:, None]))

    def take(self, rows: Index | slice) -> "_Groups":
        return _Groups(*(getattr(self, field.name)[rows] for field in fields(_Groups)))

    def merged(self, labels: Index, clusters: int) -> "_Groups":
        every = (self.weight, self.counts, self.firmness, self.firmness * self.spread)
        weight, counts, firmness, spread = (group_sums(values, labels, clusters) for values in every)
        first = group_sums(self.weight[..., None] * self.points, labels, clusters)
        return _Groups(_over(first, weight), weight, counts, spread / np.maximum(firmness, 1e-12), firmness)

    def without(self, others: "_Groups") -> "_Groups":
        """Each group less one of its members, row by row."""
        weight = np.where(self.weight - others.weight >= 1, self.weight - others.weight, 0.0)
        first = self.weight[..., None] * self.points - others.weight[..., None] * others.points
        counts = self.counts - others.counts
        firmness = np.where(
            self.firmness - others.firmness > 1e-6 * self.firmness, self.firmness - others.firmness, 0.0
        )
        spread = (self.firmness * self.spread - others.firmness * others.spread) / np.maximum(firmness, 1e-12)
        return _Groups(_over(first, weight), weight, np.where(counts > 1e-9, counts, 0.0), spread, firmness)


def _spreads(pool: Pool, variation: Variation) -> tuple[Array, Array]:
    """Mean log variances and their precisions ν/ψ, 0 where nothing tells how far they scatter."""
    if not len(variation.spreads):
        return np.zeros_like(pool.weight), np.zeros_like(pool.weight)
    firm = np.where(pool.freedom >= SPREAD_FREEDOM, pool.freedom / np.maximum(variation.spreads, 1e-12), 0.0)
    return log_spreads(pool), firm


def _over(sums: Array, weight: Array) -> Array:
    return np.asarray(sums / np.maximum(weight, 1e-12)[..., None])


def _moves(clients: _Groups, labels: Index, clusters: int) -> Index:
    """One pass: the cluster of everyone, each judged against its own cluster without it."""
    groups = clients.merged(labels, clusters)
    prior = fitted_prior(groups.counts)
    best, gain = np.empty_like(labels), np.empty(len(labels))
    for rows in spans(len(labels), max(ENTRIES // clusters, 1)):
        some, own = clients.take(rows), labels[rows]
        rest = groups.take(own).without(some)
        distances = _distances(some, groups)
        distances[np.arange(len(own)), own] = np.inf
        best[rows] = distances.argmin(axis=1)
        gain[rows] = np.where(rest.sizes > 1e-9, _gain(some, rest, groups.take(best[rows]), prior), -np.inf)
    return _few_at_a_time(labels, best, gain, CLEARLY + 2 * np.log(clusters))


def _few_at_a_time(labels: Index, best: Index, gain: Array, bar: float) -> Index:
    """Those who gain most move first, and no cluster changes by more than a few."""
    moved = labels.copy()
    room = np.maximum(np.bincount(labels, minlength=int(max(labels.max(), best.max())) + 1) // AT_ONCE, 1)
    for client in np.argsort(-gain, kind="stable"):
        if gain[client] <= bar:
            break
        ends = labels[client], best[client]
        if room[ends[0]] > 0 and room[ends[1]] > 0:
            moved[client] = best[client]
            room[ends[0]] -= 1
            room[ends[1]] -= 1
    return moved


def _gain(clients: _Groups, own: _Groups, other: _Groups, prior: Array) -> Array:
    """By how much the other group explains each client better than its own: its means and its labels.

    Means are compared on the classes that both groups know: in squared distances and in twice the log-likelihood,
    whichever is less. A small group is uncertain: distances to it are measured in larger units, which favours it, and
    its likelihood is spread wider, which counts against it. Labels are judged the same way or, where that says more, by
    their predictive likelihood alone, which sees what distances of shares do not: that a label cannot be.
    """
    both = (own.weight > 0) & (other.weight > 0)
    of_means = _less(*(_means_apart(clients, group, both) for group in (own, other)))
    of_labels = _less(*(_labels_apart(clients, group) for group in (own, other)))
    known = (own.counts > 0) | (other.counts > 0)
    likely = [log_predictive(clients.counts, group.counts, known, prior) for group in (own, other)]
    likelier = 2 * (likely[1] - likely[0])
    of_means = of_means + _less(*(_spreads_apart(clients, group, own, other) for group in (own, other)))
    return np.asarray(of_means + np.where(likelier > 0, np.maximum(of_labels, likelier), likelier))


def _less(own: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
    """The difference of squared distances, or that with the logarithms of determinants, whichever is less."""
    nearer = own[0] - other[0]
    return np.asarray(np.minimum(nearer, nearer + own[1] - other[1]))


def _means_apart(clients: _Groups, groups: _Groups, classes: NDArray[np.bool_]) -> tuple[Array, Array]:
    """T² of one group for each client over some classes, and the logarithm of the determinant that goes with it."""
    precision = np.where(classes, _precision(clients.weight, groups.weight), 0.0)
    spread = -np.log(np.where(precision > 0, precision, 1.0)).sum(axis=1) * clients.points.shape[2]
    return (precision * ((clients.points - groups.points) ** 2).sum(axis=2)).sum(axis=1), spread


def _spreads_apart(clients: _Groups, groups: _Groups, own: _Groups, other: _Groups) -> tuple[Array, Array]:
    """The same of spreads, on classes whose spread both groups know."""
    both = (own.firmness > 0) & (other.firmness > 0)
    precision = np.where(both, _precision(clients.firmness, groups.firmness), 0.0)
    wide = -np.log(np.where(precision > 0, precision, 1.0)).sum(axis=1)
    return (precision * (clients.spread - groups.spread) ** 2).sum(axis=1), wide


def _labels_apart(clients: _Groups, groups: _Groups) -> tuple[Array, Array]:
    """The same of label shares."""
    precision = _precision(clients.sizes, groups.sizes)
    free = max(clients.counts.shape[1] - 1, 1)
    squared = precision * 4 * ((clients.roots - groups.roots) ** 2).sum(axis=1)
    return squared, -np.log(np.maximum(precision, 1e-12)) * free


def _distances(clients: _Groups, groups: _Groups) -> Array:
    """(clients × groups) T² of class means and label shares together; a class that a group lacks counts as noise."""
    total = _precision(clients.sizes[:, None], groups.sizes[None]) * 4 * _squared(clients.roots, groups.roots)
    for u in range(clients.weight.shape[1]):
        scale = _precision(clients.weight[:, u, None], groups.weight[None, :, u])
        total += scale * _squared(clients.points[:, u], groups.points[:, u])
        if clients.firmness.any():
            firm = _precision(clients.firmness[:, u, None], groups.firmness[None, :, u])
            total += firm * (clients.spread[:, u, None] - groups.spread[None, :, u]) ** 2
        total += np.where((scale == 0) & (clients.weight[:, u, None] > 0), clients.points.shape[2], 0.0)
    return np.asarray(total)


def _precision(first: Array, second: Array) -> Array:
    """1/(1/n + 1/m), 0 where either has nothing."""
    both = first * second
    return np.asarray(np.divide(both, first + second, out=np.zeros_like(both), where=both > 0))


def _squared(first: Array, second: Array) -> Array:
    squared = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None] - 2 * first @ second.T
    return np.asarray(np.maximum(squared, 0.0))
