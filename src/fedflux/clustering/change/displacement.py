"""Have all classes moved the same way? One test of the displacement that the class means of two groups share.

A sensor that ages, a light that dims: every class moves, each by too little to be seen alone. With δ_u the difference
of the class means of class u, of covariance c_u Σ_u with c_u = 1/n_u + 1/n′_u, the shared displacement is estimated by
the average δ = Σ_u a_u δ_u, a_u ∝ 1/c_u. Its covariance is C Σ_u a_u Σ_u with C = 1/Σ_u (1/c_u), whatever the Σ_u are.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from fedflux.clustering.evidence.blurred import known_covariance, log_tail, quadratic
from fedflux.clustering.evidence.comparison import Pool

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LEAST_FREEDOM = 5.0
"""Degrees of freedom, beyond as many as there are directions, below which nothing is compared."""


def log_displacement(pool: Pool, first: Index, second: Index, floor: float) -> Array:
    """(P,): log p of "no shared displacement" for pairs of groups, once `floor` deviations count as none.

    The variance that privacy added to class means is known and added to what sampling explains.
    """
    weights = pool.weight[first], pool.weight[second]
    freedom = np.maximum(weights[0] + weights[1] - pool.holders[first] - pool.holders[second], 0.0)
    usable = (np.minimum(*weights) >= 1) & (freedom > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(usable, 1 / (1 / weights[0] + 1 / weights[1]), 0.0)
    total = np.maximum(precision.sum(axis=1), 1e-12)
    share = precision / total[:, None]
    gap = np.einsum("pu,pui->pi", share, pool.mean[first] - pool.mean[second])
    inner = share * np.where(usable, 1 / np.maximum(freedom, 1e-12), 0.0)
    covariance = np.einsum("pu,puij->pij", inner * weights[0], pool.covariance[first])
    covariance += np.einsum("pu,puij->pij", inner * weights[1], pool.covariance[second])
    length = covariance.shape[-1]
    degrees = 1 / np.maximum((share * inner).sum(axis=1), 1e-12)  # Satterthwaite's, of the average of covariances
    tested = (degrees >= length + LEAST_FREEDOM) & usable.any(axis=1)
    diagonal = np.arange(length)
    typical = covariance[:, diagonal, diagonal].mean(axis=1)
    covariance[:, diagonal, diagonal] += (1e-9 * typical + 1e-30)[:, None]
    grown = covariance * (1 / total + floor**2)[:, None, None]
    if pool.noise.any():
        known = _known(pool, first) + _known(pool, second)
        grown += np.einsum("pu,puij->pij", share**2, known)
    statistic = quadratic(grown, gap)
    rest = np.maximum(degrees - length + 1, 1.0)
    tail = np.asarray(fdtrc(length, rest, statistic * rest / (length * np.maximum(degrees, 1.0))))
    return np.where(tested, log_tail(tail, statistic, length), 0.0)


def _known(pool: Pool, rows: Index) -> Array:
    return known_covariance(pool.mean[rows], pool.weight[rows], pool.noise[rows], pool.label_noise[rows])
