"""Following clients whose data drifts: has one drifted, which clusters are new, which past ones come back?"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering import Clusters
from fedflux.clustering.change.displacement import log_displacement
from fedflux.clustering.evidence.comparison import EFFECT_FLOOR, Pool, compare
from fedflux.clustering.placement.marginals import Marginals, cluster_centroids
from fedflux.descriptors.descriptor import Descriptors, make_descriptors
from fedflux.descriptors.moments import Moments

FALSE_ALARMS = 0.01
"""Rounds without drift, of a hundred, in which somebody may be said to drift: 1."""
TWO = float(np.log(2))
"""What the stronger of two tests pays for the choice."""


def drifted(old: Descriptors, new: Descriptors, rate: float) -> NDArray[np.bool_]:
    """Which clients hold another distribution than before, by descriptors of disjoint examples, row by row.

    A client that holds the same is said to drift with probability `rate` at most; differences too small to matter
    (`EFFECT_FLOOR`) are none.
    """
    both, rows = Pool.of(old).join(Pool.of(new)), np.arange(len(old))
    evidence = compare(both, rows, rows + len(old))
    return np.asarray((evidence.total < np.log(rate)) & (evidence.trifle < np.log(rate)))


def log_change(old: Descriptors, new: Descriptors) -> NDArray[np.float64]:
    """Log p of "the same distribution" for each client, by descriptors of disjoint examples, row by row.

    The stronger of two counts, and pays for the choice: the test that clusters are merged by, and that of a
    displacement that all classes share. Differences too small to matter (`EFFECT_FLOOR`) are none.
    """
    both, rows = Pool.of(old).join(Pool.of(new)), np.arange(len(old))
    evidence = compare(both, rows, rows + len(old))
    apart = np.maximum(evidence.total, evidence.trifle)
    shared = log_displacement(both, rows, rows + len(old), EFFECT_FLOOR)
    return stronger(apart, shared)


def stronger(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log p of the stronger of two tests of each client (Bonferroni)."""
    return np.asarray(np.minimum(TWO + np.minimum(first, second), 0.0))


def alarms(log_p: NDArray[np.float64], rate: float) -> NDArray[np.bool_]:
    """Which of K clients drifted, by log p-values of each (Benjamini and Hochberg, at level `rate`).

    Where nobody drifted, somebody is said to with probability `rate` at most, however many clients there are; where
    some did, at most this share of those that are said to did not, in expectation.
    """
    count = len(log_p)
    limits = np.log(rate) + np.log(np.arange(1, count + 1) / max(count, 1))
    below = np.flatnonzero(np.sort(log_p) <= limits)
    return np.asarray(log_p <= limits[below[-1]]) if len(below) else np.zeros(count, dtype=bool)


@dataclass(frozen=True, eq=False)
class History:
    """What clients told, in two parts that are tested against each other: slow drift hides in the sum of both.

    `recent` grows by every chunk. Once it weighs as much as `first` it is added to it, and begins again: at any time
    `first` is at least half of all, and `recent` on average the last quarter of it.
    """

    first: Descriptors
    recent: Descriptors

    @staticmethod
    def of(described: Descriptors) -> "History":
        """Of clients that told nothing since."""
        return History(described, empty_descriptors(described))

    def grown(self, chunk: Descriptors) -> "History":
        """With one more chunk of each client."""
        return History(self.first, add_descriptors(self.recent, chunk))

    def folded(self) -> "History":
        """With `recent` added to `first` where it weighs as much."""
        full = self.recent.effective[:, 0] >= self.first.effective[:, 0]
        if not full.any():
            return self
        both, none = add_descriptors(self.first, self.recent), empty_descriptors(self.recent)
        return History(choose(full, both, self.first), choose(full, none, self.recent))

    def log_change(self) -> NDArray[np.float64]:
        """Log p of "the same distribution first and recently"; 0 where nothing recent is told."""
        return log_change(self.first, self.recent)


def empty_descriptors(like: Descriptors) -> Descriptors:
    """What clients that hold nothing would send, as many as these."""
    eye = np.broadcast_to(np.eye(like.correlation.shape[-1]), like.correlation.shape).copy()
    nothing = {one.name: np.zeros_like(getattr(like, one.name)) for one in fields(like)}
    return Descriptors(**{**nothing, "correlation": eye})


