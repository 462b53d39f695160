"""Placing a client: cluster centroids in scaled descriptor space, and the nearest one."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist


def cluster_centroids(vectors: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """γ_m: the mean of the members' vectors, one row a cluster 0…M − 1."""
    return np.stack([vectors[labels == m].mean(axis=0) for m in range(labels.max() + 1)])


def nearest_centroid(
    vectors: NDArray[np.float64], centroids: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """c* = argmin κ(d, γ_m) with κ Euclidean, and the distances to every centroid (clients × clusters)."""
    distances = np.asarray(cdist(vectors, centroids), dtype=np.float64)
    return distances.argmin(axis=1).astype(np.int64), distances
