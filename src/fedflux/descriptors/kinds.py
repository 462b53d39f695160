"""Descriptors of records with several labels: each record counts once, as the rarest label that it has.

Which labels are rare is asked of everybody once, so that a kind means the same at every client. Where a label counted
every record that has it, class means would share records: tests of them together would split clients that differ in
nothing, and what places unlabelled clients would be no mixture (docs/several-labels.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data.tasks.kinds import kinds


@dataclass(frozen=True)
class ByKind:
    """A statistic that is given each record's kind instead of its labels."""

    statistic: Any
    rarest: tuple[int, ...]

    def add(self, so_far: Any, latents: Tensor, labels: Tensor | None) -> Any:
        """The summary with one more batch."""
        told = None if labels is None else kinds_of(labels, self.rarest)
        return self.statistic.add(so_far, latents, told)


def by_kind(statistic: Any, rarest: tuple[int, ...]) -> Any:
    """The statistic as it is where records have one label: then nothing is rare."""
    return ByKind(statistic, rarest) if rarest else statistic


def kinds_of(labels: Tensor, rarest: tuple[int, ...]) -> Tensor:
    """Each record's kind, where its labels lie."""
    return torch.from_numpy(kinds(labels.cpu().numpy(), rarest)).to(labels.device)


def label_counts(labels: NDArray[np.int64], copies: int) -> NDArray[np.int64]:
    """(L,): how many records have each label."""
    return np.asarray((labels > 0).sum(axis=0) * copies, dtype=np.int64)
