"""After merging: clients that another cluster explains clearly better than their own move there.

Merging two clients rests on their few examples alone, and whom a client was merged with first is never undone. Whole
clusters know better: against their pooled means a client's noise is all that is left.
"""

import numpy as np
from numpy.typing import NDArray

from fedflux.flux.evidence import Array, Index, Pool
from fedflux.flux.sums import group_sums, spans

CLEARLY = 12.0
"""Twice the log-likelihood by which another cluster must explain a client better: a coincidence of one in 400."""
PASSES = 5
ENTRIES = 1_000_000
"""Distances computed at once, which bounds memory."""
MOST = 200_000_000
"""Clients times clusters up to which everyone is compared with every cluster; beyond, they stay where they are."""


def settled(pool: Pool, labels: Index) -> Index:
    """Clusters of single clients (the groups of `pool`) after everyone has moved who should; empty ones are gone."""
    if pool.noise.any() or pool.label_noise.any():
        return labels  # privacy's noise is larger than what this could mend
    points, weight = _white_means(pool), np.where(pool.weight >= 1, pool.weight, 0.0)
    shares, sizes = _label_points(pool)
    for _ in range(PASSES):
        clusters = int(labels.max()) + 1
        if clusters == 1 or clusters * len(pool) > MOST:
            break
        moved = _moves(_Side(points, weight, shares, sizes), labels, clusters)
        if np.array_equal(moved, labels):
            break
        labels = np.unique(moved, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return labels


class _Side:
    """Groups with whitened class means (G, U, l) of weight (G, U) and label points (G, U) of weight (G,)."""

    def __init__(self, points: Array, weight: Array, shares: Array, sizes: Array) -> None:
        self.points, self.weight, self.shares, self.sizes = points, weight, shares, sizes

    def take(self, rows: Index | slice) -> "_Side":
        return _Side(self.points[rows], self.weight[rows], self.shares[rows], self.sizes[rows])

    def merged(self, labels: Index, clusters: int) -> "_Side":
        weight, sizes = group_sums(self.weight, labels, clusters), group_sums(self.sizes, labels, clusters)
        first = group_sums(self.weight[..., None] * self.points, labels, clusters)
        counts = group_sums(self.shares**2 * self.sizes[:, None], labels, clusters)
        shares = np.sqrt(counts / np.maximum(sizes, 1e-12)[:, None])
        return _Side(first / np.maximum(weight, 1e-12)[..., None], weight, shares, sizes)

    def without(self, others: "_Side") -> "_Side":
        """Each group less one of its members, row by row."""
        weight, sizes = np.maximum(self.weight - others.weight, 0.0), np.maximum(self.sizes - others.sizes, 0.0)
        first = self.weight[..., None] * self.points - others.weight[..., None] * others.points
        counts = np.maximum(self.shares**2 * self.sizes[:, None] - others.shares**2 * others.sizes[:, None], 0.0)
        points = first / np.maximum(weight, 1e-12)[..., None]
        return _Side(points, weight, np.sqrt(counts / np.maximum(sizes, 1e-12)[:, None]), sizes)


def _moves(clients: _Side, labels: Index, clusters: int) -> Index:
    """One pass: the cluster of everyone, each judged against its own cluster without it."""
    groups = clients.merged(labels, clusters)
    moved = labels.copy()
    for rows in spans(len(labels), max(ENTRIES // clusters, 1)):
        some, own = clients.take(rows), labels[rows]
        rest = groups.take(own).without(some)
        distances = _distances(some, groups)
        at = np.arange(len(own))
        distances[at, own] = np.inf
        best = distances.argmin(axis=1)
        # compared on the classes that both clusters know, so that a small cluster is not better for knowing less
        nearest = groups.take(best)
        both = (rest.weight >= 1) & (nearest.weight >= 1)
        gain = _paired(some, rest, both) - _paired(some, nearest, both)
        alone = rest.sizes <= 1e-9
        moved[rows] = np.where((gain > CLEARLY) & ~alone, best, own)
    return moved


def _distances(clients: _Side, groups: _Side) -> Array:
    """(clients × groups) T² of class means and label shares together."""
    total = _precision(clients.sizes[:, None], groups.sizes[None]) * 4 * _squared(clients.shares, groups.shares)
    for u in range(clients.weight.shape[1]):
        scale = _precision(clients.weight[:, u, None], groups.weight[None, :, u])
        total += scale * _squared(clients.points[:, u], groups.points[:, u])
    return np.asarray(total)


def _paired(clients: _Side, groups: _Side, classes: NDArray[np.bool_]) -> Array:
    """The same of one group for each client, over some classes."""
    squared = ((clients.points - groups.points) ** 2).sum(axis=2)
    means = (np.where(classes, _precision(clients.weight, groups.weight), 0.0) * squared).sum(axis=1)
    labels = _precision(clients.sizes, groups.sizes) * 4 * ((clients.shares - groups.shares) ** 2).sum(axis=1)
    return np.asarray(means + labels)


def _precision(first: Array, second: Array) -> Array:
    """1/(1/n + 1/m), 0 where either has nothing."""
    both = first * second
    return np.asarray(np.divide(both, first + second, out=np.zeros_like(both), where=both > 0))


def _squared(first: Array, second: Array) -> Array:
    squared = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None] - 2 * first @ second.T
    return np.asarray(np.maximum(squared, 0.0))


def _white_means(pool: Pool) -> Array:
    """Class means where the federation's pooled scatter within clients and classes is the unit."""
    freedom = np.maximum(pool.weight - pool.holders, 0.0).sum(axis=0)
    total = np.einsum("gu,guij->uij", pool.weight, pool.covariance).astype(np.float64)
    length = pool.mean.shape[2]
    average = total.sum(axis=0) / max(freedom.sum(), 1.0)
    covariance = (total + 2.0 * length * average) / np.maximum(freedom + 2.0 * length, 1.0)[:, None, None]
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 1e-6 * values.max(axis=1, keepdims=True) + 1e-30)
    centre = np.einsum("gu,gui->ui", pool.weight, pool.mean) / np.maximum(pool.weight.sum(axis=0), 1e-12)[:, None]
    return np.asarray(np.einsum("gui,uij->guj", pool.mean - centre, axes) / np.sqrt(values))


def _label_points(pool: Pool) -> tuple[Array, Array]:
    """Square roots of label shares, in which distance² is a quarter of χ² over precision, and how many examples."""
    counts = np.maximum(pool.labels, 0.0)
    sizes = counts.sum(axis=1)
    return np.sqrt(counts / np.maximum(sizes, 1e-12)[:, None]), sizes
