"""What a source delivers: labelled examples for training and test, before any client holds them."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from fedflux.data.labelled import Split
from fedflux.data.scaling import PIXELS, Scaling
from fedflux.data.shifts.domains import Domains
from fedflux.data.tasks import Task, task_of
from fedflux.errors import FedfluxError

UNLABELLED = -1
"""Instead of a label, in a test part: nobody knows it."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs x of shape (N, …), labels y, and, in data that is split already, whose they are.

    Labels are classes, (N,), or say of each of L labels whether a record has it, (N, L).

    An input may have any shape: (features,) in a table, (channels, time) in a series, (channels, height, width) in an
    image, (length,) of token ids.

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
    scaling: Scaling = PIXELS
    """What is done to inputs before models see them: published constants for the pixels of public datasets."""
    class_names: tuple[str, ...] | None = None
    """What the data calls its classes; None: their numbers."""
    domains: Domains | None = None
    """What sets records apart by nature, where clients are dealt by that."""
    feature_names: tuple[str, ...] | None = None
    """What the columns of a table are called."""

    def __post_init__(self) -> None:
        for part, examples in (("training", self.train), ("test", self.test)):
            _check(self, part, examples)
        if len(self.train) == 0:
            raise FedfluxError(f"{self.name}: the training part holds no example")
        _check_clients(self)
        _check_domains(self)

    def part(self, split: Split) -> Examples:
        """The examples that a split of clients' is taken from: validation parts are cut off training."""
        return self.test if split == "test" else self.train

    @cached_property
    def some_unlabelled(self) -> bool:
        """Whether there are clients that nobody can score."""
        return bool((self.test.y == UNLABELLED).any())

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def task(self) -> Task:
        """One label a record, or several."""
        return task_of(self.train.y)

    @property
    def holds_images(self) -> bool:
        """Whether inputs are grey or coloured pictures: (1 or 3, height, width), and neither series nor vectors."""
        shape = self.input_shape
        return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 2

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over every array: two datasets with one checksum give the same runs."""
        digest = sha256()
        for examples in (self.train, self.test):
            for array in (examples.x, examples.y, examples.client, examples.group):
                if array is not None:
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        if self.scaling.kind != "pixels":
            digest.update(self.scaling.kind.encode())
        if self.domains is not None:
            for attributes in (self.domains.train, self.domains.test):
                digest.update(np.ascontiguousarray(attributes, dtype=np.int64).data)
        if self.client_clusters is not None:
            digest.update(np.ascontiguousarray(self.client_clusters, dtype=np.int64).data)
        return digest.hexdigest()


def _check(dataset: Dataset, part: str, examples: Examples) -> None:
    x, y, where = examples.x, examples.y, f"{dataset.name}, {part} part"
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise FedfluxError(f"{where}: inputs must have shape (N, …) with at least one feature each, not {x.shape}")
    if y.shape[1:] not in ((), (dataset.classes,)) or y.ndim != dataset.train.y.ndim:
        several = f"(N, {dataset.classes})"
        as_training = "(N,)" if dataset.train.y.ndim == 1 else several
        wanted = f"(N,), or {several} for several a record" if examples is dataset.train else as_training
        raise FedfluxError(f"{where}: labels must have shape {wanted}, not {y.shape}")
    if len(x) != len(y):
        raise FedfluxError(f"{where}: {len(x)} records but {len(y)} labels")
    if x.shape[1:] != dataset.train.x.shape[1:]:
        raise FedfluxError(f"{where}: inputs of shape {x.shape[1:]}, but training has {dataset.train.x.shape[1:]}")
    if x.dtype.kind not in "uif":
        raise FedfluxError(f"{where}: inputs of type {x.dtype}; give numbers")
    if x.dtype.kind != dataset.train.x.dtype.kind:
        raise FedfluxError(f"{where}: inputs of type {x.dtype}, but training has {dataset.train.x.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise FedfluxError(f"{where}: record {row} holds NaN or infinite values; clean the data first")
    if not np.issubdtype(y.dtype, np.integer):
        raise FedfluxError(f"{where}: labels of type {y.dtype}; give integers 0 to {dataset.classes - 1}")
    most = 1 if dataset.task.several else dataset.classes - 1
    outside = np.argwhere((y < (UNLABELLED if part == "test" else 0)) | (y > most))
    if len(outside):
        told, row = int(y[tuple(outside[0])]), int(outside[0][0])
        raise FedfluxError(f"{where}: label {told} of example {row} is outside 0 to {most}")
    if examples.client is not None and len(examples.client) != len(y):
        raise FedfluxError(f"{where}: {len(y)} labels but {len(examples.client)} client ids")
    if examples.group is not None and examples.group.shape != (len(y),):
        raise FedfluxError(f"{where}: {len(y)} labels but group ids of shape {examples.group.shape}")
    if examples.group is not None and not np.issubdtype(examples.group.dtype, np.integer):
        raise FedfluxError(f"{where}: group ids of type {examples.group.dtype}; give integers")
    if len(examples) and (examples.group is None) != (dataset.train.group is None):
        known, other = ("training", "test") if examples.group is None else ("test", "training")
        raise FedfluxError(f"{dataset.name}: the {known} part has groups, but the {other} part has none; give both")


def _check_domains(dataset: Dataset) -> None:
    """Every record has its attributes, and nobody else says who holds it."""
    domains = dataset.domains
    if domains is None:
        return
    if dataset.client_names is not None:
        raise FedfluxError(f"{dataset.name}: clients and domains; where records have an owner nothing is dealt")
    for part, attributes in ((dataset.train, domains.train), (dataset.test, domains.test)):
        if attributes.shape != (len(part), len(domains.words)):
            wanted = f"{len(part)} records and {len(domains.words)} attributes"
            raise FedfluxError(f"{dataset.name}: {wanted}, but domains of shape {attributes.shape}")


def _check_clients(dataset: Dataset) -> None:
    """Client ids, names and clusters come together or not at all: a stray id would be dealt to somebody else."""
    if dataset.class_names is not None and len(dataset.class_names) != dataset.classes:
        raise FedfluxError(f"{dataset.name}: {dataset.classes} classes but {len(dataset.class_names)} class names")
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
