"""Neighbours among very many points: cells around centres, and a search in the cells nearby."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fedflux.descriptors.sums import spans

Index = NDArray[np.int64]
Single = NDArray[np.float32]

PROBES = 8
"""Cells searched for the neighbours of a cell's points, its own included."""
SAMPLE = 32
"""Points a cell that place the centres."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Points sorted into about √n cells of bounded size, each around the centre that is nearest to it."""

    members: list[Index]
    """Points of each cell."""
    centre: Single
    """(cells, dimensions): a cell too large for one is several with the same centre."""

    @staticmethod
    def of(points: Single, cells: int | None = None) -> "Cells":
        """k-means on an even sample, then every point to its nearest centre; deterministic."""
        wanted = max(int(np.sqrt(len(points))), 1) if cells is None else min(cells, len(points))
        sample = points[:: max(len(points) // (SAMPLE * wanted), 1)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # duplicates make fewer cells, which is as well
            fitted = KMeans(wanted, n_init=1, max_iter=5, init="random", random_state=0).fit(sample)
        centre = fitted.cluster_centers_
        nearest = nearest_centre(points, centre)
        order = np.argsort(nearest, kind="stable")
        ends = np.cumsum(np.bincount(nearest, minlength=len(centre)))
        most = 2 * -(-len(points) // wanted)
        members, owners = [], []
        for cell, rows in enumerate(np.split(order, ends[:-1])):
            for piece in spans(len(rows), most):
                members.append(rows[piece])
                owners.append(cell)
        return Cells(members, np.asarray(centre[owners], dtype=np.float32))


def nearest_centre(points: Single, centre: Single) -> Index:
    """The nearest centre of every point."""
    half = (centre**2).sum(axis=1) / 2
    found = [np.argmin(half - points[rows] @ centre.T, axis=1) for rows in spans(len(points))]
    return np.concatenate(found).astype(np.int64)


def approximate_neighbours(points: NDArray[np.floating], count: int, asking: NDArray[np.bool_]) -> Index:
    """(n, count): the nearest others of the points that ask, among the cells around their own; −1 elsewhere.

    About n√n distances instead of n². In single precision, from the points' mean.
    """
    single = (points - points.mean(axis=0)).astype(np.float32)
    cells = Cells.of(single)
    half = (single**2).sum(axis=1) / 2
    found = np.full((len(points), count), -1, dtype=np.int64)
    for members, centre in zip(cells.members, cells.centre, strict=True):
        own = members[asking[members]]
        if len(own) == 0:
            continue
        apart = ((cells.centre - centre) ** 2).sum(axis=1)
        near = np.argsort(apart, kind="stable")[:PROBES]
        others = np.concatenate([cells.members[cell] for cell in near])
        away = half[others] - single[own] @ single[others].T
        away[own[:, None] == others[None]] = np.inf
        rows = np.arange(len(own))
        for rank in range(min(count, len(others) - 1)):
            best = away.argmin(axis=1)
            found[own, rank] = others[best]
            away[rows, best] = np.inf
    return found
