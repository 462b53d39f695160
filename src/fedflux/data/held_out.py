"""Who trains and who is held out: clients that no round meets, and that are asked without labels after training."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset
from fedflux.data.federation import Federation
from fedflux.data.scaling import Scaling
from fedflux.data.shifts.patterns import Pattern
from fedflux.errors import FedfluxError
from fedflux.streams import stream

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Roles:
    """Clients by the numbers under which rows and patterns are dealt; each has one role."""

    training: Numbers
    unseen: Numbers

    @property
    def order(self) -> Numbers:
        """Everyone as federations number them: those that train, then those that are held out."""
        return np.concatenate([self.training, self.unseen])


@dataclass(frozen=True, eq=False)
class Population:
    """All clients of a partition. Algorithms are given those that train, and nothing of the others."""

    training: Federation
    everyone: Federation
    """The same clients under the same numbers, and behind them those that are held out."""

    def scaled(self, scaling: Scaling) -> "Population":
        """The same clients, whose inputs are scaled so."""
        together = self.training is self.everyone
        training = self.training.scaled(scaling)
        return Population(training, training if together else self.everyone.scaled(scaling))

    @property
    def unseen(self) -> range:
        """The numbers of the clients that are held out."""
        return range(len(self.training), len(self.everyone))


@dataclass(frozen=True, eq=False)
class KnownPatterns:
    """Client k's pattern where clients draw from a few: whoever is held out has one that somebody trains with.

    Else some of them would have looks that no model ever saw, and their score would say little about placing them.
    """

    draw: Callable[[int], Pattern]
    training: Numbers
    unseen: frozenset[int]
    seed: int
    epoch: int

    def __call__(self, client: int) -> Pattern:
        """What client k draws."""
        if client not in self.unseen:
            return self.draw(client)
        rng = stream(self.seed, "pattern of an unseen client", round=self.epoch, client=client)
        return self.draw(int(self.training[rng.integers(len(self.training))]))


def simulated_roles(clients: int, unseen: int) -> Roles:
    """The last of the simulated clients are held out: a client's own draws depend on its number alone."""
    return Roles(np.arange(clients), np.arange(clients, clients + unseen))


def own_roles(dataset: Dataset, unseen: int, seed: int) -> Roles:
    """Of data with clients of its own: those in the test part alone are held out, and `unseen` others by the seed."""
    assert dataset.client_names is not None
    trained, tested = (
        np.zeros(0, dtype=np.int64) if part.client is None else np.unique(part.client)
        for part in (dataset.train, dataset.test)
    )
    alone = np.setdiff1d(tested, trained)
    training = np.setdiff1d(np.arange(len(dataset.client_names)), alone)
    candidates = np.intersect1d(training, tested)
    most = min(len(training) - 1, len(candidates))
    if unseen > most:
        words = f"{len(training)} clients that train, {len(candidates)} of them with a test part, and one must be left"
        raise FedfluxError(f"--unseen {unseen}: {dataset.name} has {words}: give {most} or less")
    drawn = np.sort(stream(seed, "unseen clients").choice(candidates, size=unseen, replace=False))
    return Roles(np.setdiff1d(training, drawn), np.concatenate([drawn, alone]))
