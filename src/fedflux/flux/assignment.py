"""Placing a client: the paper's nearest centroid, and the calibrated distance that knows its noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import chi2

from fedflux.flux.descriptor import Descriptors

Array = NDArray[np.float64]


def cluster_centroids(vectors: Array, labels: NDArray[np.int64]) -> Array:
    """γ_m: the mean of the members' vectors, one row a cluster 0…M − 1."""
    return np.stack([vectors[labels == m].mean(axis=0) for m in range(labels.max() + 1)])


def nearest_centroid(vectors: Array, centroids: Array) -> tuple[NDArray[np.int64], Array]:
    """c* = argmin κ(d, γ_m) with κ Euclidean, and the distances to every centroid (clients × clusters)."""
    distances = np.asarray(cdist(vectors, centroids), dtype=np.float64)
    return distances.argmin(axis=1).astype(np.int64), distances


def _shrunk(covariance: Array, weight: Array) -> Array:
    """Covariances of small clusters lean on the federation's, which counts as 2l samples."""
    average = np.einsum("m,mij->ij", weight / weight.sum(), covariance)
    trust, prior = weight[:, None, None], 2.0 * covariance.shape[1]
    return np.asarray((trust * covariance + prior * average) / (trust + prior))


@dataclass(frozen=True, eq=False)
class Marginals:
    """P(X) of every cluster, as far as its members' descriptors tell it: what unlabelled clients are compared with."""

    mean: Array
    """(M, l)."""
    covariance: Array
    """(M, l, l)."""
    weight: Array
    """(M,): effective samples behind the mean."""
    inflation: float
    """How much larger the statistic is on examples the model has not trained on; from the validation splits."""

    @staticmethod
    def of(descriptors: Descriptors, labels: NDArray[np.int64]) -> "Marginals":
        """Pool the members' marginal moments and learn the inflation from their validation means."""
        share = np.eye(int(labels.max()) + 1)[labels].T * descriptors.effective[:, 0]
        weight = share.sum(axis=1)
        share = share / weight[:, None]
        mean = share @ descriptors.mean[:, 0]
        covariance = _shrunk(np.einsum("mk,kij->mij", share, descriptors.marginal_covariances()), weight)
        plain = Marginals(mean, covariance, weight, 1.0)
        held = np.flatnonzero(descriptors.validation_count > 0)
        if len(held) == 0:
            return plain
        distances = plain.distances(descriptors.validation_mean[held], descriptors.validation_count[held])
        own = distances[np.arange(len(held)), labels[held]]
        inflation = float(np.median(own) / chi2.median(mean.shape[1]))
        return Marginals(mean, covariance, weight, max(inflation, 1.0))

    def distances(self, mean: Array, count: NDArray[np.int64]) -> Array:
        """Calibrated squared distances (clients × clusters): about χ²(l) where the client belongs to the cluster."""
        length = mean.shape[1]
        scale = 1 / np.maximum(count, 1)[:, None] + 1 / self.weight[None]
        trace = np.trace(self.covariance, axis1=1, axis2=2)[:, None, None] / length
        inverse = np.linalg.inv(self.covariance + (1e-6 * trace + 1e-30) * np.eye(length))
        gap = mean[:, None] - self.mean[None]
        return np.asarray(np.einsum("kmi,mij,kmj->km", gap, inverse, gap) / (scale * self.inflation))

    def nearest(self, unlabelled: Descriptors) -> tuple[NDArray[np.int64], Array]:
        """The fitting cluster of every unlabelled client, and its calibrated distances to all of them."""
        distances = self.distances(unlabelled.mean[:, 0], unlabelled.count[:, 0])
        return distances.argmin(axis=1).astype(np.int64), distances
