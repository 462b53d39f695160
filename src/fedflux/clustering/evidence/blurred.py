"""Tests on what privacy has blurred: noise of known variance is part of the null (docs/privacy.md)."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def known_covariance(mean: Array, weight: Array, noise: Array, label_noise: Array) -> Array:
    """(P, U, l, l): what privacy added to class means.

    A private mean is a noisy sum over a noisy count, so besides the sum's noise, the same in all directions, there is
    the count's along the mean itself.
    """
    along = np.where(weight > 0, label_noise[:, None] / np.maximum(weight, 1.0) ** 2, 0.0)
    stretched = along[..., None, None] * mean[..., :, None] * mean[..., None, :]
    return np.asarray(noise[..., None, None] * np.eye(mean.shape[2]) + stretched)


def quadratic(matrix: Array, vector: Array) -> Array:
    """xᵀ M⁻¹ x for stacks of symmetric matrices."""
    ridge = 1e-9 * np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] / matrix.shape[-1] + 1e-60
    solved = np.linalg.solve(matrix + ridge * np.eye(matrix.shape[-1]), vector[..., None])[..., 0]
    return np.asarray(np.maximum((vector * solved).sum(axis=-1), 0.0))


def log_tail(probability: Array | float, statistic: Array, freedom: Array | int) -> Array:
    """log p, and Chernoff's bound of the χ² tail where p is too small for a float."""
    with np.errstate(divide="ignore"):
        ratio = np.maximum(statistic / freedom, 1.0)
        bound = -(np.maximum(statistic - freedom, 0) - freedom * np.log(ratio)) / 2
        return np.where(probability > 1e-290, np.log(np.maximum(probability, 1e-300)), np.minimum(bound, -667.0))
