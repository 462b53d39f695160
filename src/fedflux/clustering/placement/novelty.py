"""Is an unlabelled client like any cluster, and how sure is its placement? A test calibrated on validation splits.

The statistic of cluster m is the squared Mahalanobis distance T_m between the client's mean and the cluster's. Where
the client belongs, T_m is noise of size l·c_m, with c_m learned from how far validation means, which the model has not
trained on either, lie from the training of the other members. Differences below `FLOOR` deviations are trifles that
the test does not look for, however many images show them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as fisher

from fedflux.clustering.placement.marginals import ENTRIES, Marginals
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import group_sums, spans
from fedflux.placement import Placement

Array = NDArray[np.float64]

LEVEL = 0.05
"""Clients of known patterns that may be called novel, at most."""
FLOOR = 0.15
"""Mahalanobis distance up to which a client counts as like a cluster: about a seventh of a standard deviation."""
CANDIDATES = 4
"""Clusters that a client is tested against: the nearest."""
CERTAIN = 1e9
"""Degrees of freedom where nothing had to be estimated."""


@dataclass(frozen=True, eq=False)
class Null:
    """How far a client that belongs to a cluster lies from the cluster's mean."""

    noise: Array
    """(M,): variance that privacy added to each coordinate of the mean."""
    scale: float
    """φ ≥ 1: how much larger than sampling noise the members' own distances are."""
    usual: float
    """ū: the sampling noise at which φ was seen."""
    dimensions: float
    """d ≤ l: in how many directions members differ, as the tail of a sum of squares sees it."""
    freedom: float
    """ν: degrees of freedom behind φ."""
    calibrated: bool = True
    """Whether anybody held a validation part to learn it from; else nobody is called novel."""

    @staticmethod
    def of(descriptors: Descriptors, labels: NDArray[np.int64], marginals: Marginals) -> "Null":
        """Learn it from the validation means, each beside the training of the others in its cluster.

        A member that is alone is held beside its own training, which tells all but how clients of one cluster differ.
        """
        clusters, weight, known = len(marginals.mean), descriptors.effective[:, 0], descriptors.noise[:, 0]
        shaken = group_sums(weight**2 * known, labels, clusters)
        noise = shaken / marginals.weight**2
        held = np.flatnonzero(descriptors.validation_count > 0)
        if not len(held):
            return Null(noise, 1.0, 0.0, float(marginals.mean.shape[1]), CERTAIN, calibrated=False)
        own, members = labels[held], np.bincount(labels, minlength=clusters)
        alone = members[own] == 1
        left = np.where(alone, 0.0, weight[held])
        others = marginals.weight[own] - left
        total = marginals.weight[own, None] * marginals.mean[own]
        beside = (total - left[:, None] * descriptors.mean[held, 0]) / others[:, None]
        sampling = 1 / descriptors.validation_count[held] + 1 / others
        added = descriptors.validation_noise[held] + (shaken[own] - left**2 * known[held]) / others**2
        values, axes = _eigen(marginals.covariance)
        products = np.zeros(axes.shape[1:])
        for rows in spans(len(held)):
            turn = axes[own[rows]]
            turned = np.einsum("ki,kij->kj", descriptors.validation_mean[held[rows]] - beside[rows], turn)
            apart = turned / np.sqrt(sampling[rows, None] * values[own[rows]] + added[rows, None])
            white = np.einsum("kj,kij->ki", apart, turn)
            products += white.T @ white / len(held)
        free = float(len(held) - (np.bincount(own[~alone], minlength=clusters) > 0).sum())
        dimensions = _dimensions(products, free)
        scale = max(1.0, float(np.trace(products)) / len(products))
        return Null(noise, scale, float(sampling.mean()), dimensions, dimensions * max(free, 0.5))

    def spread(self, count: Array, weight: Array) -> Array:
        """c (clients × clusters): u + (φ − 1)·max(u, ū) with the sampling noise u = 1/n + 1/N.

        What exceeds sampling noise may shrink with more images or not (members may really differ a little), and a
        federation whose clients are of one size cannot tell; this holds in both cases.
        """
        sampling = 1 / np.maximum(count, 1)[:, None] + 1 / weight[None]
        return np.asarray(sampling + (self.scale - 1) * np.maximum(sampling, self.usual))


