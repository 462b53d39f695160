"""Do two groups of clients hold one distribution? Tests on pooled moments (docs/calibrated-clustering.md).

A descriptor knows its own sampling noise, so "same or different?" is a test: class means against each other with the
within-class covariance as noise (Hotelling's T², class by class and jointly), and label counts against each other.
Moments and counts of clients add, so clusters are tested exactly like single clients, with more power.
"""

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, fdtrc, gammaln
from scipy.stats import chi2

from fedflux.clustering.evidence.blurred import known_covariance, log_tail, quadratic
from fedflux.clustering.evidence.label_counts import log_labels, share_noise
from fedflux.clustering.evidence.leading import LEADING, leading_axes, leading_squares
from fedflux.clustering.evidence.pool import CHUNK, Array, Index, Pool
from fedflux.clustering.evidence.strongest import log_two, strongest
from fedflux.clustering.variation import EFFECT_FLOOR, UNKNOWN, Variation
from fedflux.clustering.variation.spreads import LEAST_SPREAD, SPREAD_FREEDOM, log_spreads
from fedflux.descriptors.sums import spans

__all__ = ["EFFECT_FLOOR", "Array", "Evidence", "Index", "Pool", "compare", "label_evidence", "log_splits"]

CORRELATION_PRIOR = 40.0
"""Samples' worth of the pair's average class correlation that each class correlation is shrunk with."""
VARIANCE_PRIOR = 4.0
"""Samples' worth of the pair's average class variance that each class variance is shrunk with."""
TAILS = 0.25
"""Examples of a class, on either side, that are asked for besides, for each unit of ψ: a class whose scatter rests on
one image in ψ needs more of them before its mean is Gaussian. Gaussian classes have a ψ below one.
"""
LEAST_FREEDOM = 5.0
"""Degrees of freedom behind its variances below which a class is not compared."""


@dataclass(frozen=True)
class Rules:
    """What a test must have to go by."""

    examples: float = 5.0
    """Effective examples of a class on either side; one image is no mean whose noise is Gaussian."""
    expected: float = 3.0
    """Expected examples of a label in the smaller group."""
    leading: bool = True
    """Whether class means are compared in the directions in which classes differ most, too, and two classes at once."""


RULES = Rules()
FIRST_RULES = Rules(1.0, 1.0, False)
"""Those of version 0.1, which compare whatever there is: for asking which of several is nearest, too."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Natural logarithms of p-values of "one distribution", for P pairs of groups."""

    classes: Array
    """(P, U): class means, class by class; 0 where a class cannot be compared."""
    effect: Array
    """(P, U): Mahalanobis distance of the class means, in within-class deviations."""
    joint: Array
    """(P,): all class means together."""
    labels: Array
    """(P,): label counts."""
    spreads: Array
    """(P,): spreads within classes; 0 where they cannot be compared."""
    leading: Array
    """(P,): all class means together in the directions in which classes differ most; 0 where nobody asks."""
    two: Array
    """(P,): the two classes that differ most; 0 where nobody asks."""
    trifle: Array
    """(P,): of "the difference is a trifle": the total once the floor is granted as noise, if there is one."""

    @property
    def total(self) -> Array:
        """(P,): the strongest test, paid for by Bonferroni over the tests and over the classes."""
        return strongest(self.classes, self.joint, self.labels, self.leading, self.spreads, self.two)

    @property
    def likeness(self) -> Array:
        """(P,): a smooth order of pairs from alike to unlike, where `total` has ties at 1: all evidence added up."""
        return np.asarray(self.joint + self.leading + self.labels + self.spreads + self.classes.min(axis=1))


