"""Sequences that compute an item when it is asked for: a population costs nothing until a cohort is drawn from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

KEPT = 4096
"""Items kept, the most recently asked for; a cohort asks for the same ones several times a round."""


class Lazy(Sequence[T], Generic[T]):
    """`count` items, item k being `make(k)`, which must always give the same; pickled as its recipe, without items."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make
        self._kept = lru_cache(maxsize=KEPT)(make)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        chosen = range(self._count)[index]  # bounds and negative numbers as everywhere
        return self._kept(chosen) if isinstance(chosen, int) else tuple(map(self._kept, chosen))

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazy, (self._count, self._make)


@dataclass(frozen=True, eq=False)
class Picked(Generic[T]):
    """Makes the items of a lazy sequence from those of another one: item k is the one at `order[k]`."""

    items: Sequence[T]
    order: NDArray[np.int64]

    def __call__(self, place: int) -> T:
        """The item at a place of the order."""
        return self.items[int(self.order[place])]
