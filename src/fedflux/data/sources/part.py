"""Records as they came, in arrays, and those among them that have no label."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

Array = NDArray[np.generic]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """Inputs, and for each of them a label, and where known its client, group and cluster."""

    x: Array
    y: Array | None
    client: Array | None = None
    group: Array | None = None
    cluster: Array | None = None
    ending: str = field(default="", kw_only=True)
    """What names of arrays end with in this part, such as `_test`."""
    row: Rows | None = field(default=None, kw_only=True)
    """The number under which the user knows each record; None: its place."""
    unit: str = field(default="row", kw_only=True)
    """What that numbers: rows of an array, lines of a file."""

    def named(self, key: str) -> str:
        """The name under which the user knows an array."""
        return f"'{key}{self.ending}'"

    def at(self, place: int) -> str:
        """How to tell the user of a record."""
        number = place if self.row is None else int(self.row[place])
        whose = "" if self.client is None else f" (client '{self.client[place]}')"
        return f"{self.unit} {number}{whose}"

    def take(self, rows: Rows) -> "Part":
        """Some of the records, which stay known under their own numbers."""
        ids = (None if one is None else one[rows] for one in (self.y, self.client, self.group, self.cluster))
        row = rows if self.row is None else self.row[rows]
        return Part(self.x[rows], *ids, ending=self.ending, row=row, unit=self.unit)


def set_apart(where: str, part: Part) -> tuple[Part, Part | None]:
    """The records with labels and those without: NaN among numbers and nothing among text are no labels.

    A client has labels for all records of a part or for none: a few that lack theirs are a fault of the data.
    """
    gone = _missing(part.y)
    if not gone.any():
        return part, None
    first = int(np.flatnonzero(gone)[0])
    if part.client is None:
        words = "clients without labels need names: give 'client'"
        raise FedfluxError(f"{where}: {part.at(first)} in {part.named('y')} has no label; {words}")
    both = np.isin(part.client, part.client[~gone]) & gone
    if both.any():
        words = "though its client has others; give all of a client's labels or none"
        raise FedfluxError(
            f"{where}: {part.at(int(np.flatnonzero(both)[0]))} in {part.named('y')} has no label, {words}"
        )
    labelled, rest = part.take(np.flatnonzero(~gone)), part.take(np.flatnonzero(gone))
    return labelled, replace(rest, y=None)


def check_apart(where: str, test: Part | None, unlabelled: Sequence[Part]) -> None:
    """Refuse test parts of which only a half is labelled: their score would be nobody's."""
    scored = [] if test is None or test.y is None else _owners(test)
    for part in unlabelled:
        for name in _owners(part):
            if name in scored:
                words = "labels in its test part and other records without; leave those out, or its test labels"
                raise FedfluxError(f"{where}: client '{name}' has {words}")


def _owners(part: Part) -> list[str]:
    return [] if part.client is None else [str(name) for name in np.unique(part.client).tolist()]


def _missing(y: Array | None) -> NDArray[np.bool_]:
    """Which records have no label; several labels a record are there or not with the whole part."""
    if y is None or y.ndim != 1:
        return np.zeros(0, bool)
    if y.dtype.kind == "f":
        return np.isnan(y)
    return y == np.zeros(1, y.dtype)[0] if y.dtype.kind in "US" else np.zeros(len(y), bool)
