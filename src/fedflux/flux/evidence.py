"""Do two groups of clients hold one distribution? Tests on pooled moments (docs/calibrated-clustering.md).

A descriptor knows its own sampling noise, so "same or different?" is a test: class means against each other with the
within-class covariance as noise (Hotelling's T², class by class and jointly), and label counts against each other.
Moments and counts of clients add, so clusters are tested exactly like single clients, with more power.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import chi2
from scipy.stats import f as fisher

from fedflux.flux.descriptor import Descriptors

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
CHUNK = 4096
"""Pairs compared at once, which bounds memory."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Moments of G groups of clients, by class: what adds up when groups merge."""

    members: Array
    """(G,): clients in the group."""
    count: Array
    """(G, U): examples n."""
    holders: Array
    """(G, U): clients that hold the class; each costs one degree of freedom."""
    weight: Array
    """(G, U): effective counts e, the precision of the means."""
    mean: Array
    """(G, U, l)."""
    covariance: Array
    """(G, U, l, l): pooled within-client, within-class."""
    noise: Array
    """(G, U): known variance added to each coordinate of the mean (differential privacy)."""
    labels: Array
    """(G, U): label counts on the scale of effective samples."""

    def __len__(self) -> int:
        return len(self.members)

    @staticmethod
    def of(descriptors: Descriptors) -> "Pool":
        """One group per client."""
        count = descriptors.count[:, 1:].astype(np.float64)
        total = np.maximum(count.sum(axis=1), 1)
        return Pool(
            members=np.ones(len(descriptors)),
            count=count,
            holders=(count > 0).astype(np.float64),
            weight=descriptors.effective[:, 1:].astype(np.float64),
            mean=descriptors.mean[:, 1:].astype(np.float64),
            covariance=descriptors.class_covariances(),
            noise=descriptors.noise[:, 1:].astype(np.float64),
            labels=count * (descriptors.effective[:, 0] / total)[:, None],
        )

    def join(self, other: "Pool") -> "Pool":
        """The groups of both, one after another."""
        return Pool(*(np.concatenate([getattr(p, f.name) for p in (self, other)]) for f in fields(Pool)))

    def merge(self, group: Index) -> "Pool":
        """Groups with the same number in `group` (0…M − 1) become one."""
        total = int(group.max()) + 1

        def add(values: Array) -> Array:
            out = np.zeros((total, *values.shape[1:]))
            np.add.at(out, group, values)
            return out

        count, weight = add(self.count), add(self.weight)
        safe_count, safe_weight = np.maximum(count, 1e-12), np.maximum(weight, 1e-12)
        return Pool(
            members=add(self.members),
            count=count,
            holders=add(self.holders),
            weight=weight,
            mean=add(self.weight[..., None] * self.mean) / safe_weight[..., None],
            covariance=add(self.count[..., None, None] * self.covariance) / safe_count[..., None, None],
            noise=add(self.weight**2 * self.noise) / safe_weight**2,
            labels=add(self.labels),
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
    return np.asarray(np.minimum(np.log(3) + np.minimum(np.minimum(joint, single), labels), 0.0))


def compare(pool: Pool, first: Index, second: Index, floor: float = EFFECT_FLOOR) -> Evidence:
    """Test each pair (first[i], second[i]) of groups."""
    parts = [
        _compare(pool, first[begin : begin + CHUNK], second[begin : begin + CHUNK], floor)
        for begin in range(0, max(len(first), 1), CHUNK)
    ]
    names = [field.name for field in fields(Evidence)]
    return Evidence(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _compare(pool: Pool, i: Index, j: Index, floor: float) -> Evidence:
    count = pool.count[i] + pool.count[j]
    freedom = np.maximum(count - pool.holders[i] - pool.holders[j], 0)
    weights = pool.weight[i], pool.weight[j]
    usable = (np.minimum(*weights) >= 1) & (freedom >= LEAST_FREEDOM)
    with np.errstate(divide="ignore"):
        scale = np.where(usable, 1 / weights[0] + 1 / weights[1], 1.0)
    covariance = _noise_covariance(pool, i, j, count, freedom)
    difference = np.where(usable[..., None], pool.mean[i] - pool.mean[j], 0.0)
    length = difference.shape[2]
    known = pool.noise[i] + pool.noise[j]
    if known.any():
        added = known[..., None, None] * np.eye(length)
        statistic = _quadratic(covariance * scale[..., None, None] + added, difference)
    else:
        statistic = _quadratic(covariance, difference) / scale
    law = _hotelling(length, freedom)

    def judge(rows: NDArray[np.bool_] | slice, granted: float) -> tuple[Array, Array, Array]:
        shrunk = statistic[rows] * scale[rows] / (scale[rows] + granted**2)
        stretch, second = law[0][rows], law[1][rows]
        classes = np.where(usable[rows], _log_fisher(shrunk, stretch, second, length), 0.0)
        joint = _log_joint(shrunk, usable[rows], stretch, second, length)
        return classes, joint, _log_labels(pool.labels[i][rows], pool.labels[j][rows], granted)

    classes, joint, labels = judge(slice(None), 0.0)
    trifle = _strongest(classes, joint, labels)
    # against the sampling noise of few examples the floor is nothing, and both answers are the same
    matters = np.where(usable, floor**2 / scale, 0).max(axis=1, initial=0) > 0.02
    if matters.any():
        trifle[matters] = _strongest(*judge(matters, floor))
    return Evidence(classes, np.sqrt(np.maximum(statistic * scale, 0)), joint, labels, trifle)


def _noise_covariance(pool: Pool, i: Index, j: Index, count: Array, freedom: Array) -> Array:
    """Within-class covariance of each pair and class, shrunk towards the pair's average where samples are few."""
    n = pool.count[i][..., None, None], pool.count[j][..., None, None]
    total = np.maximum(count, 1e-12)[..., None, None]
    pooled = (n[0] * pool.covariance[i] + n[1] * pool.covariance[j]) / total
    pooled *= (count / np.maximum(freedom, 1))[..., None, None]
    variance = np.einsum("puii->pui", pooled)
    share = freedom / np.maximum(freedom.sum(axis=1, keepdims=True), 1e-12)
    typical = np.einsum("pu,pui->pi", share, variance)[:, None]
    tiny = 1e-12 * typical.max(axis=2, keepdims=True) + 1e-30
    deviation = np.sqrt(np.maximum(variance, tiny))
    correlation = pooled / (deviation[..., :, None] * deviation[..., None, :])
    average = np.einsum("pu,puij->pij", share, correlation)[:, None]
    trust = freedom[..., None, None]
    correlation = (trust * correlation + CORRELATION_PRIOR * average) / (trust + CORRELATION_PRIOR)
    diagonal = np.arange(correlation.shape[-1])
    correlation[..., diagonal, diagonal] = 1.0
    trust = freedom[..., None]
    deviation = np.sqrt((trust * variance + VARIANCE_PRIOR * typical) / (trust + VARIANCE_PRIOR) + tiny)
    return np.asarray(correlation * deviation[..., :, None] * deviation[..., None, :])


def _quadratic(matrix: Array, vector: Array) -> Array:
    """xᵀ M⁻¹ x for stacks of symmetric matrices."""
    ridge = 1e-9 * np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] / matrix.shape[-1]
    solved = np.linalg.solve(matrix + ridge * np.eye(matrix.shape[-1]), vector[..., None])[..., 0]
    return np.asarray((vector * solved).sum(axis=-1))


def _hotelling(length: int, freedom: Array) -> tuple[Array, Array]:
    """T² is `stretch`·F(l, `second`) under the null: Hotelling's law for the shrunk correlation, but never with more
    degrees of freedom than the class variances have, since those are hardly shrunk.
    """
    trust = freedom + CORRELATION_PRIOR
    rest = np.maximum(trust - length + 1, 1.0)
    return length * trust / rest, np.minimum(rest, freedom + VARIANCE_PRIOR)


def _log_fisher(statistic: Array, stretch: Array, second: Array, length: int) -> Array:
    return _log_tail(fisher.sf(statistic / stretch, length, second), statistic, length)


def _log_joint(statistic: Array, usable: NDArray[np.bool_], stretch: Array, second: Array, length: int) -> Array:
    """The sum over classes as a scaled χ² with the mean and variance of the sum of T²s (Satterthwaite)."""
    low, high = np.maximum(second - 2, 1.0), np.maximum(second - 4, 1.0)
    mean = np.where(usable, stretch * second / low, 0).sum(axis=1)
    spread = 2 * (stretch * second) ** 2 * (length + second - 2) / (length * low**2 * high)
    variance = np.where(usable, spread, 0).sum(axis=1)
    total = np.where(usable, statistic, 0).sum(axis=1)
    safe_mean, safe_variance = np.where(mean > 0, mean, 1.0), np.where(variance > 0, variance, 1.0)
    unit = safe_variance / (2 * safe_mean)
    freedom = safe_mean / unit
    tail = _log_tail(chi2.sf(total / unit, freedom), total / unit, freedom)
    return np.where(mean > 0, tail, 0.0)


def _log_labels(first: Array, second: Array, floor: float) -> Array:
    """Pearson's χ² of homogeneity on effective label counts."""
    sizes = first.sum(axis=1, keepdims=True), second.sum(axis=1, keepdims=True)
    safe = np.maximum(sizes[0], 1e-12), np.maximum(sizes[1], 1e-12)
    share = (first + second) / (safe[0] + safe[1])
    present = share > 0
    scale = 1 / safe[0] + 1 / safe[1] + floor**2
    gap = (first / safe[0] - second / safe[1]) ** 2 / np.where(present, share, 1.0) / scale
    statistic = np.where(present, gap, 0).sum(axis=1)
    freedom = np.maximum(present.sum(axis=1) - 1, 1)
    tail = _log_tail(chi2.sf(statistic, freedom), statistic, freedom)
    return np.where((sizes[0] > 0)[:, 0] & (sizes[1] > 0)[:, 0], tail, 0.0)


def _log_tail(probability: Array | float, statistic: Array, freedom: Array | int) -> Array:
    """log p, and Chernoff's bound of the χ² tail where p is too small for a float."""
    with np.errstate(divide="ignore"):
        ratio = np.maximum(statistic / freedom, 1.0)
        bound = -(np.maximum(statistic - freedom, 0) - freedom * np.log(ratio)) / 2
        return np.where(probability > 1e-290, np.log(np.maximum(probability, 1e-300)), np.minimum(bound, -667.0))


def log_splits(first: Array, second: Array) -> Array:
    """The logarithm of how many ways there are to part a + b clients into an a and a b, over every size of split.

    A split that was *found* is one of these, so its p-value is multiplied by their number: a union bound that holds
    whatever rule found it.
    """
    both = first + second
    ways = gammaln(both + 1) - gammaln(first + 1) - gammaln(second + 1) - np.where(first == second, np.log(2), 0.0)
    return np.asarray(ways + np.log(np.maximum(np.floor(both / 2), 1)))
