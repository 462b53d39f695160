"""By how much the spreads within classes of clients of one cluster scatter, whatever kurtosis they have."""

from functools import lru_cache

import numpy as np

from fedflux.clustering.evidence.pool import Array, Index, Pool
from fedflux.descriptors.sums import group_sums

LEAST_CLIENTS = 5
"""Clients of a federation below which nothing is estimated."""
LEAST_RESIDUALS = 4
"""Clients less clusters, which is how many differences there are to estimate from, below which nothing is."""
SPREAD_FREEDOM = 10.0
"""Degrees of freedom that a client's class must have for its spread to be counted."""
SPREAD_PRIOR = 5.0
"""Clients' worth of the average over classes that the scatter of each class's spread is shrunk with."""
LEAST_SPREAD = float(np.log(2))
"""Variances that differ by less than this, in logarithms and over all classes, are no difference of spread: heavy tails
alone make as much."""
NO_LIMIT = 1e12
CLUMPED = 4.0
"""Clients whose spreads scatter so many times as much as their densest quarter says are of several kinds."""


def log_spreads(pool: Pool) -> Array:
    """(G, U): the logarithm of the variance within classes, summed over coordinates: those that hardly vary, and whose
    logarithms would scatter most, count least.
    """
    variance = np.einsum("guii->gu", pool.covariance) * (pool.weight / np.maximum(pool.freedom, 1.0))
    return np.asarray(np.log(np.maximum(variance, 1e-30)))


def relative_spreads(pool: Pool) -> Array:
    """(G,): how wide each client's classes are beside everybody's pooled ones, in variance, on average over classes."""
    known = pool.freedom >= SPREAD_FREEDOM
    weight, spread = np.where(known, pool.freedom, 0.0), log_spreads(pool)
    pooled = (weight * np.exp(spread)).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-12)
    apart = np.where(known, spread - np.log(np.maximum(pooled, 1e-30)), 0.0)
    return np.asarray(np.exp(apart.sum(axis=1) / np.maximum(known.sum(axis=1), 1)))


def spreads_of(pool: Pool, labels: Index, clusters: int) -> tuple[Array, Array]:
    """ψ and its degrees of freedom: how far spreads of clients of one cluster scatter, whatever kurtosis they have."""
    weight = np.where(pool.freedom >= SPREAD_FREEDOM, pool.freedom, 0.0)
    spread = log_spreads(pool)
    total = group_sums(weight, labels, clusters)
    centre = group_sums(weight * spread, labels, clusters) / np.maximum(total, 1e-12)
    scatter = (weight * (spread - centre[labels]) ** 2).sum(axis=0)
    held = group_sums((weight > 0).astype(np.float64), labels, clusters)
    freedom = np.maximum(held - 1, 0).sum(axis=0)
    if freedom.max(initial=0.0) < LEAST_RESIDUALS:
        return np.zeros(0), np.zeros(0)
    if clusters == 1:  # there may be several yet
        dense = freedom * _densest(spread, weight)
        if dense.sum() * CLUMPED < scatter.sum():
            scatter = np.minimum(scatter, dense)
    average = scatter.sum() / freedom.sum()
    known = freedom + SPREAD_PRIOR
    return (scatter + SPREAD_PRIOR * average) / known, known


def _densest(spread: Array, weight: Array) -> Array:
    """(U,): ψ by the densest quarter of the clients, which clusters of other spreads do not widen."""
    found = np.full(spread.shape[1], np.inf)
    for u in range(spread.shape[1]):
        rows = np.flatnonzero(weight[:, u] > 0)
        large = rows[weight[rows, u] >= np.median(weight[rows, u])] if len(rows) else rows
        if len(large) >= LEAST_CLIENTS:
            found[u] = weight[large, u].max() * (_shortest(spread[large, u]) / _usual_shortest(len(large))) ** 2
    known = np.isfinite(found)
    least = np.median(found[known]) if known.any() else NO_LIMIT
    return np.where(known, np.maximum(found, least), NO_LIMIT)


def _shortest(values: Array) -> float:
    """The shortest interval that holds a quarter of the values, and three at least."""
    ordered, count = np.sort(values), max(-(-len(values) // 4), 3)
    return float((ordered[count - 1 :] - ordered[: len(values) - count + 1]).min())


@lru_cache(maxsize=64)
def _usual_shortest(clients: int) -> float:
    """What that interval is among so many standard normal values: the median of many draws."""
    draws = np.random.default_rng(0).normal(size=(501, clients))
    return float(np.median([_shortest(one) for one in draws]))