def judge(
    marginals: Marginals,
    null: Null,
    unlabelled: Descriptors,
    level: float = LEVEL,
    placed: tuple[NDArray[np.int64], Array] | None = None,
) -> Placement:
    """Place unlabelled clients, say which fit nowhere, and how sure each placement is.

    `placed` are clusters and distances by another rule than the calibrated one. A client that belongs is like its own
    cluster at least, so that calling novel who is below the level for every cluster errs at most that often.
    """
    nearest, distances = marginals.nearest(unlabelled) if placed is None else placed
    values, axes = _eigen(marginals.covariance)
    length = marginals.mean.shape[1]
    volume = np.log(values).sum(axis=1)
    score, posterior = np.empty(len(nearest)), np.empty(distances.shape)
    for rows in spans(len(nearest), max(ENTRIES // (length * len(marginals.mean)), 1)):
        count = unlabelled.effective[rows, 0]
        spread = null.spread(count, marginals.weight)
        gap = np.einsum("kmi,mij->kmj", unlabelled.mean[rows, 0][:, None] - marginals.mean[None], axes)
        added = null.scale * (unlabelled.noise[rows, 0][:, None] + null.noise[None]) / spread
        apart = (gap**2 / (values[None] + added[..., None])).sum(axis=2)
        score[rows] = _like_any(null, apart / (length * spread), FLOOR**2 / (length * spread))
        tail = (null.freedom + length) * np.log1p(apart / (spread * null.freedom))
        evidence = -0.5 * (tail + volume[None] + length * np.log(spread))
        evidence -= evidence.max(axis=1, keepdims=True)
        likely = np.exp(evidence)
        posterior[rows] = likely / likely.sum(axis=1, keepdims=True)
    if not null.calibrated:
        score[:] = 1.0  # trained images against others prove nothing
    calibrated = np.full(len(nearest), null.calibrated)
    return Placement(nearest, score < level, score, posterior, calibrated, distances)


def _like_any(null: Null, ratio: Array, trifle: Array) -> Array:
    """The largest p-value over clusters (the few nearest decide it) of F's tail with a difference of `FLOOR` allowed.

    Patnaik's approximation of the non-central F: an F of the same mean and variance.
    """
    few = min(CANDIDATES, ratio.shape[1])
    near = np.argpartition(ratio, few - 1, axis=1)[:, :few]
    x, r = np.take_along_axis(ratio, near, axis=1), np.take_along_axis(trifle, near, axis=1)
    freedom = null.dimensions * (1 + r) ** 2 / (1 + 2 * r)
    tails = np.asarray(fisher.sf(x / (1 + r), freedom, null.freedom), dtype=np.float64)
    return np.asarray(tails.max(axis=1))


def _eigen(covariance: Array) -> tuple[Array, Array]:
    """Variances along principal axes, kept above zero, and the axes."""
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 0)
    return np.asarray(values + 1e-6 * values.mean(axis=1, keepdims=True) + 1e-30), np.asarray(axes)


def _dimensions(products: Array, free: float) -> float:
    """(Σλ)² / Σλ² of the members' differences, undoing what a sample of them adds to either sum; l where too few."""
    length = float(len(products))
    if free <= 1:
        return length
    trace, squares = np.trace(products) ** 2, float((products**2).sum())
    inner = max(free**2 / ((free - 1) * (free + 2)) * (squares - trace / free), 0.0)
    outer = trace - 2 * inner / free
    return float(np.clip(outer / inner, 1.0, length)) if inner > 0 else length