def compare(
    pool: Pool, first: Index, second: Index, variation: Variation = UNKNOWN, rules: Rules = FIRST_RULES
) -> Evidence:
    """Test each pair (first[i], second[i]) of groups: do they differ by more than sampling and variation explain?"""
    spread = log_spreads(pool) if len(variation.spreads) else np.zeros((len(pool), 0))
    axes = leading_axes(pool) if rules.leading and pool.mean.shape[2] > LEADING else None
    parts = [
        _compare(pool, first[rows], second[rows], variation, rules, spread, axes)
        for rows in (slice(begin, begin + CHUNK) for begin in range(0, max(len(first), 1), CHUNK))
    ]
    names = [field.name for field in fields(Evidence)]
    return Evidence(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _compare(
    pool: Pool, i: Index, j: Index, variation: Variation, rules: Rules, spread: Array, axes: Array | None
) -> Evidence:
    weights = pool.weight[i], pool.weight[j]
    freedom = np.maximum(weights[0] + weights[1] - pool.holders[i] - pool.holders[j], 0)
    prior = np.minimum(CORRELATION_PRIOR, freedom.sum(axis=1, keepdims=True) - freedom)
    length = pool.mean.shape[2]
    enough = (freedom >= LEAST_FREEDOM) & (freedom + prior >= length + LEAST_FREEDOM)
    least = rules.examples + (TAILS * variation.spreads if len(variation.spreads) else 0.0)
    usable = (np.minimum(*weights) >= least) & enough
    with np.errstate(divide="ignore"):
        scale = np.where(usable, 1 / weights[0] + 1 / weights[1], 1.0)
    own = np.where(usable, pool.own[i] + pool.own[j], 0.0)
    natural = variation.along * own
    correlation, deviation = _noise_shape(pool, i, j, freedom, prior)
    difference = np.where(usable[..., None], pool.mean[i] - pool.mean[j], 0.0) / deviation
    known = _scaled(_known(pool, i) + _known(pool, j), 1 / deviation) if pool.noise.any() else None
    if variation.apart > 0:
        free = variation.apart * own[..., None, None] * np.eye(length)
        known = free if known is None else known + free
    squared = quadratic(correlation, difference)
    whole = variation.whitened * own
    share = whole / (scale + whole)  # of the noise that is variation, whose size is known otherwise

    def fisher(statistic: Array, rows: Index, length: int) -> Array:
        """Log p of T² by class: Hotelling's law as far as the noise is sampling's."""
        stretch, second = _hotelling(length, freedom[rows], prior[rows])
        stretch = length + (1 - share[rows]) * (stretch - length)
        second = 1 / ((1 - share[rows]) ** 2 / second + share[rows] ** 2 / variation.freedom)
        return np.where(usable[rows], _log_fisher(statistic, stretch, second, length), 0.0)

    def judge(rows: Index, granted: float) -> tuple[Array, Array, Array, Array, Array]:
        """Class by class, jointly, labels, in leading directions, two classes; `granted` deviations count as noise."""
        grown = scale[rows] + natural[rows] + granted**2
        statistic = squared[rows] / grown
        noise = None
        if known is not None or axes is not None:
            noise = correlation[rows] * grown[..., None, None] + (0.0 if known is None else known[rows])
        if known is not None and noise is not None:
            statistic = quadratic(noise, difference[rows])
        classes = fisher(statistic, rows, length)
        counts = label_evidence(pool, i[rows], j[rows], granted, variation.labels, rules.expected)
        rest = share[rows].max(axis=1, initial=0.0) ** 2 / variation.freedom
        leading = np.zeros(len(rows))
        if axes is not None and noise is not None:
            few = fisher(leading_squares(axes, difference[rows], deviation[rows], noise), rows, axes.shape[1])
            leading = _log_joint(few, usable[rows], axes.shape[1], 1.0, rest)
        together = _log_joint(classes, usable[rows], length, variation.directions, rest)
        return classes, together, counts, leading, log_two(classes) if rules.leading else np.zeros(len(rows))

    everything = np.arange(len(i))
    classes, joint, counts, leading, two = judge(everything, 0.0)
    spreads = _log_spread_evidence(pool, i, j, variation, spread)
    trifle = strongest(classes, joint, counts, leading, two, spreads)
    # against the sampling noise of few examples the floor is nothing, and both answers are the same
    sizes = pool.labels[i].sum(axis=1), pool.labels[j].sum(axis=1)
    sharpest = np.maximum(np.where(usable, 1 / scale, 0).max(axis=1, initial=0), np.minimum(*sizes))
    matters = np.flatnonzero(variation.floor**2 * sharpest > 0.02)
    if len(matters):
        trifle[matters] = strongest(*judge(matters, variation.floor), spreads[matters])
    return Evidence(classes, np.sqrt(np.maximum(squared, 0)), joint, counts, spreads, leading, two, trifle)


def _log_spread_evidence(pool: Pool, i: Index, j: Index, variation: Variation, spread: Array) -> Array:
    """(P,): log p of the spreads within classes: (s_A − s_B)² over ψ(1/ν_A + 1/ν_B) is F(1, ·); all classes."""
    if not len(variation.spreads):
        return np.zeros(len(i))
    freedom = pool.freedom[i], pool.freedom[j]
    usable = np.minimum(*freedom) >= SPREAD_FREEDOM
    noise = variation.spreads * (1 / np.maximum(freedom[0], 1) + 1 / np.maximum(freedom[1], 1))
    gap = np.where(usable, (spread[i] - spread[j]) ** 2, 0.0)
    statistic = gap / np.maximum(noise, 1e-30)
    classes = np.where(
        usable, log_tail(np.asarray(fdtrc(1, variation.spread_freedom, statistic), dtype=np.float64), statistic, 1), 0.0
    )
    wide = np.where(usable, gap - noise, 0.0).sum(axis=1) >= LEAST_SPREAD**2 * np.maximum(usable.sum(axis=1), 1)
    return np.where(wide, _log_joint(classes, usable, 1), 0.0)


def label_evidence(
    pool: Pool, i: Index, j: Index, floor: float, variation: float = 0.0, expected: float = FIRST_RULES.expected
) -> Array:
    """(P,): log p of the label counts alone, once `floor` deviations count as noise and clients' own `variation`."""
    parts = [_label_evidence(pool, i[rows], j[rows], floor, variation, expected) for rows in spans(len(i))]
    return np.concatenate([np.zeros(0), *parts])


def _label_evidence(pool: Pool, i: Index, j: Index, floor: float, variation: float, expected: float) -> Array:
    labels = pool.labels[i], pool.labels[j]
    blur = share_noise(labels[0], pool.label_noise[i]) + share_noise(labels[1], pool.label_noise[j])
    natural = variation**2 * (pool.label_own[i] + pool.label_own[j])
    return log_labels(*labels, blur, floor, natural, expected)


def _known(pool: Pool, i: Index) -> Array:
    return known_covariance(pool.mean[i], pool.weight[i], pool.noise[i], pool.label_noise[i])


def _noise_shape(pool: Pool, i: Index, j: Index, freedom: Array, prior: Array) -> tuple[Array, Array]:
    """Within-class correlation and deviation of each pair and class; few samples are shrunk to the pair's average."""
    degrees = np.maximum(freedom, 1)[..., None, None]
    pooled = pool.covariance[i] * (pool.weight[i][..., None, None] / degrees)
    pooled += pool.covariance[j] * (pool.weight[j][..., None, None] / degrees)
    variance = np.einsum("puii->pui", pooled).copy()
    share = freedom / np.maximum(freedom.sum(axis=1, keepdims=True), 1e-12)
    typical = np.einsum("pu,pui->pi", share, variance)[:, None]
    tiny = 1e-12 * typical.max(axis=2, keepdims=True) + 1e-30
    trust = freedom / np.maximum(freedom + prior, 1e-12)
    correlation = _scaled(pooled, np.sqrt(trust[..., None] / np.maximum(variance, tiny)))
    whole = share / np.where(trust > 0, trust, 1.0)
    average = np.einsum("pu,puij->pij", whole, correlation)[:, None]
    correlation += average * (1 - trust)[..., None, None]
    diagonal = np.arange(correlation.shape[-1])
    correlation[..., diagonal, diagonal] = 1.0
    seen = freedom[..., None]
    shrunk = (seen * variance + VARIANCE_PRIOR * typical) / (seen + VARIANCE_PRIOR)
    return correlation, np.sqrt(shrunk + tiny)


def _scaled(matrix: Array, factor: Array) -> Array:
    """Rows and columns multiplied, in place."""
    matrix *= factor[..., :, None]
    matrix *= factor[..., None, :]
    return matrix


def _hotelling(length: int, freedom: Array, prior: Array) -> tuple[Array, Array]:
    """T² is `stretch`·F(l, `second`) under the null: Hotelling's law for the shrunk correlation, but never with more
    degrees of freedom than the class variances have, since those are hardly shrunk.
    """
    trust = freedom + prior
    rest = np.maximum(trust - length + 1, 1.0)
    return length * np.maximum(trust, 1.0) / rest, np.minimum(rest, freedom + VARIANCE_PRIOR)


def _log_fisher(statistic: Array, stretch: Array, second: Array, length: int) -> Array:
    return log_tail(np.asarray(fdtrc(length, second, statistic / stretch)), statistic, length)


@lru_cache(maxsize=8)
def _chi2_table(freedom: int) -> tuple[Array, Array]:
    """χ² quantiles against log tail probabilities, fine enough to interpolate: a thousand times faster than isf."""
    points = np.concatenate([np.arange(0, 80, 0.01), np.arange(80, 1200, 0.5)])
    return points, np.asarray(chi2.logsf(points, freedom))


def _log_joint(
    classes: Array, usable: NDArray[np.bool_], length: int, directions: float = 1.0, uncertain: Array | float = 0.0
) -> Array:
    """All classes together: each p-value as the χ²(l) it would be with many samples, and the sum of those as χ².

    Exact under the null for independent classes, with the tails that the union bound asks for. Where only a share of
    the `directions` scatters, so many fewer are the degrees of freedom. One over `uncertain` are those behind the size
    of the noise that all classes have in common: the sum is then F.
    """
    points, tails = _chi2_table(length)
    near = np.interp(-classes, -tails, points)
    beyond = np.maximum(tails[-1] - classes, 0)  # the tail goes on at its rate: two units for each unit of log p
    total = np.where(usable, near + 2 * beyond, 0).sum(axis=1)
    freedom = np.maximum(directions * length * usable.sum(axis=1), 1)
    firm = chdtrc(freedom, total)
    second = 1 / np.maximum(uncertain, 1e-9)
    tail = np.where(second < 1e8, fdtrc(freedom, second, total / freedom), firm)
    return np.where(usable.any(axis=1), log_tail(tail, total, freedom), 0.0)


def log_splits(first: Array, second: Array) -> Array:
    """The logarithm of how many ways there are to part a + b clients into an a and a b, over every size of split.

    A split that was *found* is one of these, so its p-value is multiplied by their number: a union bound that holds
    whatever rule found it.
    """
    both = first + second
    ways = gammaln(both + 1) - gammaln(first + 1) - gammaln(second + 1) - np.where(first == second, np.log(2), 0.0)
    return np.asarray(ways + np.log(np.maximum(np.floor(both / 2), 1)))
