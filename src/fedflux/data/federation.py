"""The clients of a federation: an immutable description that turns into tensors only when a cohort asks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data.cache import ByteCache
from fedflux.data.dataset import Dataset
from fedflux.data.dealing import ClientRows
from fedflux.data.patterns import Pattern
from fedflux.errors import FedfluxError
from fedflux.streams import stream

Split = Literal["train", "validation", "test"]
CACHE_BYTES = 2**29
"""Tensors kept between rounds, over all clients; the least recently used go first."""
PART_BYTES = 2**28
PART_CLIENTS = 1000


@dataclass(frozen=True, eq=False)
class Features:
    """Images without labels: all that the test phase may see.

    Copies are a count, not data: x holds each example once, and position p of the client's examples is x[p % len(x)].
    """

    x: Tensor
    copies: int = field(default=1, kw_only=True)
    """How often the client holds all of x."""

    def __len__(self) -> int:
        return len(self.x) * self.copies


@dataclass(frozen=True, eq=False)
class Labelled(Features):
    """Images, labels, and the source row of each example (equal rows are copies of one example), each stored once."""

    y: Tensor
    rows: NDArray[np.int64]

    def features(self) -> Features:
        """The same images with their labels left behind."""
        return Features(self.x, copies=self.copies)

    def repeated(self) -> "Labelled":
        """The same examples with every copy made: for what leaves the library."""
        times = self.copies
        if times == 1:
            return self
        return Labelled(self.x.repeat(times, 1, 1, 1), self.y.repeat(times), np.tile(self.rows, times))


@dataclass(frozen=True, eq=False)
class Federation:
    """K clients with train, validation and test parts and, when simulated, a true cluster each."""

    dataset: Dataset
    rows: Sequence[ClientRows]
    patterns: Sequence[Pattern]
    seed: int
    channels: int
    """3 once colours are used: grey images are then repeated to three channels."""
    names: tuple[str, ...] | None = None
    cache_bytes: int = CACHE_BYTES
    """How much of the clients made so far is kept."""
    duplicate: int = 1
    """How often a client holds each row of its training part. Validation and test parts hold theirs once, since copies
    there would change no mean; and as copies are made after the parts are cut, no training example is among them."""
    most: int | None = None
    """At most so many training examples a client: a sample of them, without copies (`limited`)."""
    _truth: NDArray[np.int64] | None = None
    _blind: bool = False
    _cache: ByteCache[Labelled] = field(default_factory=ByteCache, repr=False)
    _samples: dict[int, "Federation"] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, object]:
        """What another process needs: all but the clients made so far."""
        return {**self.__dict__, "_cache": ByteCache(), "_samples": {}}

    @property
    def classes(self) -> int:
        """The number of labels U."""
        return self.dataset.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what clients hold."""
        return (self.channels, *self.dataset.image_shape[1:])

    @property
    def truth(self) -> NDArray[np.int64] | None:
        """The true cluster of every client, None where there is none; a blind federation refuses to tell."""
        if self._blind:
            raise FedfluxError("this algorithm may not read the true clusters")
        return self._truth

    def blind(self) -> "Federation":
        """The same clients with the truth and the patterns locked away: what an ordinary algorithm is given."""
        if self._blind:
            return self
        locked: Sequence[Pattern] = _Locked(self.patterns)
        dataset = replace(self.dataset, client_clusters=None)
        return replace(self, dataset=dataset, patterns=locked, _truth=None, _blind=True, _samples={})

    def limited(self, most: int) -> "Federation":
        """The same clients with a fixed sample of at most `most` of their training examples each.

        Asked again it is the same object, so that engines that keep data by federation find it again.
        """
        if most not in self._samples:
            self._samples[most] = replace(self, most=most, duplicate=1, _cache=ByteCache(), _samples={})
        return self._samples[most]

    def cohort(self, ids: Sequence[int] | NDArray[np.int64], round: int = 0) -> "Cohort":
        """Some clients in the given round, in id order."""
        return Cohort(self, tuple(sorted(int(i) for i in ids)), round)

    def size(self, client: int, split: Split) -> int:
        """How many examples a client holds, copies included, without making them."""
        return self.stored(client, split) * self.copies(split)

    def stored(self, client: int, split: Split) -> int:
        """How many examples a client's tensors hold: each once, however many copies it has."""
        held = len(getattr(self.rows[client], split))
        return held if split != "train" or self.most is None else min(held, self.most)

    def copies(self, split: Split) -> int:
        """How often clients hold each example that they store; a sample of them holds each once."""
        return self.duplicate if split == "train" and self.most is None else 1

    def materialise(self, client: int, split: Split, round: int = 0) -> Labelled:
        """One client's examples as tensors; kept in a bounded cache, since most runs ask again every round."""
        key = (client, split)
        held = self._cache.get(key)
        if held is None:
            held = self._make(client, split)
            self._cache.put(key, held, _bytes(held), self.cache_bytes)
        copies = self.copies(split)
        return held if copies == 1 else replace(held, copies=copies)

    def labels(self, client: int, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source rows of a client's examples and their labels as it gives them, without making any image."""
        if self.most is not None:
            held = self.materialise(client, split)
            return held.rows, held.y.numpy()
        rows: NDArray[np.int64] = getattr(self.rows[client], split)
        source = self.dataset.test if split == "test" else self.dataset.train
        return rows, self._pattern(client).labels(source.y[rows])

    def _pattern(self, client: int) -> Pattern:
        return self.patterns.reveal(client) if isinstance(self.patterns, _Locked) else self.patterns[client]

    def _make(self, client: int, split: Split) -> Labelled:
        rows: NDArray[np.int64] = getattr(self.rows[client], split)
        source = self.dataset.test if split == "test" else self.dataset.train
        x, y = source.x[rows], source.y[rows]
        if x.shape[1] != self.channels:
            x = np.repeat(x, self.channels, axis=1)
        x, y = self._pattern(client).transform(x, y, stream(self.seed, f"soft looks {split}", client=client))
        if x.dtype != np.uint8:
            x = x.astype(np.float32)
        if split == "train" and self.most is not None and len(rows) > self.most:
            # drawn from the finished examples, so that each looks as it does in the whole
            chosen = np.sort(stream(self.seed, "limited", client=client).choice(len(rows), self.most, replace=False))
            x, y, rows = x[chosen], y[chosen], rows[chosen]
        return Labelled(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)), rows)


class _Locked(Sequence[Pattern]):
    """Patterns that data making may use and algorithms may not read, since a pattern is the true cluster by content."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns

    def reveal(self, client: int) -> Pattern:
        return self._patterns[client]

    def __len__(self) -> int:
        return len(self._patterns)

    def __getitem__(self, index: object) -> Pattern:  # type: ignore[override]
        raise FedfluxError("this algorithm may not read the clients' patterns")


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients taking part at one moment, in id order."""

    federation: Federation
    ids: tuple[int, ...]
    round: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def parts(self, *splits: Split) -> Iterator["Cohort"]:
        """The members a part after another, each part small enough that these splits of all of it fit into memory.

        Whatever asks for many clients' tensors at once goes by these, so that its memory does not grow with the cohort.
        """
        example = self.federation.dataset.train.x.itemsize * int(np.prod(self.federation.image_shape))
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

    def data(self, client: int, split: Split) -> Labelled:
        """One member's labelled examples."""
        return self.federation.materialise(client, split, self.round)

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


def _bytes(examples: Labelled) -> int:
    return examples.x.nbytes + examples.y.nbytes + examples.rows.nbytes
