"""S4: descriptors with differential privacy (docs/privacy.md).

A record's contribution is the direction z of its reduced latent around a public centre, ‖z‖ ≤ 1, put in the place of
its class: (z, z_i²/√2, z_i z_j for i < j, 1/√2), which is (z, zzᵀ/√2, 1/√2) by Frobenius' norm. Sums of contributions
get Gaussian noise once; everything below is then computed from the noisy sums and public numbers, at no further cost.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedflux.descriptors.projector import Projector

Array = NDArray[np.float64]

WEIGHT = 0.5**0.5
"""Of second moments and counts. With it, replacing a record by one of the same class moves the sums by at most
|z − z′|² + |zzᵀ − z′z′ᵀ|²/2 ≤ 4, and by one of another class by at most 2 (1 + ½ + ½) = 4: they cost nothing."""
GRID = 2.0**30
"""Contributions are rounded to multiples of 1/GRID, so that sums are exact in any order."""
SENSITIVITY = 2.0 + 1e-6
"""ℓ2, with more than the rounding of contributions can add."""
LEAST = 3.0
"""Deviations of the count's noise that a class must stand out by to be described."""


@dataclass(frozen=True, eq=False)
class ReleaseSums:
    """What is released of one part of a client's data, before noise: a row a class, one row without labels."""

    count: Tensor
    first: Tensor
    squares: Tensor
    products: Tensor
    """Of pairs of coordinates i < j."""

    def vector(self, labelled: bool) -> Array:
        """Flat, with its weights; without labels the count is public, and nobody asks for products."""
        parts = [self.first.flatten(), WEIGHT * self.squares.flatten()]
        if labelled:
            parts = [WEIGHT * self.count, *parts, self.products.flatten()]
        return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.float64)


@dataclass(frozen=True)
class ReleaseStatistic:
    """The statistic of a private descriptor, streamed batch by batch; `classes` is None for unlabelled clients."""

    projector: Projector
    classes: int | None

    def add(self, so_far: ReleaseSums | None, latents: Tensor, labels: Tensor | None) -> ReleaseSums:
        """The sums with one more batch."""
        z = directions(self.projector.project(latents))
        groups = torch.ones(len(z), 1, dtype=z.dtype, device=z.device)
        if self.classes is not None:
            if labels is None:
                raise ValueError("class-conditional sums need labels")
            groups = one_hot(labels, self.classes).to(z.dtype)
        i, j = torch.triu_indices(z.shape[1], z.shape[1], 1, device=z.device)
        products = groups.T @ _rounded(z[:, i] * z[:, j])
        new = ReleaseSums(groups.sum(dim=0), groups.T @ z, groups.T @ _rounded(z**2), products)
        if so_far is None:
            return new
        pairs = ((getattr(so_far, name), getattr(new, name)) for name in ("count", "first", "squares", "products"))
        return ReleaseSums(*(one + other for one, other in pairs))


def directions(z: Tensor) -> Tensor:
    """Vectors brought to norm 1; the zero vector, and whatever is not finite, becomes zero."""
    largest = z.abs().amax(dim=1, keepdim=True)
    z = z / largest  # first to a largest entry of 1: squares of tiny or huge ones are lost, and the norm with them
    norm = z.norm(dim=1, keepdim=True)
    unit = torch.where((largest > 0) & torch.isfinite(norm), z / norm, torch.zeros_like(z))
    return _rounded(unit)


def _rounded(values: Tensor) -> Tensor:
    return torch.round(values * GRID) / GRID


@dataclass(frozen=True, eq=False)
class Release:
    """What one client's noisy sums tell: the fields of a descriptor."""

    mean: Array
    """(groups, l), the marginal first."""
    spread: Array
    correlation: Array
    """(classes, l, l)."""
    count: Array
    """(groups,): the public size, then noisy counts that add up to it; some may be negative."""
    effective: Array
    """(groups,): the same, 0 for classes too small to be described."""
    noise: Array
    """(groups,): variance of the noise on each coordinate of the means."""
    count_noise: float
    """Variance of the noise on each count."""


