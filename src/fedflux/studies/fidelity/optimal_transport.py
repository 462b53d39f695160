"""W2 of points: exact optimal transport between the blocks of clients."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
ITERATIONS = 1_000_000


def squared_w2(first: Array, second: Array) -> float:
    """W2² of two sets of points of equal weight, NaN where one is empty.

    Sets of one size need an assignment only, which is the same optimum and quicker than the network simplex.
    """
    if not len(first) or not len(second):
        return float("nan")
    cost = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1)[None, :] - 2 * first @ second.T
    cost = np.maximum(cost, 0.0)
    if len(first) == len(second):
        rows, columns = linear_sum_assignment(cost)
        return float(cost[rows, columns].mean())
    import ot

    weights = [np.full(len(points), 1 / len(points)) for points in (first, second)]
    return float(ot.emd2(*weights, cost, numItermax=ITERATIONS, center_dual=False))


def split(points: Array, labels: NDArray[np.int64], classes: int) -> list[Array]:
    """The blocks of a descriptor as points: all of them, then those of every class."""
    return [points, *(points[labels == u] for u in range(classes))]


def transport_blocks(clouds: Sequence[list[Array]], first: Rows, second: Rows) -> Array:
    """W2² of the pairs (first[p], second[p]), one column a block; one thread."""
    with threadpool_limits(1):
        return np.array(
            [
                [squared_w2(a, b) for a, b in zip(clouds[i], clouds[j], strict=True)]
                for i, j in zip(first, second, strict=True)
            ]
        )
