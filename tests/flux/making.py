"""Descriptors made directly from samples, so that tests know the truth about them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.flux.descriptor import Descriptors, effective_counts, make_descriptors
from fedflux.flux.moments import Moments, MomentStatistic, moments
from fedflux.flux.projector import Projector
from fedflux.flux.wire import over_the_wire

Sample = tuple[NDArray[np.float64], NDArray[np.int64]]


def moments_of(z: NDArray[np.float64], y: NDArray[np.int64] | None, classes: int | None) -> Moments:
    """Moments of points that are reduced latents already."""
    statistic = MomentStatistic(Projector(np.zeros(z.shape[1]), np.eye(z.shape[1])), classes)
    return moments(statistic.add(None, torch.tensor(z), None if y is None else torch.tensor(y)))


def describe_samples(
    clients: Sequence[Sample],
    classes: int,
    rows: Sequence[NDArray[np.int64]] | None = None,
    validation: Sequence[NDArray[np.float64]] | None = None,
) -> Descriptors:
    """The descriptors of clients that hold (points, labels), as they arrive over the wire."""
    held = [np.arange(len(y)) for _, y in clients] if rows is None else rows
    return over_the_wire(
        make_descriptors(
            [moments_of(z, y, classes) for z, y in clients],
            [effective_counts(r, y, classes) for r, (_, y) in zip(held, clients, strict=True)],
            None if validation is None else [moments_of(z, None, None) for z in validation],
        )
    )


class Population:
    """Gaussian classes with unlike covariances: a world to draw clients from."""

    def __init__(self, seed: int, classes: int = 10, length: int = 10, gap: float = 2.0) -> None:
        rng = np.random.default_rng(seed)
        self.classes = classes
        self.mean = gap * rng.normal(size=(classes, length))
        common = rng.normal(size=(length, length))
        own = rng.normal(size=(classes, length, length))
        scale = rng.uniform(0.5, 2.0, size=(classes, 1, length))
        self.mix = (common + 0.4 * own) * scale

    def draw(
        self,
        rng: np.random.Generator,
        size: int,
        shares: NDArray[np.float64] | None = None,
        move: NDArray[np.float64] | None = None,
    ) -> Sample:
        """A client's sample; `move` (classes × l) shifts class means, `shares` sets label probabilities."""
        y = rng.choice(self.classes, size=size, p=shares)
        noise = np.einsum("ni,nij->nj", rng.normal(size=(size, self.mean.shape[1])), self.mix[y])
        mean = self.mean if move is None else self.mean + move
        return mean[y] + noise, y.astype(np.int64)
