"""The descriptor map: clients in the plane of the two directions in which their descriptors differ most."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.scaling import BlockScaler
from fedflux.descriptors.wire import from_arrays
from fedflux.studies.report.rounding import digits

MOST_POINTS = 1500
MOST_SEEN = 20_000
"""Clients that the plane is laid through."""


def descriptor_map(arrays: Mapping[str, NDArray[Any]] | None) -> dict[str, Any] | None:
    """Positions, found and true cluster of every described client, and the share of variance each axis explains."""
    if arrays is None:
        return None
    count = len(arrays["labels"])
    seen = _spread(arrays["labels"], MOST_SEEN)
    described = from_arrays({k: v[seen] if len(v.shape) and len(v) == count else v for k, v in arrays.items()})
    points = np.zeros((count, 2))
    points[seen], explained = plane(BlockScaler.fit(described).transform(described))
    rows = seen[_spread(arrays["labels"][seen], MOST_POINTS)]
    truth = arrays.get("truth")
    return {
        "count": count,
        "client": arrays.get("clients", np.arange(count))[rows].tolist(),
        "x": (points[rows, 0].round(4) + 0.0).tolist(),
        "y": (points[rows, 1].round(4) + 0.0).tolist(),
        "found": arrays["labels"][rows].tolist(),
        "truth": None if truth is None else truth[rows].tolist(),
        "explained": digits(explained.tolist(), 3),
    }


def _spread(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most so many clients, of every cluster its share."""
    by_cluster = np.argsort(labels, kind="stable")
    return np.sort(by_cluster[np.linspace(0, len(labels) - 1, min(len(labels), most)).astype(np.int64)])


def plane(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first two principal components (K, 2) and the share of variance of each.

    The sign of a component is free: the coordinate that weighs most in it is made positive.
    """
    centred = vectors - vectors.mean(axis=0)
    left, scale, right = np.linalg.svd(centred, full_matrices=False)
    keep = min(2, int((scale > 1e-9).sum()))  # beyond that there are only rounding errors
    strongest = np.abs(right[:keep]).argmax(axis=1)
    sign = np.where(right[np.arange(keep), strongest] < 0, -1.0, 1.0)
    points, explained = np.zeros((len(vectors), 2)), np.zeros(2)
    points[:, :keep] = left[:, :keep] * scale[:keep] * sign
    explained[:keep] = scale[:keep] ** 2 / max(float((scale**2).sum()), 1e-300)
    return points, explained
