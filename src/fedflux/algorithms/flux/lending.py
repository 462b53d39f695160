"""How much clusters lend each other: sharing weights from pooled moments, and mixtures for unlabelled clients.

Partial pooling: what cluster c says about cluster m errs by its own sampling noise σ²/n_c and by how far the two
really are apart, δ². The best linear combination weighs c by 1/(σ²/n_c + δ²), which is its size n_c, as in FedAvg,
times 1/(1 + n_c δ²/σ²): one where nothing sets them apart, falling as the difference outgrows the noise.
"""

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.calibrated import candidate_pairs
from fedflux.clustering.evidence.comparison import Array, Index, Pool, compare
from fedflux.errors import FedfluxError

CUT = 0.05
"""Weights below this share of a like one's are 0: what differs clearly lends nothing, and rows are sparse."""
TEMPERATURE = 4.0
"""How many times larger than sampling noise a difference in P(X) must be to count in full for an unlabelled client."""
NEIGHBOURS = 32
"""Beyond 65 clusters each is compared with so many of its nearest; the others lend it nothing."""
LIMIT = 4000
"""Clusters up to which the matrix of weights, which is dense, is made."""
MATCH = 0.25
"""A class that changed is taken for relabelled where another class is nearer than this share of its squared move."""
ENTRIES = 4_000_000
"""Numbers held at once while classes are compared with classes, which bounds memory."""


