"""The clients of a federation: an immutable description that turns into tensors only when a cohort asks."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.data.cache import ByteCache
from fedflux.data.cohort import Cohort
from fedflux.data.dataset import UNLABELLED, Dataset
from fedflux.data.labelled import Labelled, Split
from fedflux.data.scaling import Scaling
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.drift import Epoch, Epochs, Stage, blended, sample_positions
from fedflux.data.shifts.patterns import Pattern
from fedflux.data.sources.handed.federations import FromOwnData
from fedflux.data.tasks import Task
from fedflux.data.truth import LockedPatterns, revealed
from fedflux.errors import FedfluxError
from fedflux.streams import stream

CACHE_BYTES = 2**29
"""Tensors kept between rounds, over all clients; the least recently used go first."""
DERIVED = 4
"""Samples and stages of a federation kept at a time; data of older ones is made again when it is asked for."""


@dataclass(frozen=True, eq=False, repr=False)
class Federation(FromOwnData):
    """K clients with train, validation and test parts and, when simulated, a true cluster each.

    Made by `from_clients`, `from_arrays`, `from_csv`, `from_npz`, `from_folder`, `from_huggingface`.

    Examples
    --------
    >>> labels = ["ill", "well"] * 10
    >>> clients = {"north": (np.zeros((20, 3)), labels), "south": (np.ones((20, 3)), labels)}
    >>> federation = fedflux.Federation.from_clients(clients)
    >>> len(federation), federation.names, federation.class_names, federation.input_shape
    (2, ('north', 'south'), ('ill', 'well'), (3,))
    """

    dataset: Dataset
    rows: Sequence[ClientRows]
    patterns: Sequence[Pattern]
    seed: int
    channels: int | None = None
    """3 once colours are used: grey images are then repeated to three channels; None: as the data has it."""
    names: tuple[str, ...] | None = None
    cache_bytes: int = CACHE_BYTES
    """How much of the clients made so far is kept, those of its samples and stages included."""
    duplicate: int = 1
    """How often a client holds each row of its training part. Validation and test parts hold theirs once, since copies
    there would change no mean; and as copies are made after the parts are cut, no training example is among them."""
    most: int | None = None
    """At most so many training examples a client: a sample of them, without copies (`limited`)."""
    part: tuple[int, int, int] | None = None
    """(first, last, count): of `count` chunks of the training examples, those from `first` to `last` − 1 (`chunks`)."""
    announced: int | None = None
    """How many clients are to come in all, 0 where nobody knows; None: those that are there."""
    _epochs: Epochs | None = None
    _newer: tuple["Federation", float] | None = None
    """While patterns change: the federation of the new ones, and the share of examples that show them."""
    _truth: NDArray[np.int64] | None = None
    _blind: bool = False
    _path: tuple[Hashable, ...] = ()
    """Which sample or stage this is: the cache, one for all of them, holds clients by it."""
    _cache: ByteCache[Labelled] = field(default_factory=ByteCache, repr=False)
    _derived: dict[Hashable, "Federation"] = field(default_factory=dict, repr=False)
    _recipe: tuple["Federation", str, tuple[Any, ...]] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        """In a line, without anybody's data."""
        kind = "labels" if self.task.several else "classes"
        shape = "×".join(map(str, self.input_shape))
        return f"Federation({self.dataset.name}: {len(self)} clients, {self.classes} {kind}, inputs of {shape})"

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process needs: all but the clients made so far; of a sample or stage, how it came about."""
        if self._recipe is not None:
            return _derive, self._recipe
        return _blank, (type(self),), {**self.__dict__, "_cache": ByteCache(), "_derived": {}}

    @property
    def origin(self) -> "Federation":
        """The federation that this one is a sample or a stage of, or itself."""
        return self if self._recipe is None else self._recipe[0].origin

    @property
    def expected(self) -> int:
        """With how many clients everyone has come, 0 where nobody knows."""
        return len(self) if self.announced is None else self.announced

    @property
    def classes(self) -> int:
        """The number of labels U, and of a model's outputs."""
        return self.dataset.classes

    @property
    def task(self) -> Task:
        """What is learned of a record: one label, or several."""
        return self.dataset.task

    @property
    def kinds(self) -> int:
        """Of how many kinds records are, where each is of one: the classes; of several labels one more."""
        return self.task.kinds(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input of a client: (channels, height, width) of images."""
        shape = self.dataset.input_shape
        return shape if self.channels is None else (self.channels, *shape[1:])

    @property
    def integers(self) -> bool:
        """Whether models are given integers, such as token ids."""
        return self.dataset.scaling.kind == "none" and self.dataset.train.x.dtype.kind in "ui"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the data calls its classes; None: their numbers."""
        return self.dataset.class_names

    def scaled(self, scaling: Scaling) -> "Federation":
        """The same clients, whose inputs are scaled so; asked again it is the same object."""
        return self if scaling == self.dataset.scaling else self._kept("_scaled", scaling)

    def _scaled(self, scaling: Scaling) -> "Federation":
        newer = None if self._newer is None else (self._newer[0].scaled(scaling), self._newer[1])
        return replace(
            self, dataset=replace(self.dataset, scaling=scaling), _newer=newer, **self._apart("scaled", scaling)
        )

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
        locked: Sequence[Pattern] = LockedPatterns(self.patterns)
        dataset = replace(self.dataset, client_clusters=None, domains=None)
        epochs = self._epochs
        if epochs is not None:
            drawn = tuple(Epoch(one.rows, LockedPatterns(one.patterns), None) for one in epochs.drawn)
            epochs = replace(epochs, drawn=drawn)
        newer = None if self._newer is None else (self._newer[0].blind(), self._newer[1])
        return replace(
            self, dataset=dataset, patterns=locked, _epochs=epochs, _newer=newer, _truth=None, _blind=True, _derived={}
        )

    def at(self, round: int) -> "Federation":
        """What clients hold in a round: itself, unless their patterns drift. Asked again it is the same object."""
        return self if self._epochs is None else self._kept("_staged", self._epochs.drift.stage(round))

    def at_test(self, rounds: int) -> "Federation":
        """What unseen clients hold after so many rounds of training."""
        return self if self._epochs is None else self._kept("_staged", self._epochs.drift.at_test(rounds))

    def limited(self, most: int) -> "Federation":
        """The same clients with a fixed sample of at most `most` of their training examples each.

        Asked again it is the same object, so that engines that keep data by federation find it again.
        """
        return self._kept("_limited", most)

    def chunks(self, first: int, last: int, count: int) -> "Federation":
        """The same clients with chunks `first` to `last` − 1 of their training examples, which are cut into `count`.

        Chunks are disjoint, copies of an example and records of a group included. Asked again it is the same object.
        """
        return self._kept("_part", first, last, count)

    def _kept(self, name: str, *told: Any) -> "Federation":
        """A derived federation, made once as long as it is among the last few asked for."""
        key = (name, told)
        found = self._derived.pop(key, None)
        if found is None:
            found = getattr(self, name)(*told)
            object.__setattr__(found, "_recipe", (self, name, told))
        self._derived[key] = found
        while len(self._derived) > DERIVED:
            self._derived.pop(next(iter(self._derived)))._forget()
        return found

    def _forget(self) -> None:
        """Free the clients made so far, which engines that still know this federation would keep otherwise."""
        self._cache.drop(lambda key: key[0][: len(self._path)] == self._path)
        self._derived.clear()

    def _apart(self, *told: Hashable) -> dict[str, Any]:
        """What keeps the clients of a sample or stage apart from this federation's."""
        return {"_path": (*self._path, told), "_derived": {}}

    def _limited(self, most: int) -> "Federation":
        return replace(self, most=most, duplicate=1, **self._apart("limited", most))

    def _part(self, first: int, last: int, count: int) -> "Federation":
        return replace(self, part=(first, last, count), **self._apart("part", first, last, count))

    def _staged(self, stage: Stage) -> "Federation":
        assert self._epochs is not None
        old, truth = self._epochs.drawn[stage.old], self._epochs.truth(stage)
        return replace(
            self,
            rows=old.rows,
            patterns=old.patterns,
            _truth=truth,
            _epochs=None,
            _newer=None if stage.settled else (self._staged(Stage(stage.new, stage.new)), stage.share),
            **self._apart("staged", stage),
        )

    def cohort(self, ids: Sequence[int] | NDArray[np.int64], round: int = 0) -> "Cohort":
        """Some clients in the given round, in id order."""
        return Cohort(self.at(round), tuple(sorted(int(i) for i in ids)), round)

    def size(self, client: int, split: Split) -> int:
        """How many examples a client holds, copies included, without making them."""
        return self.stored(client, split) * self.copies(split)

    def stored(self, client: int, split: Split) -> int:
        """How many examples a client's tensors hold: each once, however many copies it has."""
        if split == "train" and self.part is not None:
            return len(self._chosen(client, self._rows(client, split)))
        held = len(self._rows(client, split))
        return held if split != "train" or self.most is None else min(held, self.most)

    def copies(self, split: Split) -> int:
        """How often clients hold each example that they store; a sample of them holds each once."""
        return self.duplicate if split == "train" and self.most is None else 1

    def materialise(self, client: int, split: Split) -> Labelled:
        """One client's examples as tensors; kept in a bounded cache, since most runs ask again every round."""
        key = (self._path, client, split)
        held = self._cache.get(key)
        if held is None:
            held = self._make(client, split)
            self._cache.put(key, held, held.nbytes, self.cache_bytes)
        copies = self.copies(split)
        return held if copies == 1 else replace(held, copies=copies)

    def source_rows(self, client: int, split: Split) -> NDArray[np.int64]:
        """Where a client's stored examples come from: equal rows are copies of one example. Makes no image."""
        if self._is_derived:
            return self.materialise(client, split).rows
        rows: NDArray[np.int64] = getattr(self.rows[client], split)
        return rows

    def inputs(self, client: int, split: Split) -> NDArray[np.generic]:
        """A client's inputs as it has them, before they are scaled."""
        return self._shown(client, split)[0]

    def groups(self, client: int, split: Split) -> NDArray[np.int64] | None:
        """The group of each of a client's stored examples, None where the data knows of none. Makes no image."""
        group = self.dataset.part(split).group
        return None if group is None else group[self.source_rows(client, split)]

    def labels(self, client: int, split: Split) -> NDArray[np.int64]:
        """The labels of a client's stored examples as it gives them, without making any image."""
        if self._is_derived:
            return self.materialise(client, split).y.numpy()
        return revealed(self.patterns, client).labels(self.dataset.part(split).y[self.source_rows(client, split)])

    def scorable(self, client: int) -> bool:
        """Whether a client has test examples and somebody knows their labels, some of them where there are several."""
        known = self.dataset.test.y[self.source_rows(client, "test")] != UNLABELLED
        return bool(known.all() if known.ndim == 1 else known.any()) and len(known) > 0

    @property
    def _is_derived(self) -> bool:
        """Whether clients hold a part of their rows, or rows of two patterns."""
        return self.most is not None or self.part is not None or self._newer is not None

    def _turns(self, client: int, split: Split) -> tuple[NDArray[np.int64], ...]:
        """Positions of the old and of the new pattern's examples, while one takes over from the other."""
        assert self._newer is not None
        newer, share = self._newer
        old, new = (len(getattr(one.rows[client], split)) for one in (self, newer))
        return blended(old, new, share, stream(self.seed, f"gradual {split}", client=client))

    def _rows(self, client: int, split: Split) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = getattr(self.rows[client], split)
        if self._newer is None:
            return rows
        kept, taken = self._turns(client, split)
        return np.concatenate([rows[kept], getattr(self._newer[0].rows[client], split)[taken]])

    def _shown(self, client: int, split: Split) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """All of a client's inputs and labels as its pattern shows them."""
        rows: NDArray[np.int64] = getattr(self.rows[client], split)
        source = self.dataset.part(split)
        x, y = source.x[rows], source.y[rows]
        if self.channels is not None and x.shape[1] != self.channels:
            x = np.repeat(x, self.channels, axis=1)
        x, y = revealed(self.patterns, client).transform(x, y, stream(self.seed, f"soft looks {split}", client=client))
        if self._newer is None:
            return x, y
        kept, taken = self._turns(client, split)
        later = self._newer[0]._shown(client, split)
        return np.concatenate([x[kept], later[0][taken]]), np.concatenate([y[kept], later[1][taken]])

    def _chosen(self, client: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of the training examples that a sample or a chunk holds."""
        return sample_positions(rows, self.dataset.train.group, self.part, self.most, self.seed, client)

    def _make(self, client: int, split: Split) -> Labelled:
        rows = self._rows(client, split)
        x, y = self._shown(client, split)
        x = self.dataset.scaling.prepared(x)
        if split == "train" and (self.most is not None or self.part is not None):
            # drawn from the finished examples, so that each looks as it does in the whole
            chosen = self._chosen(client, rows)
            x, y, rows = x[chosen], y[chosen], rows[chosen]
        return Labelled(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)), rows)


def _blank(kind: type[Federation]) -> Federation:
    return object.__new__(kind)


def _derive(origin: Federation, name: str, told: tuple[Any, ...]) -> Federation:
    return origin._kept(name, *told)
