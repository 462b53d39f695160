"""W2 of points: exact optimal transport, block by block, over as many processes as there are cores."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from fedflux.engine.auto import cores
from fedflux.errors import FedfluxError
from fedflux.experiments.fidelity.clouds import Points

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
FEW = 1000
"""Pairs below which no process is started."""
CHUNK = 500

_held: list[list[Array]] = []
"""What a worker process was given when it started: the blocks of all clouds."""


def check_transport() -> None:
    """Refuse to begin where POT is missing."""
    try:
        import ot  # noqa: F401
    except ImportError as error:
        raise FedfluxError("fidelity needs the extra 'fidelity': pip install 'fedflux[fidelity]'") from error


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
    return float(ot.emd2(*weights, cost, numItermax=1_000_000, center_dual=False))


def split(points: Points, classes: int) -> list[Array]:
    """The blocks of a descriptor as points: all of them, then those of every class."""
    z, y = points
    return [z, *(z[y == u] for u in range(classes))]


def transport(
    clouds: Sequence[list[Array]], first: Rows, second: Rows, on_pairs: Callable[[int], None] = lambda done: None
) -> Array:
    """W2² of the pairs (first[p], second[p]), one column a block."""
    chunks = [(first[at : at + CHUNK], second[at : at + CHUNK]) for at in range(0, len(first), CHUNK)]
    found: list[Array] = []
    with _workers(list(clouds), len(first)) as work:
        for part in work(chunks):
            found.append(part)
            on_pairs(sum(map(len, found)))
    return np.concatenate(found)


Chunk = tuple[Rows, Rows]


@contextmanager
def _workers(clouds: list[list[Array]], pairs: int) -> Iterator[Callable[[list[Chunk]], Iterator[Array]]]:
    """A map over chunks, in order, here or in fresh processes of one thread each."""
    count = cores()
    if pairs < FEW or count < 2:
        yield lambda chunks: (_solve(clouds, chunk) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (clouds,))
    try:
        yield lambda chunks: pool.map(_do, chunks)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(clouds: list[list[Array]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent alone answers Ctrl-C
    threadpool_limits(1)
    _held[:] = clouds


def _do(chunk: Chunk) -> Array:
    return _solve(_held, chunk)


def _solve(clouds: Sequence[list[Array]], chunk: Chunk) -> Array:
    return np.array(
        [[squared_w2(a, b) for a, b in zip(clouds[i], clouds[j], strict=True)] for i, j in zip(*chunk, strict=True)]
    )
