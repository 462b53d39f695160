"""S3, moments: means and covariances of reduced latents, over all of a client's examples and within each class."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedflux.flux.projector import Projector


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Counts, Σz and Σzzᵀ by group: row 0 is everything, row 1 + u is class u (absent without labels)."""

    count: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class MomentStatistic:
    """The statistic of S3, streamed batch by batch in float64; `classes` is None for unlabelled clients."""

    projector: Projector
    classes: int | None

    def add(self, so_far: MomentSums | None, latents: Tensor, labels: Tensor | None) -> MomentSums:
        """The sums with one more batch; as a matrix product, so that no atomic addition reorders them."""
        z = self.projector.project(latents)
        groups = torch.ones(len(z), 1, dtype=z.dtype, device=z.device)
        if self.classes is not None:
            if labels is None:
                raise ValueError("class-conditional moments need labels")
            groups = torch.cat([groups, one_hot(labels, self.classes).to(z.dtype)], dim=1)
        products = (z[:, :, None] * z[:, None, :]).flatten(1)
        new = MomentSums(groups.sum(dim=0), groups.T @ z, groups.T @ products)
        if so_far is None:
            return new
        return MomentSums(so_far.count + new.count, so_far.first + new.first, so_far.second + new.second)


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
    together = torch.cat([sums.count[:, None], sums.first, sums.second], dim=1).cpu().numpy()  # one trip, not three
    count, first, second = (
        together[:, 0],
        together[:, 1 : 1 + sums.first.shape[1]],
        together[:, 1 + sums.first.shape[1] :],
    )
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
