"""What a source delivers: labelled examples for training and test, before any client holds them."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError


@dataclass(frozen=True, eq=False)
class Examples:
    """Images x of shape (N, channels, height, width), labels y, and, in data that is split already, whose they are.

    `group` says which records belong together (a patient, a recording, a device): equal numbers are one group, in the
    training and the test part alike. Only equality counts, and only within a client.
    """

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    client: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A checked dataset; `client_names` and `client_clusters` exist only where the data came split by client.

    A client with examples in the test part alone is held out of training; its cluster may be unknown (−1).
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    client_names: tuple[str, ...] | None = None
    client_clusters: NDArray[np.int64] | None = None
    pixels: tuple[float, float] = (0.5, 0.5)
    """Mean and deviation (pixels in 0 to 1) by which models see images standardised: published constants of the public
    datasets, one half for people's own data, so that no statistic of private images is needed."""

    def __post_init__(self) -> None:
        for part, examples in (("training", self.train), ("test", self.test)):
            _check(self, part, examples)
        if len(self.train) == 0:
            raise FedfluxError(f"{self.name}: the training part holds no example")
        _check_clients(self)

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
            for array in (examples.x, examples.y, examples.client, examples.group):
                if array is not None:
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        if self.client_clusters is not None:
            digest.update(np.ascontiguousarray(self.client_clusters, dtype=np.int64).data)
        return digest.hexdigest()


def _check(dataset: Dataset, part: str, examples: Examples) -> None:
    x, y, where = examples.x, examples.y, f"{dataset.name}, {part} part"
    if x.ndim != 4:
        raise FedfluxError(f"{where}: images must have shape (N, channels, height, width), not {x.shape}")
    if y.ndim != 1:
        raise FedfluxError(f"{where}: labels must have shape (N,), not {y.shape}")
    if len(x) != len(y):
        raise FedfluxError(f"{where}: {len(x)} images but {len(y)} labels")
    if x.shape[1:] != dataset.train.x.shape[1:]:
        raise FedfluxError(
            f"{where}: images of shape {x.shape[1:]}, but training images are {dataset.train.x.shape[1:]}"
        )
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise FedfluxError(f"{where}: images of type {x.dtype}; give uint8 (0 to 255) or floating point (0 to 1)")
    if (x.dtype == np.uint8) != (dataset.train.x.dtype == np.uint8):
        raise FedfluxError(f"{where}: images of type {x.dtype}, but training images are {dataset.train.x.dtype}")
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
    if examples.group is not None and examples.group.shape != (len(y),):
        raise FedfluxError(f"{where}: {len(y)} labels but group ids of shape {examples.group.shape}")
    if examples.group is not None and not np.issubdtype(examples.group.dtype, np.integer):
        raise FedfluxError(f"{where}: group ids of type {examples.group.dtype}; give integers")
    if len(examples) and (examples.group is None) != (dataset.train.group is None):
        known, other = ("training", "test") if examples.group is None else ("test", "training")
        raise FedfluxError(f"{dataset.name}: the {known} part has groups, but the {other} part has none; give both")


def _check_clients(dataset: Dataset) -> None:
    """Client ids, names and clusters come together or not at all: a stray id would be dealt to somebody else."""
    names, clusters = dataset.client_names, dataset.client_clusters
    if names is None:
        if clusters is not None or dataset.train.client is not None or dataset.test.client is not None:
            raise FedfluxError(f"{dataset.name}: client ids or clusters without client names; give client_names")
        return
    for part, examples in (("training", dataset.train), ("test", dataset.test)):
        if examples.client is None and len(examples):
            raise FedfluxError(f"{dataset.name}, {part} part: {len(names)} client names but no client ids")
        if examples.client is not None and not np.isin(examples.client, np.arange(len(names))).all():
            raise FedfluxError(f"{dataset.name}, {part} part: client ids must be integers 0 to {len(names) - 1}")
    if clusters is not None and len(clusters) != len(names):
        raise FedfluxError(f"{dataset.name}: {len(names)} client names but {len(clusters)} client clusters")
