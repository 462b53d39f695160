"""How raw numbers become what models see: bytes as pixels, other numbers standardised, or as they are.

Clients of a federation must scale alike, and so must whoever uses a model later: a scaling is therefore part of what a
run keeps. `standardise` is (x − mean) / deviation by the whole federation's mean and deviation of every feature, which
are made of each client's count, mean and sum of squares, and nothing else (`fedflux.data.scaling_queries`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

Kind = Literal["pixels", "standardise", "none"]
Requested = Literal["auto", "pixels", "standardise", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Array = NDArray[np.generic]
HALF = (0.5,)


@dataclass(frozen=True)
class Scaling:
    """What is done to inputs before a model sees them.

    `pixels`: bytes become 0 to 1, then (x − mean) / deviation, one of each for all pixels; floating point is taken to
    run from 0 to 1 already. `standardise`: (x − mean) / deviation for every feature of a table, every channel of
    anything else. `none`: floating point as it is, integers (token ids) as integers.

    >>> Scaling("standardise", mean=(10.0, 0.0), deviation=(2.0, 1.0)).prepared(np.array([[12, 3]]))
    array([[1., 3.]], dtype=float32)
    """

    kind: Kind
    mean: tuple[float, ...] = HALF
    deviation: tuple[float, ...] = HALF

    @property
    def known(self) -> bool:
        """Whether its means and deviations are: those of `standardise` have to be asked of clients first."""
        return self.kind != "standardise" or bool(self.mean)

    @property
    def pixels(self) -> tuple[float, float] | None:
        """Mean and deviation that engines apply to what `prepared` gave; None where that is finished."""
        return (self.mean[0], self.deviation[0]) if self.kind == "pixels" else None

    def prepared(self, x: Array) -> Array:
        """Inputs in the form in which clients hold them: bytes stay bytes until an engine needs them."""
        if self.kind == "pixels":
            return x if x.dtype == np.uint8 else x.astype(np.float32)
        if self.kind == "none":
            return x.astype(np.int64 if np.issubdtype(x.dtype, np.integer) else np.float32)
        if not self.mean:
            return x.astype(np.float32)  # nobody has been asked yet, and nobody trains on it
        width = channels(x.shape[1:])
        if len(self.mean) != width:
            raise FedfluxError(f"inputs of shape {x.shape[1:]} do not fit a scaling of {len(self.mean)} features")
        shape = (width, *[1] * (x.ndim - 2))
        mean, deviation = (np.array(one).reshape(shape) for one in (self.mean, self.deviation))
        scaled: Array = ((x.astype(np.float64) - mean) / deviation).astype(np.float32)
        return scaled

    def as_plain(self) -> dict[str, Any]:
        """As plain values, for JSON and for nodes."""
        return {"kind": self.kind, "mean": list(self.mean), "deviation": list(self.deviation)}

    @staticmethod
    def from_plain(told: Mapping[str, Any]) -> "Scaling":
        """From plain values; whatever does not fit raises ValueError."""
        kind, mean, deviation = told["kind"], tuple(told["mean"]), tuple(told["deviation"])
        if kind not in KINDS or len(mean) != len(deviation) or (kind == "pixels" and len(mean) != 1):
            raise ValueError("a scaling is pixels, standardise or none, with as many means as deviations")
        numbers = [float(one) for one in (*mean, *deviation)]
        if not np.isfinite(numbers).all() or min(numbers[len(mean) :], default=1.0) <= 0:
            raise ValueError("a scaling needs finite means and deviations above 0")
        return Scaling(kind, tuple(numbers[: len(mean)]), tuple(numbers[len(mean) :]))


UNASKED = Scaling("standardise", (), ())
"""`standardise` before clients were asked."""
UNCHANGED = Scaling("none")
PIXELS = Scaling("pixels")
"""One half and one half: no statistic of private images is needed."""


def chosen(requested: Requested, x: Array) -> Scaling:
    """The scaling that somebody asked for; `auto`: bytes are pixels, everything else is standardised."""
    if requested == "pixels" or (requested == "auto" and x.dtype == np.uint8):
        return PIXELS
    return UNCHANGED if requested == "none" else UNASKED


def channels(shape: tuple[int, ...]) -> int:
    """How many means an input of this shape has: one for every feature of a table, else one a channel."""
    return shape[0]


@dataclass(frozen=True, eq=False)
class Spread:
    """Count, mean and sum of squares about the mean of every feature: what clients tell, and what that adds up to."""

    count: NDArray[np.float64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @staticmethod
    def of(x: Array) -> "Spread":
        """Of one client's inputs."""
        width = channels(x.shape[1:])
        values = np.moveaxis(x, 1, 0).reshape(width, -1).astype(np.float64)
        count = np.full(width, float(len(x) * prod(x.shape[2:])))
        mean = values.mean(axis=1) if len(x) else np.zeros(width)
        return Spread(count, mean, ((values - mean[:, None]) ** 2).sum(axis=1))

    def __add__(self, other: "Spread") -> "Spread":
        """Of both together, without cancellation however large the means are (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart**2 * self.count * share
        return Spread(count, self.mean + apart * share, squares)

    def scaling(self) -> Scaling:
        """Standardisation by these; a feature that never changes keeps its unit, and becomes zero."""
        deviation = np.sqrt(self.squares / np.maximum(self.count, 1.0))
        tiny = deviation <= 1e-12 * np.abs(self.mean)
        deviation = np.where(tiny | (deviation == 0), 1.0, deviation)
        return Scaling("standardise", tuple(self.mean.tolist()), tuple(deviation.tolist()))

    @property
    def constant(self) -> NDArray[np.int64]:
        """The features that never change."""
        deviation = np.sqrt(self.squares / np.maximum(self.count, 1.0))
        return np.flatnonzero(deviation <= 1e-12 * np.abs(self.mean))
