"""Inputs that nobody owns, on which a model shows where its latents lie without any data: smooth random fields for
images, and what inputs look like once they are scaled for everything else.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from fedflux.data import Federation

IMAGES = 500
SEED = 1


def public_inputs(federation: Federation) -> Tensor:
    """Inputs of the kind that a federation's clients hold, as an engine takes them."""
    shape, scaling = federation.input_shape, federation.dataset.scaling
    if federation.dataset.holds_images and scaling.pixels is not None:
        return torch.from_numpy(public_images(shape))
    rng = np.random.default_rng(SEED)
    if federation.integers:  # how many ids there are is the model's affair: the first is always one
        return torch.zeros(IMAGES, *shape, dtype=torch.int64)
    drawn = rng.normal(size=(IMAGES, *shape)) if scaling.pixels is None else rng.random((IMAGES, *shape))
    return torch.from_numpy(drawn.astype(np.float32))


def public_images(shape: tuple[int, ...], count: int = IMAGES, seed: int = SEED) -> NDArray[np.float32]:
    """`count` images with pixels in [0, 1]: fields of random coarseness, contrast and share of dark, grey or coloured.

    They depend on the shape alone, so every machine makes the same ones.
    """
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    images = np.empty((count, *shape), dtype=np.float32)
    for image in images:
        coarseness, dark, contrast = rng.uniform(0.5, 4), rng.uniform(-1, 2), rng.uniform(0.5, 3)
        layers = channels if rng.random() < 0.5 else 1
        field = np.stack(
            [gaussian_filter(rng.normal(size=(height, width)), coarseness, mode="wrap") for _ in range(layers)]
        )
        field /= max(float(field.std()), 1e-12)
        image[:] = np.clip(contrast * (field - dark), 0, 1)
    return images


class LatentSum:
    """The statistic behind a mean latent: how many, and their sum."""

    def add(self, so_far: tuple[int, Tensor] | None, latents: Tensor, labels: Tensor | None) -> tuple[int, Tensor]:
        """The sum with one more batch."""
        new = latents.double().sum(dim=0)
        return (len(latents), new) if so_far is None else (so_far[0] + len(latents), so_far[1] + new)


def mean_latent(summed: tuple[int, Tensor]) -> NDArray[np.float64]:
    """The mean itself."""
    return np.asarray((summed[1] / summed[0]).cpu().numpy(), dtype=np.float64)
