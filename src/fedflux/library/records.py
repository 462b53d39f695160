"""A client's records as plain arrays: what they hold, and what an encoder makes of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedflux.data.holding import NothingToTellError, Pass, Seen
from fedflux.data.labelled import Labelled, Split
from fedflux.engine.base import Query
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays

BATCH = 64
"""Records encoded and summed up at once: as many as the loop engine takes, so that sums have the same bits."""
Encode = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Records:
    """One part of what a client holds."""

    x: Any
    y: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """A number for every record, the same for equal ones."""
        values = np.asarray(self.x.detach().cpu() if isinstance(self.x, Tensor) else self.x)
        return np.array([hash(np.ascontiguousarray(one).tobytes()) for one in values], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ArrayHolding:
    """A client that holds arrays: what it answers is computed by the same questions as in a run."""

    parts: Mapping[str, Records]
    encode: Encode | None
    classes: int
    client: int = 0
    width: int | None = None
    """How long latents must be, where the question says so."""

    def size(self, split: Split) -> int:
        """How many records."""
        return len(self.parts[split]) if split in self.parts else 0

    def copies(self, split: Split) -> int:
        """Every record is there as often as it is given."""
        return 1

    def rows(self, split: Split) -> NDArray[np.int64]:
        """By content."""
        return self.parts[split].rows if split in self.parts else np.zeros(0, dtype=np.int64)

    def groups(self, split: Split) -> NDArray[np.int64] | None:
        """As they were given."""
        return self.parts[split].group if split in self.parts else None

    def inputs(self, split: Split) -> NDArray[np.generic]:
        """As they were given."""
        return np.asarray(self.parts[split].x)

    def scaled(self, split: Split) -> Tensor:
        """Records may be anything that the encoder takes."""
        raise ValueError("these records are no tensors")

    def labels(self, split: Split) -> NDArray[np.int64]:
        """As they were given."""
        labels = self.parts[split].y
        if labels is None:
            raise ValueError("this client has no labels")
        return labels

    def data(self, split: Split) -> Labelled:
        """Records may be anything that the encoder takes."""
        raise ValueError("these records are no tensors")

    def answer(self, query: Query) -> Arrays:
        """What leaves the client."""
        try:
            return query.answer(self, Seen([self._passed(one) for one in query.passes()]))
        except NothingToTellError as nothing:
            raise FedfluxError(f"nothing to tell: {nothing}") from nothing

    def _passed(self, one: Pass) -> Any:
        """One pass of the records' latents through a statistic; None where there are none."""
        chosen = None if one.chosen is None else one.chosen(self)
        if not (self.size(one.split) if chosen is None else len(chosen)):
            return None
        part = self.parts[one.split]
        positions = np.arange(len(part)) if chosen is None else chosen
        found: Any = None
        for rows in self._batches(positions):
            latents = self._latents(part.x, rows)
            labels = torch.from_numpy(part.y[rows]) if one.labelled and part.y is not None else None
            found = one.statistic.add(found, latents, labels)
        return found

    @staticmethod
    def _batches(positions: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        for begin in range(0, len(positions), BATCH):
            yield positions[begin : begin + BATCH]

    def _latents(self, x: Any, rows: NDArray[np.int64]) -> Tensor:
        """One row of finite numbers a record."""
        in_order = len(rows) == rows[-1] - rows[0] + 1
        batch = x[int(rows[0]) : int(rows[-1]) + 1] if in_order else taken(x, rows)
        with torch.no_grad(), evaluating(getattr(self.encode, "__self__", self.encode)):
            latents = as_tensor(batch if self.encode is None else self.encode(batch))
        if len(latents) != len(rows) or latents.ndim < 2:
            raise FedfluxError(
                f"latents of shape {tuple(latents.shape)} for {len(rows)} records: give one row of numbers a record"
            )
        latents = latents.flatten(1)
        if self.width is not None and latents.shape[1] != self.width:
            words = f"the extractor was made for latents of {self.width} numbers, and these have {latents.shape[1]}"
            raise FedfluxError(f"{words}: all clients encode alike")
        bad = torch.nonzero(~torch.isfinite(latents).all(dim=1))
        if len(bad):
            raise FedfluxError(f"the latent of record {rows[int(bad[0])]} holds NaN or infinite numbers")
        return latents


@contextmanager
def evaluating(owner: Any) -> Iterator[None]:
    """A model in evaluation mode for a while, then every part of it as it was; anything else is left alone."""
    before = [(one, one.training) for one in owner.modules()] if isinstance(owner, nn.Module) else []
    for one, _ in before:
        one.training = False
    try:
        yield
    finally:
        for one, was in before:
            one.training = was


def taken(x: Any, rows: NDArray[np.int64]) -> Any:
    """Some records of whatever kind of array they are in."""
    return x[torch.from_numpy(rows)] if isinstance(x, Tensor) else np.asarray(x)[rows]


def as_tensor(values: Any) -> Tensor:
    """Numbers of torch, numpy, JAX or lists as a tensor of floats on the host."""
    if isinstance(values, Tensor):
        found = values.detach().cpu()
        return found if found.dtype in (torch.float32, torch.float64) else found.float()
    array = np.asarray(values)
    if array.dtype.kind in "USOM":
        raise FedfluxError(f"latents are {array.dtype}: give one row of numbers a record")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    return torch.from_numpy(np.array(array, order="C"))
