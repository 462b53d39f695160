"""S3, moments: means and covariances of reduced latents, over all of a client's examples and within each class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedflux.descriptors.projector import Projector

EXPANDED = {"cuda": 2**29, "cpu": 2**20}
"""Bytes of products made at once, by kind of device: a GPU likes many, a core what its cache holds."""


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Counts, Σz and Σzzᵀ by group: row 0 is everything, row 1 + u is class u (absent without labels)."""

    table: Tensor
    """(groups, 1 + l + l²)."""
    length: int
    """l."""


@dataclass(frozen=True)
class MomentStatistic:
    """The statistic of S3, streamed batch by batch in float64; `classes` is None for unlabelled clients."""

    projector: Projector
    classes: int | None

    def add(self, so_far: MomentSums | None, latents: Tensor, labels: Tensor | None) -> MomentSums:
        """The sums with one more batch; as a matrix product, so that no atomic addition reorders them."""
        groups, powers = self._expanded(latents, labels)
        table = groups.T @ powers
        return MomentSums(table if so_far is None else so_far.table + table, len(self.projector))

    def of_each(self, latents: Tensor, labels: Tensor | None, ends: Sequence[int]) -> list[MomentSums]:
        """The sums of many clients whose latents lie one after another, on the host: one product a client, one trip."""
        tables, begin = [], 0
        length = len(self.projector)
        each = 8 * (1 + length + length**2)
        for some in _together(ends, EXPANDED.get(latents.device.type, 2**20) // each):
            rows = slice(begin, some[-1])
            groups, powers = self._expanded(latents[rows], None if labels is None else labels[rows])
            edges = [0, *(end - begin for end in some)]
            tables += [groups[a:b].T @ powers[a:b] for a, b in pairwise(edges)]
            begin = some[-1]
        return [MomentSums(table, len(self.projector)) for table in torch.stack(tables).cpu()]

    def _expanded(self, latents: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Which groups each example counts in, and what it adds to them: one, z and zzᵀ."""
        z = self.projector.project(latents)
        ones = torch.ones(len(z), 1, dtype=z.dtype, device=z.device)
        powers = torch.cat([ones, z, (z[:, :, None] * z[:, None, :]).flatten(1)], dim=1)
        if self.classes is None:
            return ones, powers
        if labels is None:
            raise ValueError("class-conditional moments need labels")
        return torch.cat([ones, one_hot(labels, self.classes).to(z.dtype)], dim=1), powers


def _together(ends: Sequence[int], most: int) -> Iterator[list[int]]:
    """Clients in groups of bounded size, at least one at a time."""
    some: list[int] = []
    begin = before = 0
    for end in ends:
        if some and end - begin > most:
            yield some
            some, begin = [], before
        some.append(end)
        before = end
    yield some


@dataclass(frozen=True, eq=False)
class Moments:
    """Per group: count n, mean μ (l) and covariance Σ (l × l)."""

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


def moments(sums: MomentSums, copies: int = 1) -> Moments:
    """Population moments (division by n, as numpy's default); an empty group gets zeros and count 0.

    `copies` of every example multiply the counts and leave means and covariances as they are.
    """
    table = sums.table.cpu().numpy()
    count, first, second = table[:, 0], table[:, 1 : 1 + sums.length], table[:, 1 + sums.length :]
    n = np.maximum(count, 1)[:, None]
    mean = first / n
    length = mean.shape[1]
    raw = (second / n).reshape(-1, length, length)
    covariance = raw - mean[:, :, None] * mean[:, None, :]
    # below the rounding of the difference there is no spread, and scaling must not blow it up
    diagonal = np.arange(length)
    flat = covariance[:, diagonal, diagonal] <= 1e-12 * raw[:, diagonal, diagonal]
    covariance[flat[:, :, None] | flat[:, None, :]] = 0
    return Moments(count.astype(np.int64) * copies, mean, covariance)
