"""What clients told of their data over time, as it is kept between rounds: in wire form, a row a described client."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.change.drift import History, alarms, choose, log_change, stronger
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import from_arrays, join_arrays, put_arrays, to_arrays

Wire = Mapping[str, NDArray[np.generic]]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeptHistory:
    """What each client told first, and what it told since."""

    first: Wire
    recent: Wire

    @staticmethod
    def of(described: Wire) -> "KeptHistory":
        """Of clients that told this, and nothing since."""
        return KeptHistory(dict(described), _wire(History.of(from_arrays(described)).recent, described))

    def joined(self, described: Wire) -> "KeptHistory":
        """With clients that told this now, after the others."""
        new = KeptHistory.of(described)
        return KeptHistory(join_arrays([self.first, new.first]), join_arrays([self.recent, new.recent]))

    def begun_anew(self, rows: Rows, now: Descriptors) -> "KeptHistory":
        """The same, but these clients told this first, and nothing since."""
        return self._with(rows, History.of(now))

    def changed(
        self, rows: Rows, old: Descriptors, new: Descriptors, rate: float
    ) -> tuple["KeptHistory", NDArray[np.bool_]]:
        """The history with a chunk more of these clients, and who of them drifted.

        A client did whose `new` chunk does not fit the `old` ones, or whose recent chunks do not fit the first ones.
        It begins anew from the chunk that showed it.
        """
        history = History(at_rows(self.first, rows), at_rows(self.recent, rows)).grown(new)
        changed = alarms(stronger(log_change(old, new), history.log_change()), rate)
        folded, anew = history.folded(), History.of(new)
        kept = History(choose(changed, anew.first, folded.first), choose(changed, anew.recent, folded.recent))
        return self._with(rows, kept), changed

    def _with(self, rows: Rows, history: History) -> "KeptHistory":
        return KeptHistory(
            put_arrays(self.first, rows, _wire(history.first, self.first)),
            put_arrays(self.recent, rows, _wire(history.recent, self.first)),
        )


def _wire(descriptors: Descriptors, like: Wire) -> dict[str, NDArray[np.generic]]:
    """The wire form with every block of another, for clients that hold nothing have no noise to tell of."""
    arrays = to_arrays(descriptors)
    missing = {name: array for name, array in like.items() if name not in arrays}
    empty = {name: np.zeros((len(descriptors), *array.shape[1:]), array.dtype) for name, array in missing.items()}
    return {**arrays, **empty}


def at_rows(arrays: Wire, rows: Rows) -> Descriptors:
    """Some of the clients that a wire form is of."""
    return from_arrays({name: array if array.ndim == 0 else array[rows] for name, array in arrays.items()})
