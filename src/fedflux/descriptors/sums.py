"""Sums over groups of clients, without the dense clients × groups indicator, and how much is expanded at once."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

Array = NDArray[np.float64]

EXACT = 20_000
"""Clients or groups up to which arrays are kept in double precision and neighbours are searched exhaustively."""
ROWS = 4096
"""Clients whose matrices are expanded at once, which bounds memory."""


def group_sums(values: NDArray[np.floating], group: NDArray[np.int64], groups: int) -> Array:
    """Rows with the same number in `group` (0…groups − 1) added up in their order, in double precision."""
    order, ends = np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=groups))
    indicator = csr_matrix((np.ones(len(group)), order, np.concatenate([[0], ends])), shape=(groups, len(group)))
    flat = values.reshape(len(values), -1)
    return np.asarray(indicator @ flat).reshape(groups, *values.shape[1:])


def precision(rows: int) -> type[np.floating]:
    """How class matrices of so many clients or groups are kept: single precision beyond `EXACT`."""
    return np.float64 if rows <= EXACT else np.float32


def spans(rows: int, size: int = ROWS) -> list[slice]:
    """The rows in pieces of `size`."""
    return [slice(begin, begin + size) for begin in range(0, rows, size)]
