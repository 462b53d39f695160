"""k-means whose k is chosen by the silhouette: one of the paper's alternatives."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from sklearn.utils.validation import validate_data


class SilhouetteKMeans(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """k-means for every k from 2 on; the best mean silhouette wins. Fewer than three distinct points are one cluster.

    Parameters
    ----------
    max_clusters : int or None, default=None
        The largest k tried; None: up to one less than the number of distinct points, at most 50.
    random_state : int, default=0
        Seed of the k-means starts.
    """

    def __init__(self, max_clusters: int | None = None, random_state: int = 0) -> None:
        self.max_clusters = max_clusters
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of X."""
        points: NDArray[np.float64] = validate_data(self, X, dtype=np.float64)
        distinct = len(np.unique(points, axis=0))
        most = min(distinct, len(points) - 1, 50 if self.max_clusters is None else self.max_clusters)
        self.labels_ = np.zeros(len(points), dtype=np.int64)
        best = -np.inf
        for k in range(2, most + 1):
            labels = KMeans(k, n_init=10, random_state=self.random_state).fit(points).labels_
            score = silhouette_score(points, labels)
            if score > best:
                best, self.labels_ = score, labels.astype(np.int64)
        self.silhouette_ = float(best)
        return self
