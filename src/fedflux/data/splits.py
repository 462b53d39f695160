"""Cutting examples into parts: stratified test splits and equal shares."""

import numpy as np
from numpy.typing import NDArray

from fedflux.streams import stream

Rows = NDArray[np.int64]


def stratified_test_rows(y: NDArray[np.int64], share: float, seed: int = 0) -> tuple[Rows, Rows]:
    """Train and test rows with `share` of every class in test; a class of one example stays in training."""
    rng = stream(seed, "stratified test split")
    train, test = [], []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        cut = min(round(share * len(rows)), len(rows) - 1)
        test.append(rows[:cut])
        train.append(rows[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
