"""The paper's clusterer: DBSCAN whose radius is the elbow of the nearest-neighbour distances."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import DBSCAN
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import validate_data

from fedflux.clustering.strips import Strips
from fedflux.descriptors.sums import EXACT
from fedflux.errors import FedfluxError

FLAT = 1e-9
DENSE = 5_000
"""Points up to which everyone's neighbours are stored, which where all are dense are all pairs."""


class AdaptiveDBSCAN(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """DBSCAN with an automatic radius and noise points as clusters of their own.

    The radius is the elbow (by kneed: convex, increasing) of the sorted distances to the nearest other point, times
    `scale`. Being one of those distances, it always joins at least one pair. Where the curve has no elbow, as for two
    points or for even spacing, there is one density, so the largest of the distances is taken. Beyond 5,000 points the
    same clusters are found with bounded memory (`strips.py`); another `min_samples` than 2 takes up to 20,000.

    Parameters
    ----------
    scale : float, default=1.0
        The paper's dataset-specific factor on the radius (0.95 for FMNIST, 0.98 for CIFAR-100).
    min_samples : int, default=2
        Points, itself included, that make a core point.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each point, without noise.
    eps_ : float
        The radius that was used.
    knee_ : int or None
        Where on the sorted curve the elbow was, None if it had none.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0]])
    >>> AdaptiveDBSCAN().fit_predict(points).tolist()
    [0, 0, 0, 1, 1, 2]
    """

    def __init__(self, scale: float = 1.0, min_samples: int = 2) -> None:
        self.scale = scale
        self.min_samples = min_samples

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of X."""
        points: NDArray[np.float64] = validate_data(self, X, dtype=np.float64)
        if len(points) == 1:
            self.knee_, self.eps_, self.labels_ = None, 0.0, np.zeros(1, dtype=np.int64)
            return self
        many = len(points) > (min(DENSE, EXACT) if self.min_samples == 2 else EXACT)
        if many and self.min_samples != 2:
            raise FedfluxError(
                f"adaptive-dbscan with min_samples={self.min_samples} takes up to {EXACT:,} points: use 2"
            )
        strips = Strips(points) if many else None
        if strips is None:
            nearest = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(points)[0][:, 1]
        else:
            nearest, partner = strips.nearest()
        curve = np.sort(nearest)
        self.knee_ = find_knee(curve)
        self.eps_ = float(self.scale * curve[-1 if self.knee_ is None else self.knee_])
        # a hair wider, so that the pair whose distance became the radius is inside it whatever the rounding
        radius = max(self.eps_ * (1 + 1e-9), np.finfo(np.float64).tiny)
        if strips is None:
            labels = DBSCAN(eps=radius, min_samples=self.min_samples).fit(points).labels_
        else:
            labels = strips.components(radius, nearest, partner)
        self.labels_ = noise_to_singletons(labels)
        return self


def import_kneed() -> Any:
    """kneed's locator, imported where it is used."""
    try:
        from kneed import KneeLocator
    except ImportError as error:
        raise FedfluxError("adaptive-dbscan needs kneed: pip install kneed") from error
    return KneeLocator


def find_knee(curve: NDArray[np.float64]) -> int | None:
    """The elbow's index on an increasing curve, None where it is flat or has no elbow."""
    if curve[-1] - curve[0] <= FLAT * curve[-1]:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kneed warns where it finds nothing; None says it already
        knee = import_kneed()(np.arange(len(curve)), curve, curve="convex", direction="increasing").knee
    return None if knee is None else int(knee)


def noise_to_singletons(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give every point labelled −1 a cluster of its own, after the others."""
    labels = np.array(labels, dtype=np.int64)
    noise = np.flatnonzero(labels == -1)
    labels[noise] = labels.max(initial=-1) + 1 + np.arange(len(noise))
    return labels
