"""S2 beyond the paper: a projector onto the directions in which classes and clients differ, found from pooled scatter.

The paper's projector is close to a random one: of a v-dimensional latent it keeps l/v of what tells two distributions
apart, which is plenty where a class has hundreds of examples and nothing where it has four. Clients can say which
directions matter without showing examples: they add up the scatter of their latents within their classes, S_W, and
altogether, S_T. Directions that maximise S_T against S_W (Fisher's discriminants) are those in which class means,
whichever label a client gives them, or clients' looks, lie farthest apart in units of sampling noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedflux.flux.projector import Projector

BREADTH = 120
"""Directions of the latent, drawn like the paper's, in which scatter is summed: all v² of it would outweigh a model."""
CLEARLY = 1.25
"""A direction counts as one in which something differs where S_T/S_W exceeds the noise's own edge so many times."""


@dataclass(frozen=True, eq=False)
class ScatterSums:
    """Counts and Σz by class, and Σzzᵀ over everything."""

    count: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class ScatterStatistic:
    """What a client sums over its labelled examples, streamed batch by batch in float64."""

    base: Projector
    classes: int

    def add(self, so_far: ScatterSums | None, latents: Tensor, labels: Tensor | None) -> ScatterSums:
        """The sums with one more batch."""
        if labels is None:
            raise ValueError("scatter within classes needs labels")
        z = self.base.project(latents)
        groups = one_hot(labels, self.classes).to(z.dtype)
        new = ScatterSums(groups.sum(dim=0), groups.T @ z, z.T @ z)
        if so_far is None:
            return new
        return ScatterSums(so_far.count + new.count, so_far.first + new.first, so_far.second + new.second)


@dataclass(frozen=True, eq=False)
class Scatter:
    """What clients send, and what it adds up to."""

    count: float
    """Examples."""
    groups: float
    """Classes that clients hold: each costs a degree of freedom."""
    first: NDArray[np.float64]
    """(m,): Σz."""
    within: NDArray[np.float64]
    """(m, m): Σ(z − class mean)(z − class mean)ᵀ."""
    second: NDArray[np.float64]
    """(m, m): Σzzᵀ."""

    @property
    def nbytes(self) -> int:
        """What one client sends: two symmetric matrices, a vector and two counts, in single precision."""
        breadth = len(self.first)
        return 4 * (breadth * (breadth + 1) + breadth + 2)


def client_scatter(sums: ScatterSums) -> Scatter:
    """One client's part; a class of one example says nothing about scatter and costs what it brings."""
    count, first, second = (np.asarray(part.cpu().numpy(), dtype=np.float64) for part in vars(sums).values())
    means = first / np.maximum(count, 1)[:, None]
    return Scatter(float(count.sum()), float((count > 0).sum()), first.sum(axis=0), second - first.T @ means, second)


def merge_scatter(clients: Sequence[Scatter]) -> Scatter:
    """The sums over clients, which is all that a server need see."""
    return Scatter(*(sum(getattr(one, name) for one in clients) for name in vars(clients[0])))


def fit_discriminant(base: Projector, scatter: Scatter, components: int) -> Projector:
    """The clearest directions of the base, and where fewer than `components` are clear, its own first ones.

    What is not clearly more than noise is left to chance: a direction chosen because clients happen to differ in it
    would make them differ in the tests that follow.
    """
    breadth, freedom = len(base), scatter.count - scatter.groups
    chosen = min(components, breadth)
    if freedom <= breadth:
        return Projector(base.mean, base.components[:chosen])
    within = scatter.within / freedom
    mean = scatter.first / scatter.count
    total = scatter.second / scatter.count - np.outer(mean, mean)
    ridge = 1e-9 * np.trace(within) / breadth + 1e-30
    values, axes = np.linalg.eigh(within + ridge * np.eye(breadth))
    whitening = axes / np.sqrt(np.maximum(values, ridge))
    ratios, turned = np.linalg.eigh(whitening.T @ total @ whitening)
    edge = CLEARLY * np.median(ratios) * (1 + np.sqrt(breadth / freedom)) ** 2
    clear = np.flatnonzero(ratios > edge)[::-1][:chosen]
    found = (whitening @ turned[:, clear]).T
    rest = _apart_from(found, within)[: chosen - len(clear)]
    directions = np.concatenate([found, rest]) @ base.components
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return Projector(base.mean, directions * np.where(largest < 0, -1.0, 1.0))


def _apart_from(found: NDArray[np.float64], within: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit directions of the base in order, less what they share with those found, at unit scatter within classes."""
    axes = np.eye(len(within)) - (found @ within).T @ found
    axes = axes[np.sqrt(np.einsum("ij,ij->i", axes, axes)) > 1e-6]
    size = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", axes, within, axes), 1e-30))
    return np.asarray(axes / size[:, None])
