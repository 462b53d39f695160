"""Ballots: members' validation parts say how much of every branch is in the answer, and which branch can go.

Members vote before they train, so that their clusters' models know them no better than those of clients that stay away.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, TRUNK, Branches
from fedflux.data import Cohort
from fedflux.engine import Engine, Predictor, Stack

Array = NDArray[np.float64]

MEMORY = 0.5
"""What an earlier round's votes count for: models go on learning."""
PRIOR = 1000.0
"""Votes of everybody that a cluster's own are weighed against: a cluster with few goes by what serves all."""
LITTLE = 0.002
"""A ballot spares a branch where, by a standard error or more, accuracy falls by less than this without it."""
SPARED = 3
"""Ballots in a row that must spare a branch before it is dropped."""
EARLIEST = {OWN: 0.0, TRUNK: 0.5, GENERAL: 0.5}
"""The share of the rounds left to two branches that have passed before one is dropped: what is shared begins worse than
clusters' own models and ends better."""
NEARLY = 0.01
"""The accuracy that a general model may cost when it begins: its head is a mean that nobody has trained yet. Where one
was of use later, it cost 0.001 to 0.013; where clusters conflict, 0.025 to 0.09."""
AGAIN = 5
"""Ballots until a general model is proposed again."""
SETTLED = 0.02
"""What the best mixture may have gained over as many ballots where own models go: as long as models learn quickly,
nobody knows which of them will be best."""
FAINT = 0.25
"""The part in the answer up to which own models are hardly heard, so that a general one is proposed in their place."""


def mixtures_of(names: Sequence[str]) -> Array:
    """(C × branches): the mixtures that are voted on, more of the later branches the later they come.

    Quarters; fifths of a general model beside clusters' own, as version 0.1 had it.
    """
    steps = 5 if tuple(names) == (OWN, GENERAL) else 4
    found = [one for one in product(range(steps + 1), repeat=len(names)) if sum(one) == steps]
    # 1 − s keeps the digits that shares of a general model have always had
    return np.array(
        [[1 - sum(part / steps for part in one[1:]), *(part / steps for part in one[1:])] for one in found][::-1]
    )


