"""Some clients at one moment, and what they hold of a split, made where and when it is used."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from fedflux.data.labelled import Features, Labelled, Split

if TYPE_CHECKING:
    from fedflux.data.federation import Federation

PART_BYTES = 2**28
PART_CLIENTS = 1000


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients taking part at one moment, in id order."""

    federation: "Federation"
    ids: tuple[int, ...]
    round: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def only(self, ids: Iterable[int]) -> "Cohort":
        """Those of the members that are among these."""
        wanted = set(ids)
        return replace(self, ids=tuple(client for client in self.ids if client in wanted))

    def parts(self, *splits: Split) -> Iterator["Cohort"]:
        """The members a part after another, each part small enough that these splits of all of it fit into memory.

        Whatever asks for many clients' tensors at once goes by these, so that its memory does not grow with the cohort.
        """
        example = self.federation.dataset.train.x.itemsize * int(np.prod(self.federation.input_shape))
        part: list[int] = []
        held = 0
        for client in self.ids:
            size = example * sum(self.federation.stored(client, split) for split in splits)
            if part and (held + size > PART_BYTES or len(part) == PART_CLIENTS):
                yield replace(self, ids=tuple(part))
                part, held = [], 0
            part.append(client)
            held += size
        if part:
            yield replace(self, ids=tuple(part))

    def limited(self, most: int) -> "Cohort":
        """The same members with at most `most` training examples each; itself where nobody holds more."""
        if all(self.federation.size(client, "train") <= most for client in self.ids):
            return self
        return replace(self, federation=self.federation.limited(most))

    def chunks(self, first: int, last: int, count: int) -> "Cohort":
        """Those of the members that hold anything of these chunks of `count`, with these alone to train on."""
        federation = self.federation.chunks(first, last, count)
        return replace(self, federation=federation, ids=tuple(k for k in self.ids if federation.stored(k, "train")))

    def data(self, client: int, split: Split) -> Labelled:
        """One member's labelled examples."""
        return self.federation.materialise(client, split)

    def sizes(self, split: Split) -> NDArray[np.float64]:
        """The number of examples s of every member."""
        return np.array([self.federation.size(client, split) for client in self.ids], dtype=np.float64)

    def held(self, split: Split) -> "Held":
        """Every member's labelled examples, made where and when they are used."""
        return Held(self, split, labelled=True)

    def features(self, split: Split) -> "Held":
        """Every member's images without labels, made where and when they are used."""
        return Held(self, split, labelled=False)


@dataclass(frozen=True, eq=False)
class Held(Sequence[Features]):
    """What the members of a cohort hold of a split, each made when it is asked for.

    Sent to another process this is a few numbers; the examples are made there, or lie there already.
    """

    cohort: Cohort
    split: Split
    labelled: bool

    def __len__(self) -> int:
        return len(self.cohort)

    @overload
    def __getitem__(self, index: int) -> Features: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Features]: ...

    def __getitem__(self, index: int | slice) -> Features | Sequence[Features]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        found = self.cohort.data(self.cohort.ids[index], self.split)
        return found if self.labelled else found.features()
