"""The class mixture of every cluster: how likely images are there, from moments that the server holds anyway.

An image z comes from cluster m with density Σ_u π_mu N(z; μ_mu, v_mu Σ_u). Clusters are small, so they share what they
can: one covariance a class over all clusters, and class means that lean on the class's mean over clusters as far as
clusters differ no more than their sampling noise says they would.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.evidence import Pool
from fedflux.descriptors.sums import spans

Array = NDArray[np.float64]
Single = NDArray[np.float32]

PRIOR = 40.0
"""Samples' worth of the average class covariance that each class covariance leans on."""
PSEUDO = 0.5
"""Examples of every class that a cluster is thought to have besides its own."""
LABELS = 0.3
"""What label shares from N examples add to the error, times N."""
STEPS = 20
"""Steps of expectation maximisation."""
ENTRIES = 2_000_000
"""Densities computed at once, which bounds memory."""


@dataclass(frozen=True, eq=False)
class ClassMixtures:
    """P(X) of M clusters as mixtures of U classes, in single precision, as they are sent to clients."""

    centre: Single
    """(U, l): the mean of each class over clusters."""
    whitening: Single
    """(U, l, l): A_u with A_u Σ_u A_uᵀ = 1."""
    mean: Single
    """(M, U, l): A_u (μ_mu − centre)."""
    spread: Single
    """(M, U): v ≥ 1, the variance of an image around the mean in units of Σ_u: its own, and what is not known of μ."""
    share: Single
    """(M, U): π, zero for classes that nobody has."""
    error: Single
    """(M,): how wrong log p_m may be for an image, as a share of what the image tells: what all images of a client have
    in common, since they are held beside the same estimates."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def nbytes(self) -> int:
        """What sending them takes."""
        return sum(int(getattr(self, one.name).nbytes) for one in fields(self))

    @staticmethod
    def of(pool: Pool) -> "ClassMixtures":
        """From the pooled class moments of every cluster."""
        covariance = _class_covariances(pool)
        values, axes = np.linalg.eigh(covariance)
        values = np.maximum(values, 1e-6 * values.mean(axis=1, keepdims=True) + 1e-30)
        whitening = axes.swapaxes(1, 2) / np.sqrt(values)[..., None]
        # the variance of a cluster's class mean, in units of Σ_u: sampling, and what privacy added
        held = pool.weight > 0
        error = 1 / np.maximum(pool.weight, 1e-12) + pool.noise * (1 / values).mean(axis=1)[None]
        known = np.where(held, 1 / error, 0.0)
        total = known.sum(axis=0)
        centre = np.einsum("mu,mui->ui", known, pool.mean) / np.maximum(total, 1e-12)[:, None]
        gap = np.einsum("uij,muj->mui", whitening, pool.mean - centre[None])
        between = _between(known, gap)
        trust = np.where(held, between / (between + error), 0.0)  # B
        share = np.where(total > 0, np.maximum(pool.labels, 0.0) + PSEUDO, 0.0)
        size = share.sum(axis=1, keepdims=True)
        unsure = between * (1 - trust)  # the variance of μ, given what is known of it
        return ClassMixtures(
            centre.astype(np.float32),
            whitening.astype(np.float32),
            (trust[..., None] * gap).astype(np.float32),
            (1 + unsure).astype(np.float32),
            (share / size).astype(np.float32),
            (((share / size) ** 2 * unsure).sum(axis=1) + LABELS / size[:, 0]).astype(np.float32),
        )

    def only(self, clusters: NDArray[np.int64]) -> "ClassMixtures":
        """Some clusters' mixtures."""
        kept = {name: getattr(self, name)[clusters] for name in ("mean", "spread", "share", "error")}
        return replace(self, **kept)

    @cached_property
    def _offset(self) -> Single:
        """(M, U): what a log-density has besides the distance to the mean."""
        length = self.mean.shape[2]
        volume = np.linalg.slogdet(self.whitening)[1][None]
        return np.asarray(volume - 0.5 * length * (np.log(self.spread) + np.log(2 * np.pi)), dtype=np.float32)

    @cached_property
    def _log_share(self) -> Single:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.share), dtype=np.float32)

    def densities(self, images: Array) -> Single:
        """(n, M, U): log N(z; μ_mu, v_mu Σ_u) of reduced latents (n, l)."""
        away = (images[:, None] - self.centre[None]).astype(np.float32)
        white = np.matmul(self.whitening[None], away[..., None])[..., 0].swapaxes(0, 1)  # (U, n, l)
        mean = self.mean.swapaxes(0, 1)  # (U, M, l)
        squared = np.matmul(white, -2 * mean.swapaxes(1, 2))
        squared += (white**2).sum(axis=2)[..., None]
        squared += (mean**2).sum(axis=2)[:, None]
        squared *= -0.5 / self.spread.T[:, None]
        squared += self._offset.T[:, None]
        return np.asarray(squared.transpose(1, 2, 0))

    def log_likelihoods(self, images: Array) -> Array:
        """(n, M): log p_m(z) of every image under every cluster."""
        found = np.empty((len(images), len(self)))
        for rows in spans(len(images), max(ENTRIES // self.share.size, 1)):
            found[rows] = _log_sum(self.densities(images[rows]) + self._log_share)
        return found

    def misfit(self, images: Array, cluster: int) -> Array:
        """(n,): squared distances of images to the class that each is taken for, about l where they belong here.

        Label shares are left free and fitted by expectation maximisation: another mix of known looks is no misfit.
        """
        one = self.only(np.array([cluster]))
        density = one.densities(images)[:, 0].astype(np.float64)
        squared = 2 * (one._offset[0] - density)
        share = (self.share[cluster] > 0) / max(int((self.share[cluster] > 0).sum()), 1)
        for _ in range(STEPS):
            with np.errstate(divide="ignore"):
                taken = density + np.log(share)
            taken = np.exp(taken - taken.max(axis=1, keepdims=True))
            taken /= taken.sum(axis=1, keepdims=True)
            share = taken.mean(axis=0)
        return np.asarray((taken * squared).sum(axis=1))


def _log_sum(terms: Single) -> Single:
    """log Σ exp over the last axis, in place."""
    top = terms.max(axis=-1)
    terms -= top[..., None]
    np.exp(terms, out=terms)
    return np.asarray(top + np.log(terms.sum(axis=-1)))


def _class_covariances(pool: Pool) -> Array:
    """(U, l, l): within clients and classes, over all clusters; each leans on the average of the classes.

    The inverse of an estimate from f degrees of freedom is too large by f / (f − l − 1): where examples are few, that
    would make every likelihood too sure, and it is undone.
    """
    freedom, length = np.maximum(pool.weight.sum(axis=0) - pool.holders.sum(axis=0), 0.0), pool.mean.shape[2]
    scatter = np.einsum("mu,muij->uij", pool.weight, pool.covariance)
    average = scatter.sum(axis=0) / max(freedom.sum(), 1.0)
    trust = freedom + PRIOR
    behind = freedom + min(PRIOR, freedom.sum())
    widened = behind / np.maximum(behind - length - 1, 1.0)
    return np.asarray((scatter + PRIOR * average) * (np.maximum(widened, 1.0) / trust)[:, None, None])


def _between(known: Array, gap: Array) -> Array:
    """τ² (U,): how much clusters' class means vary beyond their sampling noise (DerSimonian and Laird)."""
    excess = (known * (gap**2).mean(axis=2)).sum(axis=0) - np.maximum((known > 0).sum(axis=0) - 1, 0)
    total = known.sum(axis=0)
    scale = total - (known**2).sum(axis=0) / np.maximum(total, 1e-12)
    return np.asarray(np.maximum(excess, 0.0) / np.maximum(scale, 1e-12))
