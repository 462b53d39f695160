"""Distribution fidelity (R1): the 2-Wasserstein distance of Gaussians, distances of descriptors, and how they compare.

A descriptor has a block for the marginal and one for each class. Everything here is squared and by block, so that
blocks that one side lacks can be left out; the distance of two clients is the root of the sum over the rest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import sqrtm

Matrix = NDArray[np.float64]
Rows = NDArray[np.int64]
ROUNDING = 1e-9
"""A squared distance is known to this share of the covariances' traces, of which it is the small difference."""


def gaussian_w2(mean_1: Matrix, covariance_1: Matrix, mean_2: Matrix, covariance_2: Matrix) -> float:
    """W2 in closed form: ‖μ1 − μ2‖² plus the squared Bures distance of the covariances."""
    root = np.real(sqrtm(covariance_1))
    cross = np.real(sqrtm(root @ covariance_2 @ root))
    bures = np.trace(covariance_1 + covariance_2 - 2 * cross)
    return float(np.sqrt(max(np.sum((mean_1 - mean_2) ** 2) + bures, 0.0)))


def descriptor_distance(mean_1: Matrix, covariance_1: Matrix, mean_2: Matrix, covariance_2: Matrix) -> float:
    """Δ of the proposition: Euclidean in means, Frobenius in covariances."""
    return float(np.sqrt(np.sum((mean_1 - mean_2) ** 2) + np.sum((covariance_1 - covariance_2) ** 2)))


def lipschitz_constants(*covariances: Matrix) -> tuple[float, float]:
    """(c₋, c₊) with c₋Δ ≤ W2 ≤ c₊Δ, from the extreme eigenvalues; the covariances need not commute."""
    eigenvalues = np.concatenate([np.linalg.eigvalsh(c) for c in covariances])
    low, high = constants(eigenvalues.min(), eigenvalues.max())
    return float(low), float(high)


def constants(smallest: NDArray[np.floating], largest: NDArray[np.floating]) -> tuple[Matrix, Matrix]:
    """(c₋, c₊) of eigenvalue ranges; c₊ is infinite for singular covariances, where the proposition says nothing."""
    with np.errstate(divide="ignore"):
        low = np.minimum(1.0, 0.5 / np.sqrt(np.maximum(largest, 0.0)))
        high = np.maximum(1.0, 0.5 / np.sqrt(np.maximum(smallest, 0.0)))
    return np.asarray(low), np.asarray(high)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """The first two moments of n clients in the same groups, with what every pair needs again."""

    mean: Matrix
    """(n, groups, l)."""
    covariance: Matrix
    """(n, groups, l, l)."""
    root: Matrix
    """(n, groups, l, l): Σ^½."""
    smallest: Matrix
    """(n, groups): extreme eigenvalues of Σ."""
    largest: Matrix

    @staticmethod
    def of(mean: Matrix, covariance: Matrix) -> "Gaussians":
        """Decompose every covariance once; eigenvalues that rounding made negative are 0."""
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        root = (vectors * np.sqrt(values)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
        return Gaussians(mean, covariance, root, values[..., 0], values[..., -1])

    def diagonal(self) -> "Gaussians":
        """The same with correlations dropped: covariances that commute, as the proposition assumes."""
        variance = np.einsum("kgii->kgi", self.covariance)
        return Gaussians.of(self.mean, variance[..., None] * np.eye(variance.shape[-1]))


@dataclass(frozen=True, eq=False)
class PairBlocks:
    """Squared distances of pairs of clients, one column a group: (pairs, groups)."""

    deviations: Matrix
    """‖Δμ‖² + ‖Δσ‖²: what descriptors of standard deviations see."""
    covariances: Matrix
    """‖Δμ‖² + ‖ΔΣ‖²: the proposition's Δ²."""
    gaussian: Matrix
    """W2² of the Gaussians."""
    slack: Matrix
    """What rounding may be off by."""


def pair_blocks(these: Gaussians, first: Rows, second: Rows) -> PairBlocks:
    """All squared distances of the pairs (first[p], second[p])."""
    means = np.sum((these.mean[first] - these.mean[second]) ** 2, axis=-1)
    variance = np.einsum("kgii->kgi", these.covariance)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    trace = variance.sum(axis=-1)
    spread = np.sum((deviation[first] - deviation[second]) ** 2, axis=-1)
    frobenius = np.sum((these.covariance[first] - these.covariance[second]) ** 2, axis=(-2, -1))
    inner = these.root[first] @ these.covariance[second] @ these.root[first]
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(inner), 0.0)).sum(axis=-1)
    traces = trace[first] + trace[second]
    bures = np.maximum(traces - 2 * cross, 0.0)
    return PairBlocks(means + spread, means + frobenius, means + bures, ROUNDING * (traces + means))


def pair_constants(these: Gaussians, first: Rows, second: Rows, used: NDArray[np.bool_]) -> tuple[Matrix, Matrix]:
    """(c₋, c₊) of every pair, from the eigenvalues of its two clients in the groups used (pairs × groups)."""
    smallest = np.minimum(these.smallest[first], these.smallest[second])
    largest = np.maximum(these.largest[first], these.largest[second])
    return constants(np.where(used, smallest, np.inf).min(axis=1), np.where(used, largest, 0.0).max(axis=1))
