"""The class mixture of every cluster: how likely images are there, from moments that the server holds anyway.

An image z comes from cluster m with density Σ_u π_mu N(z; μ_mu, v_mu Σ_mu). Clusters are small, so they share what
they can: means and covariances of a class lean on the class's over all clusters, as far as clusters differ no more than
their sampling noise says they would.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.sums import spans

if TYPE_CHECKING:
    from fedflux.clustering.evidence.pool import Pool
    from fedflux.descriptors.descriptor import Descriptors

Array = NDArray[np.float64]
Single = NDArray[np.float32]

PRIOR = 40.0
"""Samples' worth of the average class covariance that each class covariance leans on."""
PSEUDO = 0.5
"""Examples of every class that a cluster is thought to have besides its own."""
TAILS = 2.0
"""How many times more than Gaussian ones estimates of covariances are off."""
LABELS = 0.15
"""What label shares from N examples add to the error, times N."""
STEPS = 20
"""Steps of expectation maximisation."""
ENTRIES = 2_000_000
"""Densities computed at once, which bounds memory."""


@dataclass(frozen=True, eq=False)
class ClassMixtures:
    """P(X) of M clusters as mixtures of U classes, as they are sent to clients: in single precision, or less."""

    centre: Single
    """(U, l): the mean of each class over clusters."""
    whitening: Single
    """(U, l, l): A_u with A_u Σ_u A_uᵀ = 1, Σ_u the class's covariance over all clusters."""
    mean: NDArray[np.generic]
    """(M, U, l): A_u (μ_mu − centre), in units of `step`."""
    spread: NDArray[np.floating]
    """(M, U): v ≥ 1, the variance of an image around the mean in units of Σ: its own, and what is not known of μ."""
    share: NDArray[np.floating]
    """(M, U): π, zero for classes that nobody has."""
    shape: NDArray[np.float16]
    """(M, U, l (l + 1) / 2), or nothing where clusters share all covariances: the lower triangle of B_mu, with
    B_mu A_u Σ_mu A_uᵀ B_muᵀ = 1."""
    error: Single
    """(M,): how wrong log p_m may be for an image, as a share of what the image tells: what all images of a client have
    in common, since they are held beside the same estimates."""
    offset: Single
    """(M,): what is added to log p_m of an image, where members showed that the mixtures of some clusters, those of
    broad classes for instance, are always thought likelier than they are."""
    step: Single
    """(U,): 1, or what one of 255 steps is where means travel as a byte each."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def nbytes(self) -> int:
        """What sending them takes."""
        return sum(int(getattr(self, one.name).nbytes) for one in fields(self))

    @staticmethod
    def of(pool: "Pool") -> "ClassMixtures":
        """From the pooled class moments of every cluster; where privacy left no class, all are alike."""
        if not (pool.weight > 0).any():
            pool = _blank(pool)
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
            _own_shapes(pool, whitening),
            (((share / size) ** 2 * unsure).sum(axis=1) + LABELS / size[:, 0]).astype(np.float32),
            np.zeros(len(pool), dtype=np.float32),
            np.ones(len(centre), dtype=np.float32),
        )

    def only(self, clusters: NDArray[np.int64]) -> "ClassMixtures":
        """Some clusters' mixtures."""
        kept = {name: getattr(self, name)[clusters] for name in ("mean", "spread", "share", "error", "offset")}
        return replace(self, **kept, shape=self.shape[clusters] if len(self.shape) else self.shape)

    def alike(self) -> "ClassMixtures":
        """The same with one covariance a class for all clusters: fewer bytes."""
        return replace(self, shape=self.shape[:0])

    def coded(self) -> "ClassMixtures":
        """The same with a byte a coordinate of a mean and two a share: a third of the bytes, for very many clusters.

        A mean is then off by a hundredth of a deviation or so, far less than its estimate is.
        """
        step = np.maximum(np.abs(self.means).max(axis=(0, 2), initial=0.0), 1e-6) / 127
        mean = np.rint(self.means / step[:, None]).astype(np.int8)
        halves = {name: getattr(self, name).astype(np.float16) for name in ("spread", "share")}
        return replace(self.alike(), mean=mean, step=step.astype(np.float32), **halves)

    @cached_property
    def means(self) -> Single:
        """(M, U, l): A_u (μ_mu − centre)."""
        return np.asarray(self.mean.astype(np.float32) * self.step[:, None], dtype=np.float32)

    @cached_property
    def _turn(self) -> Array:
        """(M, U, l, l): B."""
        length = self.mean.shape[2]
        turn = np.zeros((*self.mean.shape, length))
        if len(self.shape):
            turn[(..., *np.tril_indices(length))] = self.shape
        else:
            turn[:] = np.eye(length)
        return turn

    @cached_property
    def _offset(self) -> Single:
        """(M, U): what a log-density has besides the distance to the mean."""
        length = self.mean.shape[2]
        volume = np.linalg.slogdet(self.whitening)[1][None] + np.log(np.einsum("muii->mui", self._turn)).sum(axis=2)
        return np.asarray(
            volume - 0.5 * length * (np.log(self.spread.astype(np.float32)) + np.log(2 * np.pi)), dtype=np.float32
        )

    @cached_property
    def _distance(self) -> Single:
        """(U, l² + l + 1, M): what products of a whitened image's coordinates, they themselves and 1 count in its
        squared distance to every mean.
        """
        inverse = np.einsum("muki,mukj->muij", self._turn, self._turn) / self.spread[..., None, None]
        towards = np.einsum("muij,muj->mui", inverse, self.means)
        constant = np.einsum("mui,mui->mu", towards, self.means)
        parts = [inverse.reshape(*self.share.shape, -1), -2 * towards, constant[..., None]]
        return np.asarray(np.concatenate(parts, axis=2).transpose(1, 2, 0), dtype=np.float32, order="C")

    @cached_property
    def _log_share(self) -> Single:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.share.astype(np.float32)), dtype=np.float32)

    def tables(self) -> tuple[Single, Single, Single, Single]:
        """What densities are made of, for whoever computes them elsewhere: centre, whitening, and what products of
        whitened coordinates, they themselves and 1 count, and what is added to −½ of that.
        """
        return self.centre, self.whitening, self._distance, self._offset

    def densities(self, images: Array) -> Single:
        """(n, M, U): log N(z; μ_mu, v_mu Σ_mu) of reduced latents (n, l)."""
        away = (images[None] - self.centre[:, None]).astype(np.float32)  # (U, n, l)
        white = np.matmul(away, self.whitening.swapaxes(1, 2))
        if len(self.shape):
            products = (white[..., :, None] * white[..., None, :]).reshape(*white.shape[:2], -1)
            seen = np.concatenate([products, white, np.ones_like(white[..., :1])], axis=2)
            found = np.matmul(seen, self._distance)
        else:  # the same for one covariance a class, without products of coordinates
            mean = self.means.swapaxes(0, 1)  # (U, M, l)
            found = np.matmul(white, -2 * mean.swapaxes(1, 2))
            found += (white**2).sum(axis=2)[..., None]
            found += (mean**2).sum(axis=2)[:, None]
            found /= self.spread.astype(np.float32).T[:, None]
        found *= -0.5
        found += self._offset.T[:, None]
        return np.asarray(found.transpose(1, 2, 0))

    def log_likelihoods(self, images: Array) -> Array:
        """(n, M): log p_m(z) of every image under every cluster."""
        found = np.empty((len(images), len(self)))
        for rows in spans(
            len(images), max(ENTRIES // (self.share.shape[1] * max(len(self), self.mean.shape[2] ** 2)), 1)
        ):
            found[rows] = _log_sum(self.densities(images[rows]) + self._log_share)
        return found + self.offset

    def labelled(self, told: "Descriptors") -> Array:
        """(K, M): log-likelihoods of clients with labels, from their moments alone: Σ_u n_u (log π_mu + the mean of
        log N(z; μ_mu, v_mu Σ_mu) over the images of class u).
        """
        found = np.zeros((len(told), len(self)))
        length = self.mean.shape[2]
        share = np.maximum(self._log_share, np.log(1e-12)).astype(np.float64)
        for rows in spans(len(told), max(ENTRIES // (length * length * self.share.shape[1]), 1)):
            some = told.take(np.arange(len(told))[rows])
            count = np.maximum(some.effective[:, 1:], 0.0)
            away = np.einsum("uij,kuj->kui", self.whitening, some.mean[:, 1:] - self.centre[None])
            around = np.einsum("uij,kujl,uml->kuim", self.whitening, some.class_covariances(), self.whitening)
            products = (around + away[..., :, None] * away[..., None, :]).reshape(*count.shape, -1)
            seen = np.concatenate([products, away, np.ones_like(away[..., :1])], axis=2)
            mean = -0.5 * np.einsum("kuc,ucm->kum", seen, self._distance) + self._offset.T[None]
            found[rows] = np.einsum("ku,kum->km", count, mean + share.T[None] + self.offset)
        return found

    def misfit(self, images: Array, clusters: NDArray[np.int64]) -> Array:
        """(C, n): squared distances of images to the class that each is taken for, about l where they belong there.

        Label shares are left free and fitted by expectation maximisation: another mix of known looks is no misfit.
        """
        some = self.only(clusters)
        density = some.densities(images).swapaxes(0, 1).astype(np.float64)
        squared = 2 * (some._offset[:, None] - density)
        had = (some.share > 0)[:, None]
        density = np.where(had, density, -np.inf)
        likely = np.exp(density - density.max(axis=2, keepdims=True))
        share = had / had.sum(axis=2, keepdims=True)
        for _ in range(STEPS):
            taken = likely * share
            taken /= taken.sum(axis=2, keepdims=True)
            share = taken.mean(axis=1, keepdims=True)
        return np.asarray((taken * squared).sum(axis=2))


def _log_sum(terms: Single) -> Single:
    """log Σ exp over the last axis, in place."""
    top = terms.max(axis=-1)
    terms -= top[..., None]
    np.exp(terms, out=terms)
    return np.asarray(top + np.log(terms.sum(axis=-1)))


def _blank(pool: "Pool") -> "Pool":
    """Groups of which nothing is known but that all may be alike."""
    covariance = np.broadcast_to(np.eye(pool.mean.shape[2]), pool.covariance.shape)
    ones = np.ones_like(pool.weight)
    blank = {"mean": np.zeros_like(pool.mean), "noise": np.zeros_like(pool.noise), "labels": ones}
    return replace(pool, weight=ones, holders=np.zeros_like(ones), covariance=covariance, **blank)


def _class_covariances(pool: "Pool") -> Array:
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


def _own_shapes(pool: "Pool", whitening: Array) -> NDArray[np.float16]:
    """Lower triangles of B (M, U, …): a cluster's own covariance of a class counts as far as clusters' covariances
    differ beyond what sampling does to them; nothing where none does.

    Of f degrees of freedom a whitened estimate W is off by ‖W − 1‖² ≈ l (l + 1) / f, more where tails are heavy.
    """
    length = pool.mean.shape[2]
    freedom = np.maximum(pool.weight - pool.holders, 1e-9)
    trusted = (freedom > 2 * length) & (pool.noise == 0)
    if not trusted.any():
        return np.zeros((0, 0, 0), dtype=np.float16)
    own = np.einsum(
        "uij,mujk,ulk->muil", whitening, pool.covariance * (pool.weight / freedom)[..., None, None], whitening
    )
    apart = ((own - np.eye(length)) ** 2).sum(axis=(2, 3))
    sampling = TAILS * length * (length + 1) / freedom
    weight = np.where(trusted, freedom, 0.0)
    real = np.maximum((weight * (apart - sampling)).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-9), 0.0)
    trust = np.where(trusted, real / (real + sampling), 0.0)[..., None, None]
    if not trust.any():
        return np.zeros((0, 0, 0), dtype=np.float16)
    turn = np.linalg.inv(np.linalg.cholesky(trust * own + (1 - trust) * np.eye(length)))
    return np.asarray(turn[(..., *np.tril_indices(length))], dtype=np.float16)


def _between(known: Array, gap: Array) -> Array:
    """τ² (U,): how much clusters' class means vary beyond their sampling noise (DerSimonian and Laird)."""
    excess = (known * (gap**2).mean(axis=2)).sum(axis=0) - np.maximum((known > 0).sum(axis=0) - 1, 0)
    total = known.sum(axis=0)
    scale = total - (known**2).sum(axis=0) / np.maximum(total, 1e-12)
    return np.asarray(np.maximum(excess, 0.0) / np.maximum(scale, 1e-12))