def read_release(vector: Array, size: int, classes: int, length: int, sigma: float) -> Release:
    """Post-processing of a labelled client's noisy sums."""
    raw, first, squares, products = _cut(vector, classes, length, labelled=True)
    count = raw - (raw.sum() - size) / classes
    count_noise = 2 * sigma**2 * (1 - 1 / classes)
    present = count >= max(2.0, LEAST * count_noise**0.5)
    n = np.where(present, count, 1.0)
    mean = np.where(present[:, None], first / n[:, None], 0.0)
    noise = np.where(present, sigma**2 / n**2, 0.0)
    scale = np.clip(1 - (mean**2).sum(axis=1) + length * noise, 0.02, 1.0)  # directions: tr Σzzᵀ is the count
    second = _square(squares, products)
    pooled = _pooled(second.sum(axis=0) / size, mean, np.where(present, n, 0.0), scale, size, sigma)
    within = np.zeros_like(second)
    for u in np.flatnonzero(present):
        own = second[u] / n[u] - np.outer(mean[u], mean[u]) + noise[u] * np.eye(length)
        known = (sigma / n[u]) ** 2 * (np.array([2.0, 1.0]) + np.array([4.0, 2.0]) * (mean[u] ** 2).mean())
        within[u] = shrunk(own, pooled * scale[u] / np.trace(pooled), known)
    variance = np.einsum("uii->ui", within)
    deviation = np.sqrt(np.where(present[:, None], variance, 1.0))
    correlation = np.where(present[:, None, None], within, np.eye(length))
    marginal = first.sum(axis=0) / size
    marginal_noise = classes * sigma**2 / size**2
    around = squares.sum(axis=0) / size - marginal**2 + marginal_noise
    return Release(
        mean=np.concatenate([marginal[None], mean]),
        spread=np.sqrt(np.concatenate([np.maximum(around, 0.02 / length)[None], variance])),
        correlation=correlation / (deviation[:, :, None] * deviation[:, None, :]),
        count=np.concatenate([[size], np.rint(count)]),
        effective=np.concatenate([[size], np.where(present, count, 0.0)]),
        noise=np.concatenate([[marginal_noise], noise]),
        count_noise=count_noise + 1 / 12,
    )


def read_marginal(vector: Array, size: int, length: int, sigma: float) -> tuple[Array, Array, float]:
    """Mean, deviations and the variance of the noise on the mean, of an unlabelled client's noisy sums."""
    _, first, squares, _ = _cut(vector, 1, length, labelled=False)
    mean, noise = first[0] / size, sigma**2 / size**2
    variance = np.maximum(squares[0] / size - mean**2 + noise, 0.02 / length)
    return mean, np.sqrt(variance), noise


def _pooled(second: Array, mean: Array, count: Array, scale: Array, size: int, sigma: float) -> Array:
    """The covariance within classes, over all of them."""
    length = len(second)
    within = second - np.einsum("u,ui,uj->ij", count / size, mean, mean)
    known = np.array([2.0, 1.0]) * len(mean) + np.array([4.0, 2.0]) * (mean**2).sum() / length
    trace = float((count * scale).sum() / count.sum()) if count.any() else 1.0
    return shrunk(within, trace / length * np.eye(length), (sigma / size) ** 2 * known)


def shrunk(covariance: Array, target: Array, known: Array) -> Array:
    """A noisy covariance made positive, with the trace of the target and drawn to it as far as noise explains the gap.

    `known` are the noise variances of a diagonal and of any other entry.
    """
    length, trace = len(target), float(np.trace(target))
    gap = covariance - target
    gap = gap - np.trace(gap) / length * np.eye(length)
    chance = length * known[0] + length * (length - 1) * known[1]
    keep = max(1 - chance / max(float((gap**2).sum()), 1e-300), 0.0)
    values, axes = np.linalg.eigh(target + keep * gap)
    least = min(0.02 * trace / length + (length * known[1]) ** 0.5, 0.1 * trace / length)
    values = np.maximum(values, least)
    return np.asarray((axes * (values * trace / values.sum())) @ axes.T)


def _cut(vector: Array, classes: int, length: int, labelled: bool) -> tuple[Array, Array, Array, Array]:
    """Counts, Σz, Σz² and Σz_i z_j from the flat, weighted sums."""
    begins = np.cumsum([classes * labelled, classes * length, classes * length])
    count, first, squares, products = np.split(vector, begins)
    shape = (classes, length)
    return count / WEIGHT, first.reshape(shape), squares.reshape(shape) / WEIGHT, products.reshape(classes, -1)


def _square(squares: Array, products: Array) -> Array:
    """Σzzᵀ by class."""
    classes, length = squares.shape
    upper = np.triu_indices(length, 1)
    matrix = np.zeros((classes, length, length))
    matrix[:, upper[0], upper[1]] = matrix[:, upper[1], upper[0]] = products
    matrix[:, np.arange(length), np.arange(length)] = squares
    return matrix
