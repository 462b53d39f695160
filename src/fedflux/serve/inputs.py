"""Inputs as a bundle's graphs take them, from inputs as clients have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

Array = NDArray[np.generic]
KINDS: dict[str, type[np.generic]] = {
    "pixels": np.float32,
    "integers": np.int64,
    "wide": np.float64,
    "plain": np.float32,
}


@dataclass(frozen=True)
class InputForm:
    """What one record is. Scaling beyond this is part of the graphs."""

    shape: tuple[int, ...]
    kind: Literal["pixels", "integers", "wide", "plain"]
    """`pixels` from 0 to 1, bytes are divided by 255; `integers`, such as tokens; `wide`: features that the graphs
    standardise, in double precision; `plain` numbers."""
    grey: bool = False
    """Whether images of one channel are taken, too, as colours that are alike: a shift coloured grey images."""

    @property
    def dtype(self) -> type[np.generic]:
        """What graphs take."""
        return KINDS[self.kind]

    def prepared(self, x: Any, most: int | None = None) -> Array:
        """A batch of records, checked."""
        try:
            values = np.asarray(x)
        except ValueError as error:
            raise FedfluxError("these records are of unequal length; give one array of them") from error
        if values.dtype.kind not in "buif":
            raise FedfluxError(f"these records hold {values.dtype}; give numbers")
        values = self._shaped(values)
        if not len(values):
            raise FedfluxError("no record was given")
        if most is not None and len(values) > most:
            raise FedfluxError(f"{len(values)} records are too many at once; send at most {most}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise FedfluxError(f"record {row} holds NaN or infinite values; clean the data first")
        return self._numbers(values)

    def _shaped(self, values: Array) -> Array:
        if values.shape[1:] == self.shape:
            return values
        size = self.shape[1:]
        if self.grey and values.shape[1:] in (size, (1, *size), (*size, 1)):
            return np.repeat(values.reshape(len(values), 1, *size), self.shape[0], axis=1)
        if self.kind == "pixels" and values.ndim == 3 and (1, *values.shape[1:]) == self.shape:
            return values[:, None]
        last = values.ndim == 4 and (values.shape[3], *values.shape[1:3]) == self.shape
        if self.kind == "pixels" and last:
            return values.transpose(0, 3, 1, 2)
        told = "×".join(map(str, self.shape))
        raise FedfluxError(f"records of shape {list(values.shape[1:])}, but models take {told}; give (N, {told})")

    def _numbers(self, values: Array) -> Array:
        if self.kind == "integers" and values.dtype.kind == "f":
            raise FedfluxError("models take integers; give whole numbers")
        if self.kind == "pixels" and values.dtype.kind in "ui":
            if values.dtype != np.uint8 and (values.min() < 0 or values.max() > 255):
                raise FedfluxError(f"integers run from {values.min()} to {values.max()}; pixels are 0 to 255")
            return np.ascontiguousarray(values.astype(np.float32) / np.float32(255))
        with np.errstate(over="ignore"):
            found = np.ascontiguousarray(values.astype(self.dtype))
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise FedfluxError("some numbers are too large for the models; scale the data as in training")
        return found

    def as_plain(self) -> dict[str, Any]:
        """As a bundle writes it down."""
        return {"shape": list(self.shape), "kind": self.kind, "grey": self.grey}

    @staticmethod
    def from_plain(shape: Sequence[int], kind: str, grey: bool = False) -> "InputForm":
        """From what a bundle wrote down."""
        if kind not in KINDS or not shape or not all(isinstance(one, int) and one > 0 for one in shape):
            raise ValueError(f"inputs of kind {kind!r} and shape {shape!r}")
        return InputForm(tuple(shape), kind, bool(grey) and len(shape) == 3)  # type: ignore[arg-type]