@dataclass(frozen=True, eq=False)
class Ballot:
    """What was voted so far, earlier ballots counting less."""

    names: tuple[str, ...]
    """The branches that were voted on."""
    votes: Array
    """(C,): right answers with every mixture."""
    own: Array
    """(M × C): those of every cluster's members."""
    counted: float = 0.0
    """Answers that were asked for."""
    spared: tuple[int, ...] = ()
    """For every branch, ballots in a row that could do without it."""
    begun: int = 0
    """The round after which these branches began to differ."""
    faint: int = 0
    """Ballots in a row in which clusters' own models had a small part in the best mixture."""
    levels: tuple[float, ...] = ()
    """The accuracy of the best mixture in the last ballots, the latest last."""

    @staticmethod
    def blank(names: Sequence[str], clusters: int, begun: int) -> "Ballot":
        """Nobody has voted."""
        count = len(mixtures_of(names))
        return Ballot(tuple(names), np.zeros(count), np.zeros((clusters, count)), 0.0, (0,) * len(names), begun)

    @property
    def one_for_all(self) -> bool:
        """Whether all clusters are answered by the same mixture, each member having one vote: a general model is heard
        or it is not.
        """
        return self.names == (OWN, GENERAL)

    def parts(self) -> Array:
        """(M × branches): what each branch has in the answer to every cluster; the first mixture of equals."""
        mixtures = mixtures_of(self.names)
        if self.one_for_all:
            return np.tile(mixtures[self.votes.argmax()], (len(self.own), 1))
        shared = PRIOR * self.votes / max(self.counted, 1e-12)
        return np.asarray(mixtures[(self.own + shared).argmax(axis=1)])

    def add(self, scores: Array, weight: Array, cluster: NDArray[np.int64]) -> "Ballot":
        """One more ballot: accuracies (C × members), NaN where a member does not vote, what each member's vote weighs,
        and its cluster.
        """
        weight = np.where(np.isnan(scores).any(axis=0), 0.0, weight)
        right = np.nan_to_num(scores) * weight
        own = MEMORY * self.own
        np.add.at(own, cluster, right.T)
        total, spared = float(weight.sum()), self.spared
        if total > 0:
            easy = [self._spares(right, place, total) for place in range(len(self.names))]
            spared = tuple(times + 1 if spares else 0 for times, spares in zip(self.spared, easy, strict=True))
        votes, faint, levels = MEMORY * self.votes + right.sum(axis=1), self.faint, self.levels
        if total > 0:
            levels = (*levels, float(right.sum(axis=1).max() / total))[-SPARED:]
        if total > 0 and OWN in self.names:
            part = mixtures_of(self.names)[votes.argmax(), self.names.index(OWN)]
            faint = self.faint + 1 if part <= FAINT else min(self.faint, 0)
        counted = MEMORY * self.counted + total
        return replace(self, votes=votes, own=own, counted=counted, spared=spared, faint=faint, levels=levels)

    def _spares(self, right: Array, place: int, total: float) -> bool:
        """Whether members' right answers (C × members) are clearly as many without a branch, or nearly."""
        within = mixtures_of(self.names)[:, place] > 0
        votes = right.sum(axis=1)
        best, other = np.where(within, -np.inf, votes).argmax(), np.where(within, votes, -np.inf).argmax()
        gain = right[best] - right[other]
        return bool(gain.sum() + LITTLE * total >= np.sqrt((gain**2).sum()))

    @property
    def settled(self) -> bool:
        """Whether models learn slowly by now."""
        return len(self.levels) >= SPARED and self.levels[-1] - self.levels[0] < SETTLED

    @property
    def asks_for_another(self) -> bool:
        """Whether own models have been hardly heard so long that members may as well say what they think of a general
        one.
        """
        return self.settled and self.faint >= SPARED

    def refused(self) -> "Ballot":
        """The same after a general model would have cost members too much: it is not proposed again for some time."""
        return replace(self, faint=SPARED - AGAIN)

    def droppable(self, round: int, rounds: int) -> str | None:
        """The branch that the last ballots could do without, once enough of the `rounds` have shown it; of two, the one
        that leaves the better answers. Clusters keep a branch of their own.
        """
        mixtures, passed, total = mixtures_of(self.names), round - 1 - self.begun, rounds - self.begun
        found = {
            name: float(self.votes[mixtures[:, place] == 0].max())
            for place, name in enumerate(self.names)
            if self.spared[place] >= SPARED and passed >= EARLIEST[name] * total and set(self.names) != {name, GENERAL}
        }
        best = max(found, key=lambda name: found[name], default=None)
        return None if best == OWN and not self.settled else best

    def of_clusters(self, clusters: int) -> "Ballot":
        """The same after clusters were found anew: everybody's votes stay, those of clusters begin again."""
        return replace(self, own=np.zeros((clusters, self.own.shape[1])))


def hold(ballot: Ballot, branches: Branches, cohort: Cohort, cluster: NDArray[np.int64], engine: Engine) -> Ballot:
    """A ballot of the members, whose clusters these are, on the branches as they are."""
    predictors = _mixtures(branches, ballot.names, mixtures_of(ballot.names), cluster)
    scores = engine.evaluate(predictors, cohort, "validation").values
    weight = np.ones(len(cohort)) if ballot.one_for_all else cohort.sizes("validation")
    return ballot.add(scores, weight, cluster)


def general_may_begin(
    general: Stack, ballot: Ballot, branches: Branches, cohort: Cohort, cluster: NDArray[np.int64], engine: Engine
) -> bool:
    """Whether a general model may take the place of own models: a mixture with it serves members nearly as well as what
    answers them now, and as the shared trunk alone, although it has yet to learn.
    """
    shown, _ = branches.beside(GENERAL, general, None)
    others = (TRUNK, GENERAL)
    predictors = _mixtures(shown, ballot.names, [ballot.parts()], cluster)
    predictors += _mixtures(shown, others, mixtures_of(others), cluster)  # the first is the trunk alone
    scores = engine.evaluate(predictors, cohort, "validation").values
    heard = ~np.isnan(scores).any(axis=0)
    votes = cohort.sizes("validation")[heard]
    right = scores[:, heard] @ votes
    return bool(votes.any() and right[2:].max() >= right[:2].max() - NEARLY * votes.sum())


def _mixtures(
    branches: Branches, names: Sequence[str], mixtures: Iterable[Array], cluster: NDArray[np.int64]
) -> list[Predictor]:
    """What members are asked to try: mixtures of these branches, the same for all clusters or a row for each."""
    placed = np.eye(branches.clusters)[cluster]
    columns = [branches.names.index(name) for name in names]
    found = []
    for mixture in mixtures:
        parts = np.zeros((branches.clusters, len(branches.names)))
        parts[:, columns] = mixture
        found.append(Predictor(branches.answering, branches.weights(placed, parts)))
    return found
