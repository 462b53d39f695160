"""Labels of groups of clients: tests of "the same shares", exact or blurred by privacy, and how likely others are."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betainc, chdtrc, gammaln

from fedflux.clustering.evidence.blurred import log_tail, quadratic

Array = NDArray[np.float64]

LEAST_EXPECTED = 3.0
"""Expected examples, in the smaller group, below which a label is not counted by itself: with one, the tail of χ² at
one in 10⁵ is 15 to 30 times too light."""


def log_labels(
    first: Array,
    second: Array,
    blur: Array,
    floor: float,
    natural: Array | None = None,
    expected: float = LEAST_EXPECTED,
) -> Array:
    """(P,): log p of "the same shares" for pairs of label counts (P, U), once `floor` deviations count as noise.

    `blur` is the variance that privacy added to the pair's difference of shares, 0 where there is none; `natural` what
    clients of one cluster differ by, in units of p(1 − p). Labels of which the smaller group expects fewer than
    `expected` share a cell.
    """
    own = np.zeros(len(first)) if natural is None else natural
    if blur.any():
        return _log_blurred(first, second, floor, blur, own)
    return _log_counts(first, second, floor, own, expected)


def observed(labels: Array, weight: Array) -> Array:
    """(G, U): label counts of clients as evidence: shares come from all copies, but a label that is held was seen once
    at least.
    """
    return np.where(weight >= 1, np.maximum(labels, 1.0), np.maximum(labels, 0.0))


def fitted_prior(groups: Array) -> Array:
    """(U,): what a group expects before it has seen any label: the federation's shares, worth as many examples as make
    the groups' counts (M, U) likeliest. Where all hold the same shares that is many, and small groups lose nothing.
    """
    held = groups.sum(axis=0)
    shares = np.maximum(held / max(held.sum(), 1e-12), 1e-6)
    known = np.ones_like(groups, dtype=bool)
    strengths = [0.5 * len(held) * 10.0**power for power in range(-1, 6)]
    fits = [log_predictive(groups, np.zeros_like(groups), known, worth * shares).sum() for worth in strengths]
    return np.asarray(strengths[int(np.argmax(fits))] * shares)


def log_predictive(counts: Array, groups: Array, known: NDArray[np.bool_], prior: Array) -> Array:
    """(P,): how likely clients' label counts (P, U) are for whoever has seen a group's (P, U) and expected the `prior`:
    a Dirichlet-multinomial.

    Labels that are not `known` say nothing about which group it is and are left out.
    """
    seen, new = (np.where(known, values, 0.0) for values in (groups + prior, counts))
    single = gammaln(np.where(known, seen + new, 1.0)) - gammaln(np.where(known, seen, 1.0))
    total = seen.sum(axis=1)
    return np.asarray(single.sum(axis=1) - gammaln(total + new.sum(axis=1) + 1e-300) + gammaln(total + 1e-300))


def share_noise(labels: Array, label_noise: Array) -> Array:
    """(P,): what privacy added to the variance of a label's share before shares were made to add up to one.

    `label_noise` is what is left of it on a count afterwards, 1 − 1/U of it.
    """
    classes = max(labels.shape[1], 2)
    return np.asarray(label_noise / (1 - 1 / classes) / np.maximum(labels.sum(axis=1), 1.0) ** 2)


def _log_counts(first: Array, second: Array, floor: float, natural: Array, expected: float) -> Array:
    """Label counts on effective samples: Pearson's χ² of homogeneity, with labels too rare for it in one cell.

    Where even that cell is too rare, the smaller group's part of what both hold in it is judged by a binomial tail.
    """
    sizes = [np.maximum(c.sum(axis=1, keepdims=True), 1e-12) for c in (first, second)]
    smaller = np.minimum(*sizes)
    share = (first + second) / (sizes[0] + sizes[1])
    rare = share * smaller < expected
    lumps = [np.where(rare, c, 0).sum(axis=1, keepdims=True) for c in (first, second)]
    lump = (lumps[0] + lumps[1]) / (sizes[0] + sizes[1])
    alone = lump * smaller < expected
    cells = [
        np.column_stack([np.where(rare, 0, c), np.where(alone, 0, extra)])
        for c, extra in zip((first, second), lumps, strict=True)
    ]
    totals = [np.maximum(c.sum(axis=1, keepdims=True), 1e-12) for c in cells]
    share = (cells[0] + cells[1]) / (totals[0] + totals[1])
    present = share > 0
    scale = 1 / totals[0] + 1 / totals[1] + floor**2 + natural[:, None]
    gap = (cells[0] / totals[0] - cells[1] / totals[1]) ** 2 / np.where(present, share, 1.0) / scale
    statistic = np.where(present, gap, 0).sum(axis=1)
    freedom = np.maximum(present.sum(axis=1) - 1, 1)
    common = log_tail(chdtrc(freedom, statistic), statistic, freedom)
    fewer = sizes[0] <= sizes[1]
    seen, other = (np.where(side, *lumps)[:, 0] for side in (fewer, ~fewer))
    tested = np.flatnonzero(alone[:, 0] & (seen > 0))
    if expected < LEAST_EXPECTED:
        unusual = _log_pooled(seen[tested], smaller[tested, 0], lump[tested, 0], floor, natural[tested])
    else:
        larger = np.maximum(*sizes)[tested, 0]
        unusual = _log_taken(seen[tested], other[tested], smaller[tested, 0] / larger, lump[tested, 0], natural[tested])
    tail = common.copy()
    tail[tested] = np.minimum(np.minimum(common[tested], unusual) + np.log(2), 0)
    return np.where((first.sum(axis=1) > 0) & (second.sum(axis=1) > 0), tail, 0.0)


def _log_pooled(seen: Array, size: Array, share: Array, floor: float, natural: Array) -> Array:
    """Log p of so many rare labels among `size` draws, were their share that of both groups: version 0.1's tail."""
    wider = floor + 2 * np.sqrt(share * natural)  # shares that vary: two deviations more
    draws = np.ceil(size).astype(np.int64)
    return np.asarray(np.log(np.maximum(bdtrc(np.ceil(seen) - 1, draws, np.minimum(share + wider, 1.0)), 1e-300)))


