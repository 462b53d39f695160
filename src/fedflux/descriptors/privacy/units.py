"""Whom the guarantee protects: which of a client's records enter a release.

`record`: every distinct example once. `group`: one record of every group (a patient, a recording, a device), so that a
whole group is exchanged at the price of one record. More records a group would raise the sensitivity by as much as
they raise the sums, so noise on means would stay and only the price of small groups would rise.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedflux.data.holding import Holding, Positions
from fedflux.data.labelled import Split
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.errors import FedfluxError
from fedflux.streams import stream

Choice = Callable[[Holding], Positions | None]


def chosen(split: Split, privacy: Privacy) -> Choice:
    """The records of a part that enter, None where all do: a copy would count a record twice."""
    if privacy.unit == "group":
        return lambda held: one_of_each(groups_of(held, split), privacy.seed)
    return lambda held: _first(held.rows(split))


def only_validation(privacy: Privacy) -> Choice:
    """The same of the validation part, without what is in training too: gradual drift may have moved a record."""

    def choose(held: Holding) -> Positions:
        rows = held.rows("validation")
        found = chosen("validation", privacy)(held)
        kept = np.arange(len(rows)) if found is None else found
        kept = kept[~np.isin(rows[kept], held.rows("train"))]
        if privacy.unit == "group":
            kept = kept[~np.isin(groups_of(held, "validation")[kept], groups_of(held, "train"))]
        return kept

    return choose


def counted(held: Holding, split: Split, privacy: Privacy) -> int:
    """How many records of a part enter: its distinct examples, or its groups. This number is public."""
    found = chosen(split, privacy)(held)
    return len(held.rows(split)) if found is None else len(found)


def groups_of(held: Holding, split: Split) -> NDArray[np.int64]:
    """The group of every stored example; there must be some."""
    groups = held.groups(split)
    if groups is None:
        raise FedfluxError("--privacy-unit group: this data has no groups; give it some, or leave the flag out")
    return groups


def one_of_each(groups: NDArray[np.int64], seed: int) -> Positions:
    """The position of one record of each group.

    Each is drawn from a stream of its own, so that exchanging a group, for a larger one even, moves no other choice.
    """
    order = np.argsort(groups, kind="stable")
    names, begins, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    drawn = [
        stream(seed, "privacy-group", client=int(name) % 2**63).integers(size)
        for name, size in zip(names, sizes, strict=True)
    ]
    return np.sort(order[begins + np.array(drawn, dtype=np.int64)]).astype(np.int64)


def _first(rows: NDArray[np.int64]) -> Positions | None:
    """Positions of the first of equal rows, None where there are no copies."""
    first = np.unique(rows, return_index=True)[1]
    return None if len(first) == len(rows) else np.sort(first)