def sharing(pool: Pool, alpha: float) -> Array:
    """V (M × M): how much a client of cluster c counts for cluster m, against 1 for a client of m itself.

    It is 1 where the test does not tell the two apart. Clusters of which one puts another label on the same images
    never share, however little else differs.
    """
    clusters = len(pool)
    if clusters > LIMIT:
        raise FedfluxError(f"flux-soft shares between up to {LIMIT:,} clusters, and there are {clusters:,}: use flux")
    weights = np.eye(clusters)
    if clusters == 1:
        return weights
    first, second = candidate_pairs(pool, NEIGHBOURS, np.ones(clusters, dtype=np.bool_))
    evidence = compare(pool, first, second)
    alike = np.maximum(evidence.total, evidence.trifle) >= np.log(alpha)
    changed = evidence.classes < np.log(alpha)  # for each class by itself: a false alarm costs no more than a lender
    step = max(ENTRIES // (pool.mean.shape[1] ** 2 * pool.mean.shape[2]), 1)
    for begin in range(0, len(first), step):
        rows = slice(begin, begin + step)
        i, j = first[rows], second[rows]
        apart = class_distances(pool, i, j)
        fine = ~(_relabelled(apart, changed[rows]) | _relabelled(apart.swapaxes(1, 2), changed[rows]))
        for to, by in ((i, j), (j, i)):
            weights[to, by] = np.where(alike[rows], 1.0, np.where(fine, _lent(pool, apart, to, by), 0.0))
    return np.where(weights < CUT, 0.0, weights)


def heirs(new: Pool, old: Pool, alpha: float) -> Array:
    """Shares (new × old) of the models that clusters found anew go on from: of those old ones, by their size, that the
    test does not tell from them, or where it tells all, of the one that they are most like.
    """
    both, count = old.join(new), len(old)
    first, second = candidate_pairs(both, NEIGHBOURS, np.ones(len(both), dtype=np.bool_))
    across = (first < count) & (second >= count)
    unmet = np.setdiff1d(np.arange(count, len(both)), second[across])  # all its nearest are new, too
    first = np.concatenate([first[across], np.tile(np.arange(count), len(unmet))])
    second = np.concatenate([second[across], np.repeat(unmet, count)])
    evidence = compare(both, first, second)
    alike = np.maximum(evidence.total, evidence.trifle) >= np.log(alpha)
    shares, likeness = np.zeros((len(new), count)), np.full((len(new), count), -np.inf)
    shares[second[alike] - count, first[alike]] = old.labels.sum(axis=1)[first[alike]]
    likeness[second - count, first] = evidence.likeness
    alone = np.flatnonzero(shares.sum(axis=1) == 0)
    shares[alone, likeness[alone].argmax(axis=1)] = 1.0
    return shares


def class_distances(pool: Pool, first: Index, second: Index) -> Array:
    """δ² (P × U × U): how far class u of the first is from class v of the second, in within-class deviations squared
    and less what sampling (and privacy) adds to it, so it may fall below 0; infinite where either has no examples.
    """
    held = pool.weight[first] >= 1, pool.weight[second] >= 1
    weight = pool.weight[first] + pool.weight[second]
    both = np.einsum("pu,puij->pij", pool.weight[first], pool.covariance[first])
    both += np.einsum("pu,puij->pij", pool.weight[second], pool.covariance[second])
    freedom = (weight - pool.holders[first] - pool.holders[second]).sum(axis=1)
    both /= np.maximum(freedom, 1.0)[:, None, None]
    length = both.shape[-1]
    ridge = 1e-6 * np.trace(both, axis1=1, axis2=2)[:, None, None] / length + 1e-30
    inverse = np.linalg.inv(both + ridge * np.eye(length))
    gap = pool.mean[first][:, :, None] - pool.mean[second][:, None]
    squared = np.einsum("puvi,puvi->puv", np.einsum("puvi,pij->puvj", gap, inverse), gap)
    of_privacy = np.trace(inverse, axis1=1, axis2=2)[:, None]
    noise = [length / np.maximum(pool.weight[side], 1.0) + of_privacy * pool.noise[side] for side in (first, second)]
    result = squared - noise[0][:, :, None] - noise[1][:, None]
    return np.where(held[0][:, :, None] & held[1][:, None], result, np.inf)


def _relabelled(apart: Array, changed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(P,): whether the images of a class that changed are found under another label."""
    own = np.einsum("puu->pu", apart)
    others = np.where(np.eye(apart.shape[1], dtype=np.bool_), np.inf, apart).min(axis=2)
    return np.asarray((changed & np.isfinite(own) & (others < MATCH * own)).any(axis=1))


def _lent(pool: Pool, apart: Array, to: Index, by: Index) -> Array:
    """1/(1 + n δ²/σ²) of the lender, its class means and its label shares each in units of their own noise."""
    return np.asarray(1 / (1 + _moved(pool, apart, to, by) + _reweighted(pool, to, by)))


def _moved(pool: Pool, apart: Array, to: Index, by: Index) -> Array:
    """n δ²/σ² of class means, over the classes that both hold and as often as the borrower meets them."""
    own = np.einsum("puu->pu", apart)
    met = np.where(np.isfinite(own), np.maximum(pool.labels[to], 0.0), 0.0)
    ratio = np.where(np.isfinite(own), own, 0.0) * pool.weight[by] / pool.mean.shape[2]
    return np.asarray(np.maximum((met * ratio).sum(axis=1) / np.maximum(met.sum(axis=1), 1e-12), 0.0))


def _reweighted(pool: Pool, to: Index, by: Index) -> Array:
    """n δ²/σ² of label shares, Pearson's χ² being their squared distance, less what sampling and privacy add to it."""
    counts = pool.labels[to], pool.labels[by]
    sizes = [np.maximum(one.sum(axis=1, keepdims=True), 1e-12) for one in counts]
    share = (counts[0] + counts[1]) / (sizes[0] + sizes[1])
    blur = sum(pool.label_noise[side][:, None] / size**2 for side, size in zip((to, by), sizes, strict=True))
    share = np.where(blur > 0, np.maximum(share, np.sqrt(blur)), share)  # what noise hides is no rare label
    freedom = np.maximum((share > 0).sum(axis=1) - 1, 1)
    weight = np.where(share > 0, 1 / np.where(share > 0, share, 1.0), 0.0)
    gap = ((counts[0] / sizes[0] - counts[1] / sizes[1]) ** 2 * weight).sum(axis=1)
    excess = gap - freedom * (1 / sizes[0] + 1 / sizes[1])[:, 0] - (blur * weight).sum(axis=1)
    return np.asarray(np.maximum(excess * sizes[1][:, 0] / freedom, 0.0))


def mixture(distances: Array, length: int) -> Array:
    """Row-stochastic weights (clients × clusters) of calibrated squared distances, about χ²(l) where a client belongs.

    Clusters are weighed by their likelihood, at a temperature, since P(X) is but a hint at the best model. Where not
    even the nearest fits, the noise was thought too small, and it is raised until that one does (Birge's ratio): a
    client beyond every known cluster gets a mixture of the near ones.
    """
    nearest = distances.min(axis=1, keepdims=True)
    noise = np.maximum(TEMPERATURE * nearest / length, 1.0)
    likelihood = np.exp(-(distances - nearest) / (2 * noise))
    likelihood = np.where(likelihood < CUT, 0.0, likelihood)
    return np.asarray(likelihood / likelihood.sum(axis=1, keepdims=True))