def choose(first_ones: NDArray[np.bool_], first: Descriptors, second: Descriptors) -> Descriptors:
    """Row by row, of these descriptors or of those."""

    def either(name: str) -> Any:
        one, other = getattr(first, name), getattr(second, name)
        return np.where(first_ones.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    return Descriptors(**{one.name: either(one.name) for one in fields(first)})


def add_descriptors(old: Descriptors, new: Descriptors) -> Descriptors:
    """What clients would have sent of both samples together, row by row; the samples have no example in common.

    Counts add, and so do sums and sums of squares. The validation part is the newer one's. Noisy counts of private
    descriptors say nothing of classes too small to be described; those weigh nothing.
    """
    count = old.count + new.count
    private = ((old.count_noise > 0) | (new.count_noise > 0))[:, None]
    weights = [np.where(private, one.effective, one.count) for one in (old, new)]
    share = weights[1] / np.maximum(weights[0] + weights[1], np.where(private, 1e-12, 1.0))
    gap = new.mean - old.mean
    s, wide = share[..., None], share[..., None, None]
    mean = old.mean + s * gap
    between = wide * (1 - wide) * gap[..., :, None] * gap[..., None, :]
    covariance = (1 - wide) * _covariances(old) + wide * _covariances(new) + between
    flat = (1 - s) * old.deviations() ** 2 + s * new.deviations() ** 2 + s * (1 - s) * gap**2
    diagonal = np.arange(mean.shape[2])
    covariance[..., diagonal, diagonal] = np.where(private[..., None], flat, covariance[..., diagonal, diagonal])
    together = [Moments(*one) for one in zip(count, mean, covariance, strict=True)]
    made = make_descriptors(together, list(_effective(old, new)), full_covariance=old.spread.ndim == 4)
    return replace(
        made,
        noise=(1 - share) ** 2 * old.noise + share**2 * new.noise,
        validation_mean=new.validation_mean,
        validation_count=new.validation_count,
        count_noise=old.count_noise + new.count_noise,
        validation_noise=new.validation_noise,
    )


def _covariances(descriptors: Descriptors) -> NDArray[np.floating]:
    """(K, groups, l, l), whichever form the spread has."""
    if descriptors.spread.ndim == 4:
        return descriptors.spread
    marginal = descriptors.marginal_covariances()[:, None]
    return np.concatenate([marginal, descriptors.class_covariances()], axis=1)


def _effective(old: Descriptors, new: Descriptors) -> NDArray[np.float64]:
    """Kish's n²/Σc² of both: numbers of copies c add up in n and in Σc² alike. Private ones count no copies."""
    squares = [one.count**2 / np.maximum(one.effective, 1e-12) * (one.count > 0) for one in (old, new)]
    total = np.maximum(squares[0] + squares[1], 1e-12)
    private = ((old.count_noise > 0) | (new.count_noise > 0))[:, None]
    return np.where(private, old.effective + new.effective, (old.count + new.count) ** 2 / total)


def descend(new: Pool, old: Pool, alpha: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For every new cluster the old one to go on from, and whether the two are one distribution at level `alpha`.

    Where a test cannot tell it from some old ones it is the most alike of these, and otherwise the nearest: the least
    mean distance of class means, in within-class deviations, plus the χ² distance of the label shares.
    """
    shape = (len(new), len(old))
    first, second = (index.ravel() for index in np.indices(shape))
    evidence = compare(new.join(old), first, second + len(new))
    same = (evidence.total >= np.log(alpha)) | (evidence.trifle >= np.log(alpha))
    shares = [pool.labels / np.maximum(pool.labels.sum(axis=1, keepdims=True), 1e-12) for pool in (new, old)]
    p, q = shares[0][first], shares[1][second]
    labels = ((p - q) ** 2 / np.maximum(p + q, 1e-12)).sum(axis=1)
    distance = (((p + q) / 2 * evidence.effect**2).sum(axis=1) + labels).reshape(shape)
    likeness = np.where(same, evidence.likeness, -np.inf).reshape(shape)
    found = same.reshape(shape).any(axis=1)
    return np.where(found, likeness.argmax(axis=1), distance.argmin(axis=1)).astype(np.int64), found


def _joined(now: NDArray[np.float64] | None, past: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """The noise of clusters now and past; both come from descriptors that are private, or neither does."""
    return None if now is None or past is None else np.concatenate([now, past])


def with_past(found: Clusters, descriptors: Descriptors, before: Clusters, kept: NDArray[np.int64]) -> Clusters:
    """Clusters found anew, followed by some of those before, all scaled as the first ones were."""
    centroids = cluster_centroids(before.scaler.transform(descriptors), found.labels)
    past = Pool(*(getattr(before.pool, field.name)[kept] for field in fields(Pool)))
    old, new = before.marginals, found.marginals
    marginals = Marginals(
        np.concatenate([new.mean, old.mean[kept]]),
        np.concatenate([new.covariance, old.covariance[kept]]),
        np.concatenate([new.weight, old.weight[kept]]),
        new.inflation,
        _joined(new.noise, None if old.noise is None else old.noise[kept]),
    )
    centroids = np.concatenate([centroids, before.centroids[kept]])
    null = replace(found.null, noise=np.concatenate([found.null.noise, before.null.noise[kept]]))
    return Clusters(found.labels, before.scaler, centroids, found.pool.join(past), marginals, null, found.variation)
