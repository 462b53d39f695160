"""Placing a client: the paper's nearest centroid, and the calibrated distance that knows its noise."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import chi2

from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import group_sums, spans

Array = NDArray[np.float64]

ENTRIES = 1_000_000
"""Distances computed at once, which bounds memory."""


def cluster_centroids(vectors: Array, labels: NDArray[np.int64]) -> Array:
    """γ_m: the mean of the members' vectors, one row a cluster 0…M − 1."""
    clusters = int(labels.max()) + 1
    return group_sums(vectors, labels, clusters) / np.bincount(labels, minlength=clusters)[:, None]


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
    noise: Array | None = None
    """(M,): known variance that privacy added to each coordinate of the mean."""

    @staticmethod
    def of(descriptors: Descriptors, labels: NDArray[np.int64]) -> "Marginals":
        """Pool the members' marginal moments and learn the inflation from their validation means."""
        clusters, effective = int(labels.max()) + 1, descriptors.effective[:, 0]
        weight = group_sums(effective, labels, clusters)
        share = effective / weight[labels]
        mean = group_sums(share[:, None] * descriptors.mean[:, 0], labels, clusters)
        within = share[:, None, None] * descriptors.marginal_covariances()
        noise = group_sums(share**2 * descriptors.noise[:, 0], labels, clusters) if descriptors.noise.any() else None
        plain = Marginals(mean, _shrunk(group_sums(within, labels, clusters), weight), weight, 1.0, noise)
        held = np.flatnonzero(descriptors.validation_count > 0)
        if len(held) == 0:
            return plain
        own = labels[held]
        gap = descriptors.validation_mean[held] - mean[own]
        scale = 1 / np.maximum(descriptors.validation_count[held], 1) + 1 / weight[own]
        if noise is None:
            distances = np.einsum("ki,kij,kj->k", gap, plain._inverse()[own], gap) / scale
        else:
            values, axes = plain._axes()
            variance = values[own] * scale[:, None] + (descriptors.validation_noise[held] + noise[own])[:, None]
            distances = (np.einsum("ki,kij->kj", gap, axes[own]) ** 2 / variance).sum(axis=1)
        inflation = float(np.median(distances) / chi2.median(mean.shape[1]))
        return replace(plain, inflation=max(inflation, 1.0))

    def _inverse(self) -> Array:
        length = self.mean.shape[1]
        trace = np.trace(self.covariance, axis1=1, axis2=2)[:, None, None] / length
        return np.asarray(np.linalg.inv(self.covariance + (1e-6 * trace + 1e-30) * np.eye(length)))

    def _axes(self) -> tuple[Array, Array]:
        """Variances and principal axes of every cluster."""
        values, axes = np.linalg.eigh(self.covariance)
        return np.maximum(values, 1e-6 * values.mean(axis=1, keepdims=True) + 1e-30), axes

    def distances(self, mean: Array, count: Array | NDArray[np.int64], noise: Array | None = None) -> Array:
        """Calibrated squared distances (clients × clusters): about χ²(l) where the client belongs to the cluster.

        `noise` is the known variance that privacy added to each coordinate of the clients' means.
        """
        if noise is not None or self.noise is not None:
            return self._noisy_distances(mean, count, np.zeros(len(mean)) if noise is None else noise)
        inverse = self._inverse()
        result = np.empty((len(mean), len(self.mean)))
        for rows in spans(len(mean), max(ENTRIES // len(self.mean), 1)):
            scale = 1 / np.maximum(count[rows], 1)[:, None] + 1 / self.weight[None]
            gap = mean[rows, None] - self.mean[None]
            result[rows] = np.einsum("kmi,mij,kmj->km", gap, inverse, gap) / (scale * self.inflation)
        return result

    def _noisy_distances(self, mean: Array, count: Array | NDArray[np.int64], noise: Array) -> Array:
        values, axes = self._axes()
        added = np.zeros(len(self.mean)) if self.noise is None else self.noise
        result = np.empty((len(mean), len(self.mean)))
        for rows in spans(len(mean), max(ENTRIES // len(self.mean), 1)):
            scale = 1 / np.maximum(count[rows], 1)[:, None] + 1 / self.weight[None]
            variance = values[None] * scale[..., None] + (noise[rows, None] + added)[..., None]
            turned = np.einsum("kmi,mij->kmj", mean[rows, None] - self.mean[None], axes)
            result[rows] = (turned**2 / variance).sum(axis=2) / self.inflation
        return result

    def nearest(self, unlabelled: Descriptors) -> tuple[NDArray[np.int64], Array]:
        """The fitting cluster of every unlabelled client, and its calibrated distances to all of them."""
        noise = unlabelled.noise[:, 0] if unlabelled.noise.any() else None
        distances = self.distances(unlabelled.mean[:, 0], unlabelled.effective[:, 0], noise)
        return distances.argmin(axis=1).astype(np.int64), distances
