"""Examples as tensors: with labels, and without them."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs without labels: all that the test phase may see.

    Copies are a count, not data: x holds each example once, and position p of the client's examples is x[p % len(x)].
    """

    x: Tensor
    copies: int = field(default=1, kw_only=True)
    """How often the client holds all of x."""

    def __len__(self) -> int:
        return len(self.x) * self.copies

    def take(self, positions: NDArray[np.int64]) -> "Features":
        """Some of the stored inputs, each held once."""
        return Features(self.x if len(positions) == len(self.x) else self.x[positions])


@dataclass(frozen=True, eq=False)
class Labelled(Features):
    """Inputs, labels, and the source row of each example (equal rows are copies of one example), each stored once."""

    y: Tensor
    rows: NDArray[np.int64]

    def take(self, positions: NDArray[np.int64]) -> "Labelled":
        """Some of the stored examples, each held once."""
        return Labelled(self.x[positions], self.y[positions], self.rows[positions])

    def features(self) -> Features:
        """The same inputs with their labels left behind."""
        return Features(self.x, copies=self.copies)

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return self.x.nbytes + self.y.nbytes + self.rows.nbytes

    def repeated(self) -> "Labelled":
        """The same examples with every copy made: for what leaves the library."""
        times = self.copies
        if times == 1:
            return self
        y = self.y.repeat(times, *[1] * (self.y.ndim - 1))
        return Labelled(self.x.repeat(times, *[1] * (self.x.ndim - 1)), y, np.tile(self.rows, times))
