"""A cache with a bound in bytes that drops what was not asked for the longest."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByteCache(Generic[T]):
    """Values with their sizes; the total is kept up to date, so that putting one in costs the same however many are."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Hashable) -> T | None:
        """The value, which is then the last to go; None where it is not held."""
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: Hashable, value: T, nbytes: int, most: int) -> None:
        """Hold one more value and drop the oldest until `most` bytes are enough; one larger than that is not held."""
        self._drop(key)
        if nbytes > most:
            return
        self._held[key] = (value, nbytes)
        self.nbytes += nbytes
        while self.nbytes > most:
            self._drop(next(iter(self._held)))

    def drop(self, which: Callable[[Any], bool]) -> None:
        """Drop all values with such keys."""
        for key in filter(which, list(self._held)):
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        if key in self._held:
            self.nbytes -= self._held.pop(key)[1]
