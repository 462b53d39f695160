"""Clients' examples on the device, each client once, whatever cohorts it is in: one tensor with a place per client.

The tensor stays where it is while its clients come and go, so that recorded steps (CUDA graphs) serve every cohort and
nothing is copied between cohorts; only clients that are not there yet travel.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Features, Federation, Labelled, Split
from fedflux.engine.batched.memory import out_of_memory

DATA_BYTES = {"cuda": 24 * 2**30, "cpu": 2**30}
"""Examples kept for the rounds to come, at most, by kind of device; of a share of a GPU never more than a quarter."""
START_BYTES = 2**28
"""What is set aside at first: most datasets fit, and then the tensor never moves."""
PIECE = 2**16
"""Examples moved at once when gaps are closed."""

Name = tuple[Federation, int, Split]


@dataclass(frozen=True, eq=False)
class OnDevice:
    """Clients' examples on the device, copies once: where each client's lie in a common tensor."""

    x: Tensor
    y: Tensor
    begins: NDArray[np.int64]
    """(K,): the first row of each client."""
    sizes: NDArray[np.int64]
    """(K,): how many rows it has."""

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Where each client begins, and the end, when one is put after another."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def one(self, position: int) -> "OnDevice":
        """One of these clients."""
        return OnDevice(self.x, self.y, self.begins[position, None], self.sizes[position, None])

    def rows(self, some: NDArray[np.int64] | None = None) -> Tensor:
        """The rows of these clients (of all), one client after another; counted on the device."""
        begins, sizes = (self.begins, self.sizes) if some is None else (self.begins[some], self.sizes[some])
        return ranges(begins, sizes, self.x.device)

    @staticmethod
    def of(clients: Sequence[Features], device: str) -> "OnDevice":
        """A copy of their own, for one use; labels are empty where clients have none."""
        labels = [one.y for one in clients if isinstance(one, Labelled)]
        sizes = np.array([len(one.x) for one in clients], dtype=np.int64)
        return OnDevice(
            torch.cat([one.x for one in clients]).to(device),
            (torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int64)).to(device),
            np.cumsum(sizes) - sizes,
            sizes,
        )


@dataclass(eq=False)
class _Block:
    """One client's place, and the host's tensors it was copied from as long as they live."""

    begin: int
    size: int
    x: ReferenceType[Tensor]
    y: ReferenceType[Tensor]


class Arena:
    """Examples of one shape and type on one device; those not used for longest go when the bound is reached."""

    def __init__(self, device: str, most: int | None = None, share: float = 1.0) -> None:
        self._device = device
        self._most = _bound(device, share) if most is None else most
        self._blocks: OrderedDict[Name, _Block] = OrderedDict()
        self._names: dict[int, Name] = {}
        self._used = 0
        self.x = torch.zeros(0, dtype=torch.uint8, device=device)
        self.y = torch.zeros(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """Bytes set aside."""
        return self.x.nbytes + self.y.nbytes

    def place(self, cohort: Cohort, clients: Sequence[int], split: Split) -> OnDevice:
        """Some members' examples; those that are not there yet are made and copied."""
        federation = cohort.federation
        self._suit(federation)
        names: list[Name] = [(federation, client, split) for client in clients]
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if name not in self._blocks]
        for name in wanted:
            if name in self._blocks:
                self._blocks.move_to_end(name)
        if missing:
            self._make_room(sum(federation.stored(name[1], split) for name in missing), set(wanted))
        for name in missing:
            self._put(name, cohort.data(name[1], split))
        return self._view([self._blocks[name] for name in names])

    def find(self, clients: Sequence[Features]) -> OnDevice | None:
        """Clients known by their tensors alone; None where one of them is not there."""
        blocks = []
        for one in clients:
            name = self._names.get(id(one.x))
            block = None if name is None else self._blocks.get(name)
            if block is None or block.x() is not one.x or (isinstance(one, Labelled) and block.y() is not one.y):
                return None
            blocks.append(block)
        return self._view(blocks)

    def clear(self) -> None:
        """Forget all examples and keep half as many from here on: the device has no room for so many."""
        self._begin_anew(tuple(self.x.shape[1:]), tuple(self.y.shape[1:]), self.x.dtype)
        self._most //= 2

    def _view(self, blocks: Sequence[_Block]) -> OnDevice:
        begins, sizes = (np.array([getattr(b, part) for b in blocks], dtype=np.int64) for part in ("begin", "size"))
        return OnDevice(self.x, self.y, begins, sizes)

    def _suit(self, federation: Federation) -> None:
        """Begin anew where another federation's records have another shape or type."""
        dtype = torch.uint8 if federation.dataset.train.x.dtype == np.uint8 else torch.float32
        shapes = federation.input_shape, federation.dataset.train.y.shape[1:]
        if self.x.dtype != dtype or (tuple(self.x.shape[1:]), tuple(self.y.shape[1:])) != shapes:
            self._begin_anew(*shapes, dtype)

    def _begin_anew(self, shape: tuple[int, ...], targets: tuple[int, ...], dtype: torch.dtype) -> None:
        self._blocks.clear()
        self._names.clear()
        self._used = 0
        self.x = torch.zeros(0, *shape, dtype=dtype, device=self._device)
        self.y = torch.zeros(0, *targets, dtype=torch.int64, device=self._device)

    def _put(self, name: Name, data: Labelled) -> None:
        begin, end = self._used, self._used + len(data.x)
        self.x[begin:end].copy_(data.x)
        self.y[begin:end].copy_(data.y)
        self._blocks[name] = _Block(begin, end - begin, ref(data.x), ref(data.y))
        self._names[id(data.x)] = name
        self._used = end

    def _make_room(self, rows: int, keep: set[Name]) -> None:
        """Room for so many more: by a larger tensor up to the bound, then by dropping clients down to half of it.

        A request that is larger than the bound by itself is met all the same.
        """
        if self._used + rows <= len(self.x):
            return
        each = sum(one.element_size() * int(np.prod(one.shape[1:])) for one in (self.x, self.y))
        most = self._most // each
        if self._used + rows > most:
            self._drop(most // 2 - rows, keep)
        need = self._used + rows
        if need > len(self.x) and not self._grew(max(need, min(max(2 * need, START_BYTES // each), most))):
            self._drop(0, keep)  # short of memory: keep what is asked for now, and set nothing aside
            if self._used + rows > len(self.x):
                self._grow(self._used + rows)

    def _grew(self, rows: int) -> bool:
        """Whether the device had the memory for a larger tensor."""
        try:
            self._grow(rows)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            return False
        return True

    def _grow(self, rows: int) -> None:
        if not self._used:  # nothing to copy: the old tensors may go first
            self.x, self.y = (old.new_empty(0, *old.shape[1:]) for old in (self.x, self.y))
        before = self.x, self.y
        self.x, self.y = (old.new_empty(rows, *old.shape[1:]) for old in before)
        for new, old in zip((self.x, self.y), before, strict=True):
            new[: self._used].copy_(old[: self._used])

    def _drop(self, rows: int, keep: set[Name]) -> None:
        """Forget the clients not used for longest until so few rows are left, then close the gaps in place."""
        for name in list(self._blocks):
            if self._used <= rows or name in keep:  # what is kept was used last
                break
            self._used -= self._blocks.pop(name).size
        self._names = {number: name for number, name in self._names.items() if name in self._blocks}
        left = sorted(self._blocks.values(), key=lambda block: block.begin)
        if not left:
            return
        begins, sizes = (np.array([getattr(b, part) for b in left], dtype=np.int64) for part in ("begin", "size"))
        source = ranges(begins, sizes, self.x.device)
        # rows only move forward, so that no piece is written over before it was read
        for begin in range(0, self._used, PIECE):
            piece = source[begin : begin + PIECE]
            for tensor in (self.x, self.y):
                tensor[begin : begin + len(piece)] = tensor.index_select(0, piece)
        for block, begin in zip(left, (np.cumsum(sizes) - sizes).tolist(), strict=True):
            block.begin = begin


def ranges(begins: NDArray[np.int64], sizes: NDArray[np.int64], device: torch.device) -> Tensor:
    """begin, begin + 1, … for every range, one after another, made on the device without waiting for it."""
    total = int(sizes.sum())
    shift = torch.from_numpy(np.stack([begins - (np.cumsum(sizes) - sizes), sizes])).to(device)
    return torch.arange(total, device=device) + torch.repeat_interleave(shift[0], shift[1], output_size=total)


def _bound(device: str, share: float) -> int:
    if torch.device(device).type != "cuda":
        return DATA_BYTES["cpu"]
    total: int = torch.cuda.mem_get_info(device)[1]
    return min(DATA_BYTES["cuda"], int(share * total) // 4)
