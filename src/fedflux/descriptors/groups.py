"""How much alike the records of a group are: what a client's records are worth where some belong together.

Records of one patient, recording or device are alike, so that n of them say less than n of different ones. With the
correlation ρ between records of a group, groups of m and copies of c records, a mean of n records has the variance of

    e = n² / (Σc² + ρ (Σm² − Σc²))

independent ones: Kish's count of distinct records for ρ = 0, his count of groups for ρ = 1. ρ is estimated where the
latents are, at the client, by an analysis of variance between groups, within classes. Directions of the latent differ
in it, and a test of a mean looks at all of them, so the largest counts. Where there are too few groups, ρ = 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data.holding import Holding, Pass
from fedflux.data.labelled import Split
from fedflux.data.tasks.kinds import kinds
from fedflux.descriptors.descriptor import effective_counts
from fedflux.descriptors.projector import Projector

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LEAST = 2.0
"""Degrees of freedom, between and within groups, for each direction of the latent, below which ρ is not estimated."""


@dataclass(frozen=True)
class Alike:
    """ρ, the correlation between records of a group."""

    within: float = 1.0
    """Of latents of one class."""
    overall: float = 1.0
    """Of latents whatever their class, or of the labels where those are more alike."""


@dataclass(frozen=True, eq=False)
class ReducedStatistic:
    """The reduced latents themselves, which stay at the client."""

    projector: Projector

    def add(self, so_far: Tensor | None, latents: Tensor, labels: Tensor | None) -> Tensor:
        """Those of one more batch."""
        found = self.projector.project(latents).cpu()
        return found if so_far is None else torch.cat([so_far, found])

    def of_each(self, latents: Tensor, labels: Tensor | None, ends: Sequence[int]) -> list[Tensor]:
        """Those of many clients whose latents lie one after another."""
        return list(self.projector.project(latents).cpu().tensor_split(list(ends)[:-1]))


def group_pass(projector: Projector, split: Split) -> Pass:
    """A pass of the clients that know of groups; the others are spared it."""
    return Pass(split, ReducedStatistic(projector), labelled=False, chosen=partial(_grouped, split))


def _grouped(split: Split, held: Holding) -> Index:
    group = held.groups(split)
    return np.arange(0 if group is None else len(group))


def counted(
    held: Holding, split: Split, classes: int | None, reduced: Tensor | None, rarest: tuple[int, ...] = ()
) -> Array:
    """Effective counts of a client's records, over all and, with `classes`, within each."""
    labels = None if classes is None else kinds(held.labels(split), rarest)
    group = held.groups(split)
    if group is None:
        return effective_counts(held.rows(split), labels, classes)
    alike = Alike() if reduced is None else alikeness(reduced.numpy(), labels, group)
    return effective_counts(held.rows(split), labels, classes, group, alike.within, alike.overall)


def pieces_worth(held: Holding, split: Split, pieces: Sequence[Index], reduced: Array) -> list[float]:
    """What pieces of a client's records are worth, each so many different ones."""
    group, rows = held.groups(split), held.rows(split)
    if group is None:
        return [float(len(some)) for some in pieces]
    overall = alikeness(reduced, None, group).overall
    return [float(effective_counts(rows[p], None, None, group[p], overall=overall)[0]) for p in pieces]


def alikeness(reduced: Array, labels: Index | None, group: Index) -> Alike:
    """ρ of a client's own records."""
    together = np.zeros(len(group), dtype=np.int64)
    overall = _largest(reduced, together, group)
    if labels is None:
        return Alike(overall, overall)
    shares = (labels[:, None] == np.unique(labels)).astype(np.float64)
    of_labels = _between(shares, together, group)
    if of_labels is None:
        return Alike(_largest(reduced, labels, group), 1.0)
    parted, whole = (float(np.trace(one)) for one in of_labels)
    alone = float(np.clip(parted / whole, 0, 1)) if whole > 0 else 0.0
    return Alike(_largest(reduced, labels, group), max(overall, alone))


def _largest(reduced: Array, labels: Index, group: Index) -> float:
    """The largest ρ of any direction: of the covariance between groups as seen where the whole one is the identity."""
    found = _between(reduced, labels, group)
    if found is None:
        return 1.0
    parted, whole = found
    values, vectors = np.linalg.eigh(whole)
    alive = values > 1e-9 * max(values[-1], 1e-300)
    if not alive.any():
        return 1.0
    turned = vectors[:, alive] / np.sqrt(values[alive])
    return float(np.clip(np.linalg.eigvalsh(turned.T @ parted @ turned)[-1], 0, 1))


def _between(values: Array, labels: Index, group: Index) -> tuple[Array, Array] | None:
    """Covariance between groups and in all, pooled over classes; None where too little is known of either part.

    With k groups of m records and mean squares between (B) and within groups (W), (B − W)/m₀ estimates the first,
    m₀ = (n − Σm²/n)/(k − 1).
    """
    length = values.shape[1]
    parted, whole = np.zeros((2, length, length))
    between = inside = 0.0
    for label in np.unique(labels):
        mine = labels == label
        z, number = values[mine], np.unique(group[mine], return_inverse=True)[1].reshape(-1)
        size = np.bincount(number).astype(np.float64)
        count, groups = len(z), len(size)
        if groups < 2 or count == groups:
            continue
        mean = np.zeros((groups, length))
        np.add.at(mean, number, z)
        mean /= size[:, None]
        rest, gap = z - mean[number], mean - z.mean(axis=0)
        outer = (size[:, None] * gap).T @ gap
        inner = rest.T @ rest
        typical = (count - (size**2).sum() / count) / (groups - 1)
        estimate = (outer / (groups - 1) - inner / (count - groups)) / typical
        parted += count * estimate
        whole += count * (estimate + inner / (count - groups))
        between, inside = between + groups - 1, inside + count - groups
    if min(between, inside) < LEAST * length:
        return None
    # an estimate may lie below zero in some direction, and the whole may not
    values_, vectors = np.linalg.eigh(whole)
    return parted, (vectors * np.maximum(values_, 0)) @ vectors.T
