"""What a source delivers: labelled examples for training and test, before any client holds them."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError


@dataclass(frozen=True, eq=False)
class Examples:
    """Images x of shape (N, channels, height, width), labels y, and, in data that is split already, whose they are."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    client: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A checked dataset; `client_names` and `client_clusters` exist only where the data came split by client."""

    name: str
    train: Examples
    test: Examples
    classes: int
    client_names: tuple[str, ...] | None = None
    client_clusters: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part, examples in (("training", self.train), ("test", self.test)):
            _check(self, part, examples)
        if len(self.train) == 0:
            raise FedfluxError(f"{self.name}: the training part holds no example")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over every array: two datasets with one checksum give the same runs."""
        digest = sha256()
        for examples in (self.train, self.test):
            for array in (examples.x, examples.y, examples.client):
                if array is not None:
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _check(dataset: Dataset, part: str, examples: Examples) -> None:
    x, y, where = examples.x, examples.y, f"{dataset.name}, {part} part"
    if x.ndim != 4:
        raise FedfluxError(f"{where}: images must have shape (N, channels, height, width), not {x.shape}")
    if len(x) != len(y):
        raise FedfluxError(f"{where}: {len(x)} images but {len(y)} labels")
    if x.shape[1:] != dataset.train.x.shape[1:]:
        raise FedfluxError(
            f"{where}: images of shape {x.shape[1:]}, but training images are {dataset.train.x.shape[1:]}"
        )
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise FedfluxError(f"{where}: images of type {x.dtype}; give uint8 (0 to 255) or floating point (0 to 1)")
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise FedfluxError(f"{where}: image {row} holds NaN or infinite pixels; clean the data first")
    if not np.issubdtype(y.dtype, np.integer):
        raise FedfluxError(f"{where}: labels of type {y.dtype}; give integers 0 to {dataset.classes - 1}")
    outside = np.flatnonzero((y < 0) | (y >= dataset.classes))
    if len(outside):
        row = int(outside[0])
        raise FedfluxError(f"{where}: label {int(y[row])} of example {row} is outside 0 to {dataset.classes - 1}")
    if examples.client is not None and len(examples.client) != len(y):
        raise FedfluxError(f"{where}: {len(y)} labels but {len(examples.client)} client ids")
