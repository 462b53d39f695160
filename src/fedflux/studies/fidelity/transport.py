"""Optimal transport of all pairs, over as many processes as there are cores."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from fedflux.engine.auto import cores
from fedflux.errors import FedfluxError
from fedflux.studies.child import behave
from fedflux.studies.fidelity.optimal_transport import Array, Rows, transport_blocks

FEW = 1000
"""Pairs below which no process is started."""
CHUNK = 500


def check_transport() -> None:
    """Refuse to begin where POT is missing."""
    try:
        import ot  # noqa: F401
    except ImportError as error:
        raise FedfluxError("fidelity needs the extra 'fidelity': pip install 'fedflux[fidelity]'") from error


def transport(
    clouds: Sequence[list[Array]], first: Rows, second: Rows, on_pairs: Callable[[int], None] = lambda done: None
) -> Array:
    """W2² of the pairs (first[p], second[p]), one column a block."""
    chunks = [(first[at : at + CHUNK], second[at : at + CHUNK]) for at in range(0, len(first), CHUNK)]
    solve, count = partial(transport_blocks, clouds), cores()
    found: list[Array] = []
    pool = None
    if len(first) >= FEW and count > 1:
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), behave)
    try:
        for part in (pool.map if pool else map)(solve, *zip(*chunks, strict=True)):
            found.append(part)
            on_pairs(sum(map(len, found)))
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    return np.concatenate(found)
