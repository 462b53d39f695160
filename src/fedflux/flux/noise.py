"""Tests on what privacy has blurred: noise of known variance is part of the null (docs/privacy.md)."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

Array = NDArray[np.float64]


def known_covariance(mean: Array, weight: Array, noise: Array, label_noise: Array) -> Array:
    """(P, U, l, l): what privacy added to class means.

    A private mean is a noisy sum over a noisy count, so besides the sum's noise, the same in all directions, there is
    the count's along the mean itself.
    """
    along = np.where(weight > 0, label_noise[:, None] / np.maximum(weight, 1.0) ** 2, 0.0)
    stretched = along[..., None, None] * mean[..., :, None] * mean[..., None, :]
    return np.asarray(noise[..., None, None] * np.eye(mean.shape[2]) + stretched)


def share_noise(labels: Array, label_noise: Array) -> Array:
    """(P,): what privacy added to the variance of a label's share before shares were made to add up to one.

    `label_noise` is what is left of it on a count afterwards, 1 − 1/U of it.
    """
    classes = max(labels.shape[1], 2)
    return np.asarray(label_noise / (1 - 1 / classes) / np.maximum(labels.sum(axis=1), 1.0) ** 2)


def log_noisy_labels(first: Array, second: Array, floor: float, blur: Array) -> Array:
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
    scale = 1 / sizes[0] + 1 / sizes[1] + floor**2
    covariance = scale[..., None] * multinomial + blur[:, None, None] * (eye - 1 / classes)
    gap = first / sizes[0] - second / sizes[1]
    statistic = quadratic(covariance[:, :-1, :-1], gap[:, :-1])
    return log_tail(chi2.sf(statistic, classes - 1), statistic, classes - 1)


def quadratic(matrix: Array, vector: Array) -> Array:
    """xᵀ M⁻¹ x for stacks of symmetric matrices."""
    ridge = 1e-9 * np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] / matrix.shape[-1] + 1e-60
    solved = np.linalg.solve(matrix + ridge * np.eye(matrix.shape[-1]), vector[..., None])[..., 0]
    return np.asarray((vector * solved).sum(axis=-1))


def log_tail(probability: Array | float, statistic: Array, freedom: Array | int) -> Array:
    """log p, and Chernoff's bound of the χ² tail where p is too small for a float."""
    with np.errstate(divide="ignore"):
        ratio = np.maximum(statistic / freedom, 1.0)
        bound = -(np.maximum(statistic - freedom, 0) - freedom * np.log(ratio)) / 2
        return np.where(probability > 1e-290, np.log(np.maximum(probability, 1e-300)), np.minimum(bound, -667.0))
