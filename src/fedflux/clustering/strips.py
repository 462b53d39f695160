"""Exact nearest distances and radius-connected components of very many points, with bounded memory.

Points are sorted into cells. A strip is one cell against the points that the triangle inequality cannot rule out; its
squared distances come from one matrix product in single precision around the cell's centre, whose rounding error is
bounded, and whatever lies within that error of a decision is computed again in double precision. So the answers are
exact, and only data without any gaps costs all n²/2 distances.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from fedflux.clustering.neighbours import Cells
from fedflux.descriptors.sums import spans

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

COLUMNS = 8192
"""Points a cell is compared with at once."""
PAIRS = 8192
"""Pairs whose distance is computed in double precision at once."""


@dataclass(frozen=True, eq=False)
class _Strip:
    """A cell's points against others."""

    rows: Index
    columns: Index
    least: NDArray[np.float32]
    """(rows, columns): squared distances less what rounding may have added to them."""
    slack: NDArray[np.float32]
    """(columns,): how far above `least` the squared distances may be."""

    def below(self, limit: Array, axis: int) -> tuple[Index, Index]:
        """Pairs that may be no farther than the `limit` of their row (axis 0) or of their column (axis 1), if it has
        one that is not NaN.
        """
        wide = np.asarray(limit * (1 + 1e-6), dtype=np.float32)
        asked = np.flatnonzero(self.least.min(axis=1 - axis) <= wide)
        part = self.least[asked] if axis == 0 else self.least[:, asked].T
        one, other = np.nonzero(part <= wide[asked, None])
        return (asked[one], other) if axis == 0 else (other, asked[one])


