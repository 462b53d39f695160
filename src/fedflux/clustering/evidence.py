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

from fedflux.clustering.blurred import known_covariance, log_tail, quadratic
from fedflux.clustering.label_counts import log_labels, share_noise
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import group_sums, precision, spans

Array = NDArray[np.float64]
Index = NDArray[np.int64]

EFFECT_FLOOR = 0.02
"""τ: differences of this many within-class deviations are trifles, however many samples prove them."""
CORRELATION_PRIOR = 40.0
"""Samples' worth of the pair's average class correlation that each class correlation is shrunk with."""
VARIANCE_PRIOR = 4.0
"""Samples' worth of the pair's average class variance that each class variance is shrunk with."""
LEAST_FREEDOM = 5.0
"""Degrees of freedom behind its variances below which a class is not compared."""
PAID = np.log(3)
"""What the strongest of three tests, of single classes, of all together and of labels, pays for the choice."""
CHUNK = 512
"""Pairs compared at once, which bounds memory."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Moments of G groups of clients, by class: what adds up when groups merge."""

    members: Array
    """(G,): clients in the group."""
    holders: Array
    """(G, U): clients that hold the class; each costs one degree of freedom."""
    weight: Array
    """(G, U): effective counts e: the precision of the means and, less one a client, the freedom of the covariances."""
    mean: Array
    """(G, U, l)."""
    covariance: NDArray[np.floating]
    """(G, U, l, l): pooled within-client, within-class; in single precision beyond 20,000 groups."""
    noise: Array
    """(G, U): known variance added to each coordinate of the mean (differential privacy)."""
    labels: Array
    """(G, U): label counts on the scale of effective samples."""
    label_noise: Array
    """(G,): known variance added to each of them (differential privacy)."""

    def __len__(self) -> int:
        return len(self.members)

    @staticmethod
    def of(descriptors: Descriptors) -> "Pool":
        """One group per client."""
        count = descriptors.count[:, 1:].astype(np.float64)
        total = np.maximum(count.sum(axis=1), 1)
        noisy = descriptors.count_noise > 0  # noisy counts are of distinct examples
        scale = np.where(noisy, 1.0, descriptors.effective[:, 0] / total)
        return Pool(
            members=np.ones(len(descriptors)),
            holders=((count > 0) & (descriptors.effective[:, 1:] > 0)).astype(np.float64),
            weight=descriptors.effective[:, 1:].astype(np.float64),
            mean=descriptors.mean[:, 1:].astype(np.float64),
            covariance=descriptors.class_covariances(),
            noise=descriptors.noise[:, 1:].astype(np.float64),
            labels=count * scale[:, None],
            label_noise=descriptors.count_noise.astype(np.float64),
        )

    def join(self, other: "Pool") -> "Pool":
        """The groups of both, one after another."""
        return Pool(*(np.concatenate([getattr(p, f.name) for p in (self, other)]) for f in fields(Pool)))

    def merge(self, group: Index) -> "Pool":
        """Groups with the same number in `group` (0…M − 1) become one."""
        total = int(group.max()) + 1

        def add(values: Array) -> Array:
            return group_sums(values, group, total)

        weight = add(self.weight)
        safe = np.maximum(weight, 1e-12)
        covariance = np.empty((total, *self.covariance.shape[1:]), dtype=precision(total))
        together = max(CHUNK // len(self), 1)  # a few classes at a time, which bounds memory
        for some in (slice(u, u + together) for u in range(0, weight.shape[1], together)):
            one = add(self.weight[:, some, None, None] * self.covariance[:, some])
            covariance[:, some] = one / safe[:, some, None, None]
        return Pool(
            members=add(self.members),
            holders=add(self.holders),
            weight=weight,
            mean=add(self.weight[..., None] * self.mean) / safe[..., None],
            covariance=covariance,
            noise=add(self.weight**2 * self.noise) / safe**2,
            labels=add(self.labels),
            label_noise=add(self.label_noise),
        )


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
    trifle: Array
    """(P,): of "the difference is a trifle": the strongest of the three once the floor is granted as noise."""

    @property
    def total(self) -> Array:
        """(P,): the strongest of the three, paid for by Bonferroni over the three and over the classes."""
        return _strongest(self.classes, self.joint, self.labels)

    @property
    def likeness(self) -> Array:
        """(P,): a smooth order of pairs from alike to unlike, where `total` has ties at 1: all evidence added up."""
        return np.asarray(self.joint + self.labels + self.classes.min(axis=1))


def _strongest(classes: Array, joint: Array, labels: Array) -> Array:
    tested = np.maximum((classes < 0).sum(axis=1), 1)
    single = np.log(tested) + classes.min(axis=1)
    return np.asarray(np.minimum(PAID + np.minimum(np.minimum(joint, single), labels), 0.0))


def compare(pool: Pool, first: Index, second: Index, floor: float = EFFECT_FLOOR) -> Evidence:
    """Test each pair (first[i], second[i]) of groups."""
    parts = [
        _compare(pool, first[begin : begin + CHUNK], second[begin : begin + CHUNK], floor)
        for begin in range(0, max(len(first), 1), CHUNK)
    ]
    names = [field.name for field in fields(Evidence)]
    return Evidence(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _compare(pool: Pool, i: Index, j: Index, floor: float) -> Evidence:
    weights = pool.weight[i], pool.weight[j]
    freedom = np.maximum(weights[0] + weights[1] - pool.holders[i] - pool.holders[j], 0)
    prior = np.minimum(CORRELATION_PRIOR, freedom.sum(axis=1, keepdims=True) - freedom)
    length = pool.mean.shape[2]
    enough = (freedom >= LEAST_FREEDOM) & (freedom + prior >= length + LEAST_FREEDOM)
    usable = (np.minimum(*weights) >= 1) & enough
    with np.errstate(divide="ignore"):
        scale = np.where(usable, 1 / weights[0] + 1 / weights[1], 1.0)
    correlation, deviation = _noise_shape(pool, i, j, freedom, prior)
    difference = np.where(usable[..., None], pool.mean[i] - pool.mean[j], 0.0) / deviation
    known = _scaled(_known(pool, i) + _known(pool, j), 1 / deviation) if pool.noise.any() else None
    squared = quadratic(correlation, difference)
    stretch, second = _hotelling(length, freedom, prior)

    def judge(rows: Index, granted: float) -> tuple[Array, Array, Array]:
        """Class by class, jointly, and label counts, once `granted` deviations count as noise."""
        grown = scale[rows] + granted**2
        statistic = squared[rows] / grown
        if known is not None:
            statistic = quadratic(correlation[rows] * grown[..., None, None] + known[rows], difference[rows])
        classes = np.where(usable[rows], _log_fisher(statistic, stretch[rows], second[rows], length), 0.0)
        counts = label_evidence(pool, i[rows], j[rows], granted)
        return classes, _log_joint(classes, usable[rows], length), counts

    everything = np.arange(len(i))
    classes, joint, counts = judge(everything, 0.0)
    trifle = _strongest(classes, joint, counts)
    # against the sampling noise of few examples the floor is nothing, and both answers are the same
    sizes = pool.labels[i].sum(axis=1), pool.labels[j].sum(axis=1)
    sharpest = np.maximum(np.where(usable, 1 / scale, 0).max(axis=1, initial=0), np.minimum(*sizes))
    matters = np.flatnonzero(floor**2 * sharpest > 0.02)
    if len(matters):
        trifle[matters] = _strongest(*judge(matters, floor))
    return Evidence(classes, np.sqrt(np.maximum(squared, 0)), joint, counts, trifle)


def label_evidence(pool: Pool, i: Index, j: Index, floor: float) -> Array:
    """(P,): log p of the label counts alone, once `floor` deviations count as noise."""
    parts = [_label_evidence(pool, i[rows], j[rows], floor) for rows in spans(len(i))]
    return np.concatenate([np.zeros(0), *parts])


def _label_evidence(pool: Pool, i: Index, j: Index, floor: float) -> Array:
    labels = pool.labels[i], pool.labels[j]
    blur = share_noise(labels[0], pool.label_noise[i]) + share_noise(labels[1], pool.label_noise[j])
    return log_labels(*labels, blur, floor)


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


def _log_joint(classes: Array, usable: NDArray[np.bool_], length: int) -> Array:
    """All classes together: each p-value as the χ²(l) it would be with many samples, and the sum of those as χ².

    Exact under the null for independent classes, with the tails that the union bound asks for.
    """
    points, tails = _chi2_table(length)
    near = np.interp(-classes, -tails, points)
    beyond = np.maximum(tails[-1] - classes, 0)  # the tail goes on at its rate: two units for each unit of log p
    total = np.where(usable, near + 2 * beyond, 0).sum(axis=1)
    freedom = np.maximum(length * usable.sum(axis=1), 1)
    return np.where(usable.any(axis=1), log_tail(chdtrc(freedom, total), total, freedom), 0.0)


def log_splits(first: Array, second: Array) -> Array:
    """The logarithm of how many ways there are to part a + b clients into an a and a b, over every size of split.

    A split that was *found* is one of these, so its p-value is multiplied by their number: a union bound that holds
    whatever rule found it.
    """
    both = first + second
    ways = gammaln(both + 1) - gammaln(first + 1) - gammaln(second + 1) - np.where(first == second, np.log(2), 0.0)
    return np.asarray(ways + np.log(np.maximum(np.floor(both / 2), 1)))
