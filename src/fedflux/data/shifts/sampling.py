"""Rows drawn with reuse: every client takes its own sample of one pool, so there may be more clients than examples."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.data.shifts.allocation import ClientRows, split_validation
from fedflux.data.shifts.patterns import Pattern
from fedflux.data.splits import Rows
from fedflux.streams import stream


@dataclass(frozen=True, eq=False)
class RowPool:
    """Rows in order of their labels; class u lies between `bounds[u]` and `bounds[u + 1]`."""

    rows: Rows
    bounds: NDArray[np.int64]

    @staticmethod
    def of(rows: Rows, y: NDArray[np.int64], classes: int) -> "RowPool":
        """A pool of these rows of a part whose labels are y."""
        order = rows[np.argsort(y[rows], kind="stable")]
        return RowPool(order, np.searchsorted(y[order], np.arange(classes + 1)).astype(np.int64))

    def draw(self, count: int, pattern: Pattern, rng: np.random.Generator) -> Rows:
        """Different rows with the labels that P(Y) gives a client: `count`, or all that fit where these are fewer.

        The classes are chosen before the rows, so unlike a share that is dealt, a drawn one needs no copies for P(Y).
        """
        if pattern.label_weights is not None:
            return self._weighted(count, np.array(pattern.label_weights), rng)
        if pattern.kept is None:
            return self.rows[rng.choice(len(self.rows), size=min(count, len(self.rows)), replace=False)]
        kept = np.array(pattern.kept)
        sizes = np.diff(self.bounds)[kept]
        ends = np.cumsum(sizes)
        places = rng.choice(ends[-1], size=min(count, int(ends[-1])), replace=False)
        which = np.searchsorted(ends, places, side="right")
        index: Rows = places - (ends - sizes)[which] + self.bounds[kept][which]
        return self.rows[index]

    def _weighted(self, count: int, weights: NDArray[np.float64], rng: np.random.Generator) -> Rows:
        sizes = np.diff(self.bounds)
        share = np.where(sizes > 0, weights, 0.0)
        if share.sum() == 0:
            return self.rows[:0]
        wanted = np.minimum(rng.multinomial(count, share / share.sum()), sizes)
        places = zip(sizes, wanted, self.bounds[:-1], strict=True)
        index: Rows = np.concatenate([rng.choice(n, size=w, replace=False) + begin for n, w, begin in places])
        return self.rows[index]


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Client k's rows, from (seed, k) alone: a sample of the training pool, cut in two, and one of the test pool."""

    train: RowPool
    test: RowPool
    samples: int
    """Training and validation examples of a client together."""
    tests: int
    seed: int
    validation_share: float
    group: Rows | None = None
    """Of every row of the training part: the rows of one stay on one side of the cut."""

    def rows(self, client: int, pattern: Pattern) -> ClientRows:
        """No client has a row twice unless the pool is too small, and then copies stay inside their part, so that no
        training example is validated on. Test examples are never copied: that would tell nothing.
        """
        drawn = self.train.draw(self.samples, pattern, stream(self.seed, "draw train", client=client))
        mine, held = split_validation(drawn, self.validation_share, self.seed, client, self.group)
        wanted = int(self.validation_share * self.samples)
        rng = stream(self.seed, "draw copies", client=client)
        return ClientRows(
            _topped_up(mine, self.samples - wanted, rng),
            _topped_up(held, wanted, rng),
            self.test.draw(self.tests, pattern, stream(self.seed, "draw test", client=client)),
        )


def _topped_up(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    if len(rows) == 0 or len(rows) >= count:
        return rows
    return np.concatenate([rows, rng.choice(rows, size=count - len(rows))])