class Strips:
    """Points ready to be compared strip by strip."""

    def __init__(self, points: Array) -> None:
        cells = Cells.of((points - points.mean(axis=0)).astype(np.float32))
        self.order: Index = np.concatenate(cells.members)
        self.points = points[self.order]
        self.norm = np.einsum("ni,ni->n", self.points, self.points)
        ends = np.cumsum([len(members) for members in cells.members])
        self.cells = [np.arange(end - len(own), end) for end, own in zip(ends, cells.members, strict=True)]

    def nearest(self) -> tuple[Array, Index]:
        """Every point's distance to its nearest other point, and which that is, in the order the points were given."""
        best, partner = np.full(len(self.points), np.inf), np.arange(len(self.points))
        for cell in self.cells:

            def reach(others: Index, own: Index = cell) -> Array:
                return np.asarray(np.sqrt(np.maximum(best[others], best[own].max())))

            for strip in self._around(cell, reach):
                self._improve(strip, best, partner)
        distance, other = np.empty_like(best), np.empty_like(partner)
        distance[self.order], other[self.order] = np.sqrt(best), self.order[partner]
        return distance, other

    def components(self, radius: float, nearest: Array, partner: Index) -> Index:
        """Points joined by steps of at most `radius`, numbered by their first; lone points are −1.

        This is DBSCAN with two points to a core.
        """
        near = nearest[self.order] <= radius
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(place))
        component = _unite(np.arange(len(near)), np.flatnonzero(near), place[partner[self.order]][near])
        for cell in self.cells:
            own = cell[near[cell]]
            if len(own) == 0:
                continue

            def reach(others: Index, own: Index = own) -> Array:
                first = component[own[0]]
                joined = (component[own] == first).all() & (component[others] == first)
                return np.where(near[others] & ~joined, radius, -np.inf)

            for strip in self._around(own, reach):
                component[:] = self._join(strip, component, radius)
        result = np.full(len(near), -1, dtype=np.int64)
        result[self.order[near]] = component[near]
        joined = np.flatnonzero(result >= 0)
        _, first, number = np.unique(result[joined], return_index=True, return_inverse=True)
        result[joined] = np.argsort(np.argsort(first))[number]
        return result

    def _around(self, rows: Index, reach: Callable[[Index], Array]) -> Iterator[_Strip]:
        """Strips of a cell: against itself, then against later points nearer than their `reach`, asked anew each time.

        A point at distance D from the centre of a cell of radius r is at least D − r from every point of the cell.
        """
        centre = self.points[rows].mean(axis=0)
        inner = np.sqrt(((self.points[rows] - centre) ** 2).sum(axis=1).max())
        if len(rows) > 1:
            yield self._strip(rows, rows, centre)
        later = np.arange(rows[-1] + 1, len(self.points))
        squared = self.norm[later] - 2 * (self.points[rows[-1] + 1 :] @ centre) + centre @ centre
        away = np.sqrt(np.maximum(squared - 1e-12 * self.norm[later], 0)) - inner * (1 + 1e-9)
        wanted = np.flatnonzero(away <= reach(later))
        wanted = wanted[np.argsort(away[wanted], kind="stable")]
        for piece in spans(len(wanted), COLUMNS):
            columns = wanted[piece]
            columns = columns[away[columns] <= reach(later[columns])]
            if len(columns):
                yield self._strip(rows, later[columns], centre)

    def _strip(self, rows: Index, columns: Index, centre: Array) -> _Strip:
        """|a|² + |b|² − 2ab as one product around the centre, in single precision, with the error bound taken off."""
        a, b = ((self.points[index] - centre).astype(np.float32) for index in (rows, columns))
        size = np.einsum("ni,ni->n", a, a), np.einsum("ni,ni->n", b, b)
        error = np.float32((a.shape[1] + 8) * 2.0**-22) * (size[0].max() + size[1])
        left = np.concatenate([-2 * a, size[0][:, None], np.ones((len(a), 1), np.float32)], axis=1)
        right = np.concatenate([b, np.ones((len(b), 1), np.float32), (size[1] - error)[:, None]], axis=1)
        least = left @ right.T
        if rows is columns:
            np.fill_diagonal(least, np.inf)
        return _Strip(rows, columns, least, 2 * error)

    def _squared(self, one: Index, other: Index) -> Array:
        parts = [((self.points[one[p]] - self.points[other[p]]) ** 2).sum(axis=1) for p in spans(len(one), PAIRS)]
        return np.concatenate([np.zeros(0), *parts])

    def _improve(self, strip: _Strip, best: Array, partner: Index) -> None:
        """Lower the best squared distances of the strip's rows and columns, where it holds a nearer pair."""
        slack = strip.slack.max(), strip.slack
        for axis, ends in enumerate((strip.rows,) if strip.rows is strip.columns else (strip.rows, strip.columns)):
            sofar = np.where(best[ends] > 0, best[ends], np.nan)  # nothing is nearer than a duplicate
            i, j = strip.below(np.minimum(sofar, strip.least.min(axis=1 - axis) + slack[axis]), axis)
            one, other = strip.rows[i], strip.columns[j]
            squared = self._squared(one, other)
            for these, those in ((one, other), (other, one)):
                nearer = np.flatnonzero(squared < best[these])
                nearer = nearer[np.argsort(-squared[nearer], kind="stable")]  # the last of several entries stays
                best[these[nearer]], partner[these[nearer]] = squared[nearer], those[nearer]

    def _join(self, strip: _Strip, component: Index, radius: float) -> Index:
        """Components once the strip's pairs within the radius are joined; doubtful ones by their exact distance."""
        i, j = strip.below(np.full(len(strip.rows), radius**2), 0)
        sure = strip.least[i, j] + strip.slack[j] <= radius**2 * (1 - 1e-6)
        one, other = strip.rows[i], strip.columns[j]
        component = _unite(component, one[sure], other[sure])
        one, other = one[~sure], other[~sure]
        apart = component[one] != component[other]
        one, other = one[apart], other[apart]
        close = np.sqrt(self._squared(one, other)) <= radius
        return _unite(component, one[close], other[close])


def _unite(component: Index, one: Index, other: Index) -> Index:
    """Components once every point one[i] is joined with other[i]."""
    first, second = component[one], component[other]
    apart = first != second
    if not apart.any():
        return component
    edges = np.ones(int(apart.sum()), dtype=bool), (first[apart], second[apart])
    joined = connected_components(csr_matrix(edges, shape=(len(component), len(component))), directed=False)[1]
    return np.asarray(joined[component], dtype=np.int64)
