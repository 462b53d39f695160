"""ROC AUC of several labels at once, by ranks."""

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def macro_auc(scores: NDArray[np.float64], y: Labels) -> float:
    """The mean ROC AUC of the labels (N, L) that some of these records have and others have not; NaN without any.

    By ranks: a record with the label is ranked above one without it in that share of all such pairs, a tie being half.
    A target below zero is unknown, and left out.
    """
    if (y < 0).any():
        columns = [(y[:, u] >= 0, u) for u in range(y.shape[1])]
        each = [_areas(scores[known, u, None], y[known, u, None])[0] for known, u in columns]
        areas = np.array(each)
    else:
        areas = _areas(scores, y)
    known = ~np.isnan(areas)
    return float(areas[known].mean()) if known.any() else float("nan")


def _areas(scores: NDArray[np.float64], y: Labels) -> NDArray[np.float64]:
    """(L,): the area of each label, NaN where its records are all alike."""
    count = len(scores)
    order = np.argsort(scores, axis=0, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=0)
    place = np.arange(count)[:, None]
    new = np.ones(ordered.shape, dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    first = np.maximum.accumulate(np.where(new, place, 0), axis=0)
    ends = np.ones(ordered.shape, dtype=np.bool_)
    ends[:-1] = new[1:]
    last = np.minimum.accumulate(np.where(ends, place, count)[::-1], axis=0)[::-1]
    rank = 1 + (first + last) / 2  # of equals, the mean of their places
    having = np.take_along_axis(y, order, axis=0) > 0
    with_it = having.sum(axis=0)
    above = np.where(having, rank, 0.0).sum(axis=0) - with_it * (with_it + 1) / 2
    pairs = with_it * (count - with_it)
    return np.asarray(np.where(pairs > 0, above / np.maximum(pairs, 1), np.nan))
