"""The directions in which classes differ most: who names things otherwise than others differs from them along these.

Exchanged labels put a class where another one was. That is a step between class means, however many directions the
latent has besides, and a test that looks only there needs far fewer examples to see it.
"""

import numpy as np

from fedflux.clustering.evidence.blurred import quadratic
from fedflux.clustering.evidence.pool import Array, Pool

LEADING = 2
"""How many of them class means are compared in."""


def leading_axes(pool: Pool) -> Array:
    """(l, 2): Fisher's discriminant directions of the pooled classes; two classes have one."""
    weight = pool.weight.sum(axis=0)
    centre = np.einsum("gu,gui->ui", pool.weight, pool.mean) / np.maximum(weight, 1e-12)[:, None]
    within = np.einsum("gu,guij->ij", pool.weight, pool.covariance).astype(np.float64) / max(weight.sum(), 1e-12)
    values, axes = np.linalg.eigh(within)
    white = axes / np.sqrt(np.maximum(values, 1e-6 * values[-1] + 1e-30))
    gaps = (centre - weight @ centre / max(weight.sum(), 1e-12)) @ white
    between = np.linalg.eigh((weight[:, None] * gaps).T @ gaps)[1]
    few = min(LEADING, max(int(np.count_nonzero(weight)) - 1, 1))
    return np.asarray(white @ between[:, -few:])


def leading_squares(axes: Array, difference: Array, deviation: Array, noise: Array) -> Array:
    """(P, U): T² in these directions alone; differences and their noise are in units of the deviations."""
    turned = deviation[..., None] * axes
    reduced = np.swapaxes(turned, -1, -2) @ noise @ turned
    return quadratic(reduced, np.einsum("puj,pujk->puk", difference, turned))
