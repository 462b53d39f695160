"""By how much class means of clients of one cluster differ: two variance components, estimated robustly.

In units of a class's deviations, client k's mean has the covariance R/e + αR + βI around its cluster's: sampling noise,
a random effect along the class's own scatter, and one that is independent by coordinate. In the eigenbasis of R the
three are 1/e + α + β/λ_j. A shift touches some classes of some clients, natural variation all: so classes of clients
that stand out of the rest are left out, and the others give α and β by their moments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import chdtrc
from scipy.stats import chi2

from fedflux.clustering.evidence.pool import Array, Index, Pool
from fedflux.clustering.variation.spreads import relative_spreads
from fedflux.descriptors.sums import group_sums

COUNTED = 5.0
"""Effective examples that a client's class must have to be counted."""
CLEARLY = 2.33
"""By how many standard errors the scatter must exceed that of sampling to be called variation: one time in a hundred
by chance."""
KEPT = 0.9
"""Classes of clients that stand out less than one in ten would by chance are counted."""
STEPS = 12
CALM = 0.2
"""The share of classes that are asked where classes scatter unlike each other."""
UNLIKE = 0.001
"""The chance that they seem to where they do not."""


@dataclass(frozen=True)
class RandomEffects:
    """α and β of class means, and how well they are known."""

    along: float
    """α, in within-class variances."""
    apart: float
    """β, in squared deviations of single coordinates."""
    whitened: float
    """α + β·mean(1/λ): both together, per whitened coordinate."""
    freedom: float
    """Degrees of freedom behind them."""
    directions: float
    """Scatter over what sampling explains, one at most; one where clients scatter unlike each other."""
    most: float
    """√(α + β) where all classes are asked, though they scatter unlike each other."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Classes of clients, in the eigenbasis of the class's correlations, where sampling noise is 1/e."""

    points: Array
    """(K, U, l)."""
    weight: Array
    """(K, U): e, 0 where there is too little to count or nobody to compare with."""
    inverse: Array
    """(U, l): 1/λ."""
    labels: Index
    clusters: int

    def add(self, values: Array) -> Array:
        """Values of clients, summed over clusters."""
        return group_sums(values, self.labels, self.clusters)

    def residuals(self, effects: Array) -> tuple[Array, Array]:
        """Squared residuals (K, U, l) from the cluster's weighted means; their variances given these effects (U, l)."""
        noise = 1 / np.maximum(self.weight, 1e-12)[..., None] + effects
        precision = np.where(self.weight[..., None] > 0, 1 / noise, 0.0)
        total = np.maximum(self.add(precision), 1e-30)
        centre = self.add(precision * self.points) / total
        left = np.where(precision > 0, np.maximum(noise - (1 / total)[self.labels], 1e-3 * noise), 1.0)
        return (self.points - centre[self.labels]) ** 2, left


def random_effects(pool: Pool, labels: Index, clusters: int) -> RandomEffects | None:
    """α and β of single clients (the groups of `pool`) within clusters; None where there is nothing to go by."""
    cells = cells_of(pool, labels, clusters)
    held = cells.weight > 0
    if not held.any():
        return None
    length = cells.points.shape[2]
    members = cells.add(held.astype(np.float64))[labels]
    worth = np.where(held, 1 - 1 / np.maximum(members, 1), 0.0)  # degrees of freedom of each cell, in clients
    squared, left = cells.residuals(np.zeros_like(cells.inverse))
    outlying = (squared / left).sum(axis=2)
    scatter = outlying / length
    alike = _agree(scatter, worth, length, axis=1)
    ratio = _median(outlying[held], worth[held]) / chi2.median(length)
    whole = _components(cells, held, worth, ratio)
    calm, most = _calmest(scatter, worth, length), float(np.sqrt(sum(whole)))
    if np.array_equal(calm, held):
        components = whole
    else:
        held, worth = calm, np.where(calm, worth, 0.0)
        components = _components(cells, held, worth, _median(outlying[held], worth[held]) / chi2.median(length))
    typical = float((cells.inverse.mean(axis=1) * held.sum(axis=0)).sum() / held.sum())
    whitened = components[0] + components[1] * typical
    directions = min(ratio, 1.0) if alike else 1.0
    return RandomEffects(*components, whitened, KEPT * length * worth.sum(), directions, most)


def _scatter(cells: Array, worth: Array, axis: int) -> tuple[Array, Array, float]:
    """The mean scatter of each class (axis 0) or client (axis 1), what it is worth in clients, and that of all."""
    total = worth.sum(axis=axis)
    mean = (worth * cells).sum(axis=axis) / np.maximum(total, 1e-12)
    return mean, total, float((total * mean).sum() / max(total.sum(), 1e-12))


