"""Following clients whose data drifts: has one drifted, which clusters are new, which past ones come back?"""

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering import Clusters
from fedflux.clustering.evidence import Pool, compare
from fedflux.clustering.placement.marginals import Marginals, cluster_centroids
from fedflux.descriptors.descriptor import Descriptors, make_descriptors
from fedflux.descriptors.moments import Moments

FALSE_ALARMS = 0.01
"""Clients without drift, of a hundred that describe themselves anew, that may be said to drift: 1."""


def drifted(old: Descriptors, new: Descriptors, rate: float) -> NDArray[np.bool_]:
    """Which clients hold another distribution than before, by descriptors of disjoint examples, row by row.

    A client that holds the same is said to drift with probability `rate` at most; differences too small to matter
    (`EFFECT_FLOOR`) are none.
    """
    both, rows = Pool.of(old).join(Pool.of(new)), np.arange(len(old))
    evidence = compare(both, rows, rows + len(old))
    return np.asarray((evidence.total < np.log(rate)) & (evidence.trifle < np.log(rate)))


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
    return Clusters(found.labels, before.scaler, centroids, found.pool.join(past), marginals, null)
