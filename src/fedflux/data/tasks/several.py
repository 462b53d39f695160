"""Several labels a record as people give them: 0 or 1 for each of L labels."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

Labels = NDArray[np.int64]


class Told(Protocol):
    """Records with their targets, or without."""

    @property
    def x(self) -> NDArray[np.generic]:
        """Inputs."""

    @property
    def y(self) -> NDArray[np.generic] | None:
        """Targets."""

    def named(self, key: str) -> str:
        """The name under which the user knows an array."""


def has_several(parts: Sequence[Told]) -> bool:
    """Whether targets have an axis for labels."""
    return any(part.y is not None and part.y.ndim == 2 for part in parts)


def several_labels(
    where: str, parts: Sequence[Told], names: Sequence[str] | None, unlabelled: int
) -> tuple[list[Labels], Sequence[str]]:
    """Targets (N, L) of every part, `unlabelled` where nobody has labels, and what the labels are called."""
    told = [part for part in parts if part.y is not None]
    first = told[0]
    for part in told:
        _check(where, part, first)
    assert first.y is not None
    count = first.y.shape[1]
    if names is not None and len(names) != count:
        raise FedfluxError(f"{where}: {count} labels in {first.named('y')} but {len(names)} class_names")
    called = [str(name) for name in names] if names is not None else [str(label) for label in range(count)]
    if len(set(called)) < len(called):
        raise FedfluxError(f"{where}: a name stands twice in class_names")
    blank = [np.full((len(part.x), count), unlabelled) for part in parts]
    targets = [one if part.y is None else part.y for part, one in zip(parts, blank, strict=True)]
    return [one.astype(np.int64) for one in targets], called


def _check(where: str, part: Told, first: Told) -> None:
    y, other = part.y, first.y
    assert y is not None
    assert other is not None
    name = part.named("y")
    if y.ndim != 2 or y.shape[1:] != other.shape[1:] or y.shape[1] == 0:
        if y.ndim != 2 or 0 in y.shape[1:]:
            raise FedfluxError(f"{where}: {name} has shape {y.shape}; give (N,), or (N, L) of 0 and 1")
        raise FedfluxError(f"{where}: {y.shape[1]} labels in {name} but {other.shape[1]} in {first.named('y')}")
    if y.dtype.kind not in "biuf":
        raise FedfluxError(f"{where}: labels in {name} are {y.dtype}; of shape (N, L) they must be 0 or 1")
    odd = np.argwhere((y != 0) & (y != 1))
    if len(odd):
        row, label = odd[0].tolist()
        words = f"{name} is {y[row, label]} in row {row}, label {label}"
        raise FedfluxError(f"{where}: {words}; of shape (N, L) labels must be 0 or 1, of shape (N,) a class each")