def _agree(cells: Array, worth: Array, length: int, axis: int) -> bool:
    """Whether classes (axis 0) or clients (axis 1) scatter alike, as far as chance lets one tell."""
    mean, total, typical = _scatter(cells, worth, axis)
    known = total > 0
    if known.sum() < 2 or typical <= 0:
        return True
    unlike = length * (total[known] * (mean[known] / typical - 1) ** 2).sum() / 2
    return bool(chdtrc(known.sum() - 1, unlike) > UNLIKE)


def _components(cells: Cells, held: NDArray[np.bool_], worth: Array, ratio: float) -> tuple[float, float]:
    """α and β, none where scatter exceeds what sampling explains by no more than the median's error."""
    error = 1.25 * np.sqrt(2 / (cells.points.shape[2] * worth.sum()))
    return (0.0, 0.0) if ratio < 1 + CLEARLY * error else _fitted(cells, held, worth)


def _calmest(cells: Array, worth: Array, length: int) -> NDArray[np.bool_]:
    """Which cells say what is natural: all, or where classes differ in how far they scatter, a fifth of the classes.

    Exchanged labels, or some classes that look different, leave other classes alone; natural variation leaves none.
    """
    if _agree(cells, worth, length, axis=0):
        return worth > 0
    mean, total, typical = _scatter(cells, worth, axis=0)
    known = np.flatnonzero(total > 0)
    calm = known[np.argsort(mean[known], kind="stable")[: max(round(CALM * len(known)), 1)]]
    if (total[calm] * mean[calm]).sum() / total[calm].sum() - 1 > (typical - 1) / 2:
        return worth > 0
    return (worth > 0) & np.isin(np.arange(worth.shape[1]), calm)


def _fitted(cells: Cells, held: NDArray[np.bool_], worth: Array) -> tuple[float, float]:
    """α and β: cells that stand out are left out, the moments of the others fitted, again until it stays."""
    length = cells.points.shape[2]
    limit = chi2.ppf(KEPT, length)
    shrunk = chi2.cdf(limit, length + 2) / KEPT  # of the variance, by leaving out the tail
    found = np.zeros(2)
    for step in range(STEPS):
        effects = found[0] + found[1] * cells.inverse
        squared, left = cells.residuals(effects)
        outlying = (squared / left).sum(axis=2)
        if step < STEPS // 2:  # at first whatever is less than usual, since the size is not known yet
            outlying = outlying * chi2.median(length) / max(_median(outlying[held], worth[held]), 1e-12)
        kept = held & (outlying < limit)
        trust = np.where(kept, worth, 0.0)[..., None] / left**2
        excess = squared / shrunk - left
        shape = np.stack([np.ones_like(left), np.broadcast_to(cells.inverse, left.shape)])
        normal = np.einsum("kuj,akuj,bkuj->ab", trust, shape, shape)
        aim = np.einsum("kuj,akuj,kuj->a", trust, shape, excess) + normal @ found
        scale = np.sqrt(np.maximum(np.diag(normal), 1e-30))
        root = np.linalg.cholesky(normal / np.outer(scale, scale) + 1e-9 * np.eye(2))
        found = nnls(root.T, np.linalg.solve(root, aim / scale))[0] / scale
    return float(found[0]), float(found[1])


def _median(values: Array, weight: Array) -> float:
    """The weighted median."""
    order = np.argsort(values)
    up_to = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(up_to, up_to[-1] / 2)])


def cells_of(pool: Pool, labels: Index, clusters: int) -> Cells:
    """Class means in the eigenbasis of correlations that all clients' classes have on average."""
    freedom = pool.freedom.sum(axis=0)
    total = np.einsum("gu,guij->uij", pool.weight, pool.covariance).astype(np.float64)
    length = pool.mean.shape[2]
    average = total.sum(axis=0) / max(freedom.sum(), 1.0)
    covariance = (total + 2.0 * length * average) / np.maximum(freedom + 2.0 * length, 1.0)[:, None, None]
    deviation = np.sqrt(np.maximum(np.einsum("uii->ui", covariance), 1e-30))
    values, axes = np.linalg.eigh(covariance / deviation[:, :, None] / deviation[:, None, :])
    values = np.maximum(values, 1e-3)
    centre = np.einsum("gu,gui->ui", pool.weight, pool.mean) / np.maximum(pool.weight.sum(axis=0), 1e-12)[:, None]
    points = np.einsum("gui,uij->guj", (pool.mean - centre) / deviation, axes) / np.sqrt(values)
    # who has wider classes than others has noisier means, in units that are everybody's
    weight = np.where(pool.weight >= COUNTED, pool.weight / relative_spreads(pool)[:, None], 0.0)
    shared = group_sums((weight > 0).astype(np.float64), labels, clusters)[labels] > 1
    return Cells(points, np.where(shared, weight, 0.0), 1 / values, labels, clusters)
