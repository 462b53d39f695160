"""S2 beyond the paper: a projector onto the directions in which classes and clients differ, found from pooled scatter.

The paper's projector is close to a random one: of a v-dimensional latent it keeps l/v of what tells two distributions
apart, which is plenty where a class has hundreds of examples and nothing where it has four. Clients can say which
directions matter without showing examples: they add up the scatter of their latents within their classes, S_W, and
altogether, S_T. Directions that maximise S_T against S_W (Fisher's discriminants) are those in which class means,
whichever label a client gives them, or clients' looks, lie farthest apart in units of sampling noise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedflux.descriptors.projector import Projector

BREADTH = 120
"""Directions of the latent, drawn like the paper's, in which scatter is summed: all v² of it would outweigh a model."""
FREEDOM = 40.0
"""Degrees of freedom that each of these must have: directions fitted to fewer make clients look surer than they are."""
CLEARLY = 1.25
"""A direction counts as one in which something differs where S_T/S_W exceeds the edge of noise so many times."""


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
    """What clients send, in single precision, and what it adds up to."""

    count: float
    """Distinct examples (Kish's effective count)."""
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
        """What one client sends: two symmetric matrices, a vector and two counts."""
        breadth = len(self.first)
        return 4 * (breadth * (breadth + 1) + breadth + 2)

    def __add__(self, other: "Scatter") -> "Scatter":
        """Of both clients: sums are all that a server need see."""
        return Scatter(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


def client_scatter(sums: ScatterSums, effective: float | None = None) -> Scatter:
    """One client's part; copies of examples count as what they are worth together."""
    count, first, second = (np.asarray(part.cpu().numpy(), dtype=np.float64) for part in vars(sums).values())
    means = first / np.maximum(count, 1)[:, None]
    held = float((count > 0).sum())
    worth = 1.0 if effective is None else effective / max(count.sum(), 1.0)
    parts = (first.sum(axis=0), second - first.T @ means, second)
    return Scatter(worth * float(count.sum()), held, *(_sent(worth * part) for part in parts))


def enough(freedom: float, components: int) -> bool:
    """Whether so many degrees of freedom tell as many directions as are asked for."""
    return freedom >= FREEDOM * components


def fit_discriminant(base: Projector, scatter: Scatter, paper: Projector) -> Projector:
    """The clearest directions of the base, as many as the paper's projector has, which fills what is left.

    What is not clearly more than noise is left to chance: a direction chosen because clients happen to differ in it
    would make them differ in the tests that follow. With few examples fewer directions of the base are looked at.
    """
    freedom, between = scatter.count - scatter.groups, max(scatter.groups - 1, 0.0)
    if not enough(freedom, len(paper)):
        return paper
    looked = slice(0, int(min(len(base), freedom // FREEDOM)))
    within = scatter.within[looked, looked] / freedom
    mean = scatter.first[looked] / scatter.count
    total = scatter.second[looked, looked] / scatter.count - np.outer(mean, mean)
    values, axes = np.linalg.eigh(within)
    around_zero = np.diag(scatter.second[looked, looked]).max() / scatter.count
    alive = values > 1e-9 * max(around_zero, 1e-30)  # what never moves has no noise to be held against
    if not alive.any():
        return paper
    whitening = axes[:, alive] / np.sqrt(values[alive])
    ratios, turned = np.linalg.eigh(whitening.T @ total @ whitening)
    edge = CLEARLY * (freedom + between * _edge(len(ratios), between, freedom)) / scatter.count
    clear = np.flatnonzero(ratios > edge)[::-1][: len(paper)]
    found = (whitening @ turned[:, clear]).T @ base.components[looked]
    rest = _apart_from(found, paper.components)[: len(paper) - len(clear)]
    directions = np.concatenate([_unit(found), rest])
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return Projector(_sent(paper.mean), _sent(directions * np.where(largest < 0, -1.0, 1.0)))


def _edge(breadth: int, between: float, freedom: float) -> float:
    """The largest eigenvalue of noise against noise: the upper edge of the spectrum of an F-matrix (Wachter's law)."""
    if between <= 0:
        return 0.0
    above, below = breadth / between, breadth / freedom
    return float(((1 + np.sqrt(above + below - above * below)) / (1 - below)) ** 2)


def _sent(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """As they arrive in single precision."""
    return numbers.astype(np.float32).astype(np.float64)


def _unit(directions: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(directions / np.maximum(np.linalg.norm(directions, axis=1), 1e-30)[:, None])


def _apart_from(found: NDArray[np.float64], directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """The directions in order, each less what it shares with those found, at unit length."""
    basis = np.linalg.qr(found.T)[0]
    left = directions - directions @ basis @ basis.T
    return _unit(left[np.linalg.norm(left, axis=1) > 1e-6])
