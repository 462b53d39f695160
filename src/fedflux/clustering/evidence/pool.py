"""What the server knows of groups of clients: moments and counts that add up when groups merge."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import group_sums, precision

Array = NDArray[np.float64]
Index = NDArray[np.int64]

CHUNK = 512
"""Pairs or groups looked at together, which bounds memory."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Moments of G groups of clients, by class: what adds up when groups merge."""

    members: Array
    """(G,): clients in the group."""
    holders: Array
    """(G, U): clients that hold the class; each costs one degree of freedom."""
    weight: Array
    """(G, U): effective counts e: the precision of the means and, less one a client, the freedom of the covariances."""
    mean: Array
    """(G, U, l)."""
    covariance: NDArray[np.floating]
    """(G, U, l, l): pooled within-client, within-class; in single precision beyond 20,000 groups."""
    noise: Array
    """(G, U): known variance added to each coordinate of the mean (differential privacy)."""
    labels: Array
    """(G, U): label counts on the scale of effective samples."""
    label_noise: Array
    """(G,): known variance added to each of them (differential privacy)."""
    squares: Array
    """(G, U): Σe² over clients; Σe²/(Σe)² of a random effect of single clients is left in the group's mean."""
    label_squares: Array
    """(G,): the same of label counts: Σn² over clients."""

    def __len__(self) -> int:
        return len(self.members)

    @staticmethod
    def of(descriptors: Descriptors) -> "Pool":
        """One group per client."""
        count = descriptors.count[:, 1:].astype(np.float64)
        total = np.maximum(count.sum(axis=1), 1)
        noisy = descriptors.count_noise > 0  # noisy counts are of distinct examples
        scale = np.where(noisy, 1.0, descriptors.effective[:, 0] / total)
        weight, labels = descriptors.effective[:, 1:].astype(np.float64), count * scale[:, None]
        return Pool(
            members=np.ones(len(descriptors)),
            holders=((count > 0) & (descriptors.effective[:, 1:] > 0)).astype(np.float64),
            weight=weight,
            mean=descriptors.mean[:, 1:].astype(np.float64),
            covariance=descriptors.class_covariances(),
            noise=descriptors.noise[:, 1:].astype(np.float64),
            labels=labels,
            label_noise=descriptors.count_noise.astype(np.float64),
            squares=weight**2,
            label_squares=labels.sum(axis=1) ** 2,
        )

    def join(self, other: "Pool") -> "Pool":
        """The groups of both, one after another."""
        return Pool(*(np.concatenate([getattr(p, f.name) for p in (self, other)]) for f in fields(Pool)))

    def merge(self, group: Index) -> "Pool":
        """Groups with the same number in `group` (0…M − 1) become one."""
        total = int(group.max()) + 1

        def add(values: Array) -> Array:
            return group_sums(values, group, total)

        weight = add(self.weight)
        safe = np.maximum(weight, 1e-12)
        covariance = np.empty((total, *self.covariance.shape[1:]), dtype=precision(total))
        together = max(CHUNK // len(self), 1)  # a few classes at a time, which bounds memory
        for some in (slice(u, u + together) for u in range(0, weight.shape[1], together)):
            one = add(self.weight[:, some, None, None] * self.covariance[:, some])
            covariance[:, some] = one / safe[:, some, None, None]
        return Pool(
            members=add(self.members),
            holders=add(self.holders),
            weight=weight,
            mean=add(self.weight[..., None] * self.mean) / safe[..., None],
            covariance=covariance,
            noise=add(self.weight**2 * self.noise) / safe**2,
            labels=add(self.labels),
            label_noise=add(self.label_noise),
            squares=add(self.squares),
            label_squares=add(self.label_squares),
        )

    @property
    def freedom(self) -> Array:
        """(G, U): degrees of freedom behind the covariances."""
        return np.asarray(np.maximum(self.weight - self.holders, 0.0))

    @property
    def own(self) -> Array:
        """(G, U): how much of the variance of one client's random effect is left in the group's class means."""
        return np.asarray(self.squares / np.maximum(self.weight, 1e-12) ** 2)

    @property
    def label_own(self) -> Array:
        """(G,): the same of its label shares."""
        return np.asarray(self.label_squares / np.maximum(self.labels.sum(axis=1), 1e-12) ** 2)


def white_means(pool: Pool, along: float = 0.0, apart: float = 0.0) -> Array:
    """(G, U, l): class means where the federation's pooled scatter within clients and classes is the unit.

    With random effects αS + βD² the unit is that of a typical client's noise: S + e(αS + βD²), e being its examples.
    """
    freedom = pool.freedom.sum(axis=0)
    total = np.einsum("gu,guij->uij", pool.weight, pool.covariance).astype(np.float64)
    length = pool.mean.shape[2]
    average = total.sum(axis=0) / max(freedom.sum(), 1.0)
    covariance = (total + 2.0 * length * average) / np.maximum(freedom + 2.0 * length, 1.0)[:, None, None]
    if along or apart:
        typical = typical_weight(pool)[:, None, None]
        variance = np.einsum("uii->ui", covariance)[..., None] * np.eye(length)
        covariance = covariance * (1 + along * typical) + apart * typical * variance
    values, axes = np.linalg.eigh(covariance)
    values = np.maximum(values, 1e-6 * values.max(axis=1, keepdims=True) + 1e-30)
    centre = np.einsum("gu,gui->ui", pool.weight, pool.mean) / np.maximum(pool.weight.sum(axis=0), 1e-12)[:, None]
    return np.asarray(np.einsum("gui,uij->guj", pool.mean - centre, axes) / np.sqrt(values))


def typical_weight(pool: Pool) -> Array:
    """(U,): effective examples of a class, on average over those who hold it."""
    return np.asarray(pool.weight.sum(axis=0) / np.maximum((pool.weight > 0).sum(axis=0), 1))
