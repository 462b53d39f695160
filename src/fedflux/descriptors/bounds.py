"""S1, global alignment: the box that holds every client's latents, from per-client minima and maxima."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Bounds:
    """[m⁻, m⁺], one interval per latent coordinate."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """What one client sends, and what it gets back."""
        return self.low.nbytes + self.high.nbytes


class LatentRange:
    """The statistic of S1: elementwise minimum and maximum of one client's latents."""

    def add(
        self, so_far: tuple[Tensor, Tensor] | None, latents: Tensor, labels: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The range with one more batch."""
        low, high = latents.amin(dim=0), latents.amax(dim=0)
        if so_far is None:
            return low, high
        return torch.minimum(so_far[0], low), torch.maximum(so_far[1], high)

    def of_each(self, latents: Tensor, labels: Tensor | None, ends: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The ranges of many clients whose latents lie one after another, on the host after one trip."""
        each = [self.add(None, latents[begin:end], None) for begin, end in pairwise([0, *ends])]
        low, high = (torch.stack(side).cpu() for side in zip(*each, strict=True))
        return list(zip(low, high, strict=True))


def client_bounds(latent_range: tuple[Tensor, Tensor]) -> Bounds:
    """One client's message."""
    low, high = (tensor.cpu().numpy().astype(np.float32) for tensor in latent_range)
    return Bounds(low, high)


def merge_bounds(clients: Sequence[Bounds]) -> Bounds:
    """The server's box: coordinate-wise minimum and maximum over clients."""
    return Bounds(np.min([b.low for b in clients], axis=0), np.max([b.high for b in clients], axis=0))


def scalar_bounds(bounds: Bounds) -> Bounds:
    """The authors' release instead: one interval [0, 1.02·max] for every coordinate."""
    top = np.float32(1.02 * bounds.high.max())
    return Bounds(np.zeros_like(bounds.low), np.full_like(bounds.high, top))
