"""One kind for every record, so that records with several labels can be counted as records with one are.

Tests of clusters, mixtures that place clients and the sensitivity of private releases rest on every record being of one
class. Of several labels a record's rarest is its kind, and records with none are another: L + 1 kinds.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def kinds(labels: Labels, rarest: Sequence[int] = ()) -> Labels:
    """One kind for every record, so that each counts once wherever records are counted by what they are.

    One label is the kind itself. Of several it is the first in the order `rarest`, by default the labels' own, that the
    record has; records with none are the last kind, L.
    """
    if labels.ndim == 1:
        return labels
    order = np.array(rarest if len(rarest) else range(labels.shape[1]), dtype=np.int64)
    held = labels[:, order] > 0
    return np.asarray(np.where(held.any(axis=1), order[held.argmax(axis=1)], labels.shape[1]), dtype=np.int64)


def rarest_first(counts: NDArray[np.generic]) -> tuple[int, ...]:
    """The order of labels by how many records have them."""
    return tuple(np.argsort(counts, kind="stable").tolist())


def strata(labels: Labels) -> Labels:
    """Kinds of one body of records by its own counts: what splits keep in proportion."""
    return labels if labels.ndim == 1 else kinds(labels, rarest_first((labels > 0).sum(axis=0)))
