"""Descriptors made directly from samples, so that tests know the truth about them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.descriptors.descriptor import Descriptors, effective_counts, make_descriptors
from fedflux.descriptors.moments import Moments, MomentStatistic, moments
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.wire import NONE, SCHEMA, from_arrays, over_the_wire

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


def many_descriptors(
    rng: np.random.Generator,
    world: Population,
    moves: NDArray[np.floating],
    truth: NDArray[np.int64],
    size: NDArray[np.int64] | None = None,
) -> Descriptors:
    """Descriptors of very many clients, of 50 to 500 examples or of `size`, drawn as moments instead of from samples.

    Class means have their normal law and class covariances Wishart's (Bartlett's factor); client k moves its class
    means by moves[truth[k]].
    """
    clients, (classes, length) = len(truth), world.mean.shape
    if size is None:
        size = np.exp(rng.uniform(np.log(50), np.log(500), clients)).astype(np.int64)
    count = rng.multinomial(size, np.full(classes, 1 / classes))
    upper, diagonal = np.triu_indices(length, k=1), np.arange(length)
    mean = np.zeros((clients, classes, length), np.float32)
    spread = np.zeros((clients, classes, length), np.float16)
    correlation = np.zeros((clients, classes, len(upper[0])), np.int8)
    for begin in range(0, clients, 2000):
        rows = slice(begin, begin + 2000)
        n = count[rows]
        noise = np.einsum("kui,uij->kuj", rng.normal(size=(*n.shape, length)), world.mix)
        drawn = world.mean + moves[truth[rows]] + noise / np.sqrt(np.maximum(n, 1))[..., None]
        mean[rows] = np.where(n[..., None] > 0, drawn, 0)
        freedom = np.maximum(n - 1, 0)[..., None] - diagonal
        factor = np.tril(rng.normal(size=(*n.shape, length, length)), -1)
        factor[..., diagonal, diagonal] = np.sqrt(rng.chisquare(np.maximum(freedom, 1)))
        factor *= (freedom > 0)[..., None, :]
        half = np.einsum("kuij,uim->kumj", factor, world.mix)
        covariance = half @ np.swapaxes(half, -1, -2) / np.maximum(n, 1)[..., None, None]
        deviation = np.sqrt(covariance[..., diagonal, diagonal])
        scale = np.maximum(deviation[..., :, None] * deviation[..., None, :], 1e-30)
        spread[rows] = np.log(np.maximum(deviation, np.exp(NONE)))
        correlation[rows] = np.rint((covariance / scale)[..., upper[0], upper[1]] * 127)
    return from_arrays(
        {
            "schema": np.array(SCHEMA),
            "mean": mean,
            "spread": spread,
            "count": count.astype(np.uint32),
            "effective": np.column_stack([count.sum(axis=1), count]).astype(np.float32),
            "validation_mean": np.einsum("ku,kui->ki", count / count.sum(axis=1, keepdims=True), mean).astype(
                np.float32
            ),
            "validation_count": (size // 5).astype(np.uint32),
            "correlation": correlation,
        }
    )


def many_clients(seed: int, truth: NDArray[np.int64], reach: float, changed: int = 2) -> Descriptors:
    """Very many clients whose clusters move `changed` classes each by `reach` deviations; cluster 0 moves none."""
    rng, world = np.random.default_rng(seed), Population(seed)
    clusters, (classes, length) = int(truth.max()) + 1, world.mean.shape
    direction = rng.normal(size=(clusters, classes, length))
    direction /= np.linalg.norm(direction, axis=2, keepdims=True)
    chosen = rng.random((clusters, classes)).argsort(axis=1) < changed
    chosen[0] = False
    moves = np.einsum("muj,uji->mui", reach * direction * chosen[..., None], world.mix)
    return many_descriptors(rng, world, moves.astype(np.float32), truth)
