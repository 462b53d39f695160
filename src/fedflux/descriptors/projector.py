"""S2, the shared projector: a PCA of synthetic points, so that every client derives the same map from the bounds."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from fedflux.descriptors.bounds import Bounds

COMPONENTS = 10
POINTS = 200
SEED = 1


@dataclass(frozen=True, eq=False)
class Projector:
    """ξ: latent (v) → reduced latent (l), as z = (latent − mean) · componentsᵀ."""

    mean: NDArray[np.float64]
    components: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.components)

    @property
    def nbytes(self) -> int:
        """What sending it costs, in single precision."""
        return 4 * (self.components.size + self.mean.size)

    def project(self, latents: Tensor) -> Tensor:
        """Reduced latents in float64, on the latents' device."""
        mean, turned = _on(self, latents.device)
        return (latents.double() - mean) @ turned


@lru_cache(maxsize=4)
def _on(projector: Projector, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and componentsᵀ, sent to a device once and not for every client."""
    parts = (torch.as_tensor(part, device=device) for part in (projector.mean, projector.components))
    mean, components = parts
    return mean, components.T


def fit_projector(bounds: Bounds, components: int = COMPONENTS, points: int = POINTS, seed: int = SEED) -> Projector:
    """PCA of `points` uniform draws from the bounds; signs are fixed so that every machine gets the same map.

    On a uniform box this is close to a random orthonormal projection: geometry is kept, variance is not maximised.
    """
    low, high = bounds.low.astype(np.float64), bounds.high.astype(np.float64)
    synthetic = low + (high - low) * np.random.default_rng(seed).random((points, len(low)))
    mean = synthetic.mean(axis=0)
    axes = _principal_axes(synthetic - mean, min(components, len(low)))
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return Projector(mean, axes * np.where(largest < 0, -1.0, 1.0))


def _principal_axes(centred: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The first right singular vectors, from the smaller of the two matrices of products, in a third of the time.

    Where they are not all well above rounding, as with dead latents, the whole decomposition decides.
    """
    points, width = centred.shape
    wide = width > points
    products = centred @ centred.T if wide else centred.T @ centred
    most = min(count, len(products))
    values, vectors = eigh(products, subset_by_index=(len(products) - most, len(products) - 1))
    if values[0] <= 1e-6 * values[-1]:
        return np.asarray(np.linalg.svd(centred, full_matrices=False)[2][:count])
    axes = vectors.T @ centred / np.sqrt(values)[:, None] if wide else vectors.T
    return np.asarray(axes[::-1])
