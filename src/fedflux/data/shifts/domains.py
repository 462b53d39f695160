"""Clients that differ by nature: which kind of record each holds, where the data itself tells kinds apart."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.streams import stream

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Domains:
    """What sets records apart by nature: a column an attribute (a domain; or view, age and sex), the coarsest first.

    A level L goes by the first L attributes: records that have the same values in all of them are of one domain. A
    client holds records of one domain, which is its true cluster.
    """

    words: tuple[str, ...]
    """What the attributes are called."""
    train: Numbers
    """(records × attributes) of the training part."""
    test: Numbers
    """The same of the test part."""
    tests: int | None = None
    """Where clients draw their training records, how many test records they draw; None: in proportion."""

    def of_records(self, level: int) -> tuple[Numbers, Numbers]:
        """The domain of every training and test record."""
        kept = min(level, len(self.words))
        both = np.concatenate([self.train, self.test])[:, :kept]
        number = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return number[: len(self.train)], number[len(self.train) :]

    def of_clients(self, level: int, clients: int, seed: int) -> Numbers:
        """The domain of every client: each domain as often as another, as far as that goes, in random order."""
        rng = stream(seed, "domains of clients")
        there = np.unique(self.of_records(level)[0])
        return np.asarray(rng.permutation(np.resize(rng.permutation(there), clients)))
