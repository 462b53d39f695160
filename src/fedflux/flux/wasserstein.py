"""Distribution fidelity (R1): the 2-Wasserstein distance of Gaussians and the proposition's constants."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import sqrtm

Matrix = NDArray[np.float64]


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
    """(c₋, c₊) with c₋Δ ≤ W2 ≤ c₊Δ for commuting covariances, from the extreme eigenvalues."""
    eigenvalues = np.concatenate([np.linalg.eigvalsh(c) for c in covariances])
    smallest, largest = eigenvalues.min(), eigenvalues.max()
    return min(1.0, 1 / (2 * np.sqrt(largest))), max(1.0, 1 / (2 * np.sqrt(smallest)))