def _log_taken(seen: Array, other: Array, ratio: Array, share: Array, natural: Array) -> Array:
    """Log p of the smaller group's part of the rare labels that both have: were its share the same, each of these
    would be in it with odds `ratio`, two deviations of natural variation more.

    Beside a large group that never shows a label, few examples of it say more so than against the share in both.
    """
    odds = ratio * (1 + 2 * np.sqrt(natural / np.maximum(share, 1e-12)))
    count = np.floor(seen)
    chance = betainc(np.maximum(count, 1.0), np.ceil(other) + 1.0, odds / (1 + odds))
    return np.where(count >= 1, np.log(np.maximum(chance, 1e-300)), 0.0)


def _log_blurred(first: Array, second: Array, floor: float, blur: Array, natural: Array) -> Array:
    """Noisy label counts against each other: log p of the shares' difference under sampling and noise together.

    The counts of a client were made to add up to its public size, so the noise, of variance `blur` on a share before
    that, lies in the plane of differences that add up to nothing: one label is left out, the rest decides.
    """
    sizes = [np.maximum(counts.sum(axis=1, keepdims=True), 1.0) for counts in (first, second)]
    share = np.maximum(first + second, 0) / (sizes[0] + sizes[1])
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
    classes = share.shape[1]
    if classes < 2:
        return np.zeros(len(first))
    eye = np.eye(classes)
    multinomial = share[:, :, None] * eye - share[:, :, None] * share[:, None, :]
    scale = 1 / sizes[0] + 1 / sizes[1] + floor**2 + natural[:, None]
    covariance = scale[..., None] * multinomial + blur[:, None, None] * (eye - 1 / classes)
    gap = first / sizes[0] - second / sizes[1]
    statistic = quadratic(covariance[:, :-1, :-1], gap[:, :-1])
    return log_tail(chdtrc(classes - 1, statistic), statistic, classes - 1)
