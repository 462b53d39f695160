"""The true cluster of every client: equal patterns, and equal clusters of the data's own where it has some."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedflux.data.shifts.patterns import Pattern, pattern_truth
from fedflux.errors import FedfluxError

UNKNOWN = -1
"""The cluster of a client of which the data does not tell it."""


def true_clusters(
    epochs: Sequence[Sequence[Pattern]], training: int, own: NDArray[np.int64] | None
) -> list[NDArray[np.int64]]:
    """Of every epoch, the cluster of every client; numbers are the same in all epochs.

    The first `training` clients are numbered first, so that their numbers do not depend on who is held out behind them.
    `own` is the cluster that the data gives a client.
    """
    count = len(epochs[0])
    parts = (range(training), range(training, count))
    drawn = pattern_truth(patterns[k] for part in parts for patterns in epochs for k in part)
    first, second = np.split(drawn, [training * len(epochs)])
    found = np.concatenate([first.reshape(len(epochs), -1), second.reshape(len(epochs), -1)], axis=1)
    return list(found if own is None else _joined(own, found, training))


def _joined(own: NDArray[np.int64], drawn: NDArray[np.int64], training: int) -> NDArray[np.int64]:
    """Clusters that differ in the data's own or in the pattern; unknown where the data's own is."""
    pairs = np.stack([np.broadcast_to(own, drawn.shape), drawn], axis=-1)
    known = np.unique(pairs[:, :training].reshape(-1, 2), axis=0)
    numbers = {(mine, pattern): number for number, (mine, pattern) in enumerate(known.tolist())}
    found = [numbers.setdefault((mine, pattern), len(numbers)) for mine, pattern in pairs.reshape(-1, 2).tolist()]
    joined = np.array(found, dtype=np.int64).reshape(drawn.shape)
    joined[:, own == UNKNOWN] = UNKNOWN
    return joined


class LockedPatterns(Sequence[Pattern]):
    """Patterns that data making may use and algorithms may not read, since a pattern is the true cluster by content."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns

    def reveal(self, client: int) -> Pattern:
        """The pattern of client k."""
        return self._patterns[client]

    def __len__(self) -> int:
        return len(self._patterns)

    def __getitem__(self, index: object) -> Pattern:  # type: ignore[override]
        raise FedfluxError("this algorithm may not read the clients' patterns")


def revealed(patterns: Sequence[Pattern], client: int) -> Pattern:
    """The pattern of a client, locked or not: for whatever makes its data."""
    return patterns.reveal(client) if isinstance(patterns, LockedPatterns) else patterns[client]
