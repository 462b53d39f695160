"""What clusters of a FLUX run share: which branches are trained, how members weigh them, and which can go."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Averaging, RoundMetrics
from fedflux.algorithms.flux.answers import FluxAnswers
from fedflux.algorithms.flux.ballots import Ballot, hold
from fedflux.algorithms.flux.branches import GENERAL, OWN, TRUNK
from fedflux.algorithms.flux.kin import LARGEST, cosines, find_kin
from fedflux.algorithms.flux.state import Clustered
from fedflux.algorithms.shared.averaging import aggregate
from fedflux.data import Cohort
from fedflux.engine import Engine, Stack

IN_WORDS = {OWN: "clusters' own models", TRUNK: "the shared trunk", GENERAL: "the general model"}
WORTHWHILE = 5
"""Rounds that a general model must have before it, or it is not begun any more."""
C = TypeVar("C", bound=Clustered)


@dataclass(frozen=True, eq=False)
class Update:
    """What members of a round made of one model."""

    start: Stack
    trained: Stack
    members: Cohort
    sizes: NDArray[np.float64]


class FluxSharing(FluxAnswers[C], Generic[C]):
    """The part of FLUX's rounds that decides what is shared."""

    def _branch_names(self, clusters: int, engine: Engine) -> tuple[str, ...]:
        """The branches of so many clusters; of one, or of models without a trunk, a second would be the same."""
        sharing, trunk = self.settings.sharing, engine.initial().tensors.keys() - engine.head_names
        if sharing == "general":
            return (OWN, GENERAL)
        if sharing == "none" or clusters == 1 or not trunk:
            return (OWN,)
        return (TRUNK,) if sharing == "trunk" else (OWN, TRUNK)

    def _kin(self, update: Update, assignment: NDArray[np.int64], clusters: int) -> NDArray[np.int64]:
        """Which clusters share a trunk, by what the members of the last round made of the common model."""
        if self.settings.sharing != "auto" or not 2 < clusters <= LARGEST:
            return np.zeros(clusters, dtype=np.int64)
        cluster = assignment[list(update.members.ids)]
        rows = np.flatnonzero(cluster >= 0)
        sizes = update.sizes[rows]
        return find_kin(cosines(update.start, update.trained.take(rows), cluster[rows], sizes, clusters))

    def _by_cluster(self, state: C) -> Averaging:
        """How the models of clusters are made from what members trained."""
        return self.settings.average or aggregate

    def _heard(self, state: C, cohort: Cohort) -> list[float]:
        """What every branch has in the answers to members, on average."""
        cluster = np.maximum(state.assignment[list(cohort.ids)], 0)
        return [float(part) for part in state.parts[cluster].mean(axis=0)]

    def _weigh(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """What every branch has in the answers: members vote before they train, and drop a branch that they have long
        been able to do without.
        """
        if state.ballot is None or (state.round == state.ballot.begun + 1 and not state.ballot.one_for_all):
            return state
        cluster = np.maximum(state.assignment[list(cohort.ids)], 0)
        weighed = replace(state, ballot=hold(state.ballot, state.branches, cohort, cluster, engine))
        if state.ballot.one_for_all:
            if weighed.share != state.share:
                metrics.events.append(f"round {state.round}: the general model's part in answers is {weighed.share:g}")
            return weighed
        return self._drop(weighed, metrics)

    def _drop(self, state: C, metrics: RoundMetrics) -> C:
        """Without the branch that ballots spare.

        Where clusters can do without models of their own although nothing sets groups of them apart, one model for all
        of them may know still more: it takes that place.
        """
        spare = None if state.ballot is None else state.ballot.droppable(state.round, self.settings.rounds)
        if spare is None:
            return state
        branches, velocity = state.branches.without(spare, state.velocity)
        ballot, dropped = None, (*state.dropped, spare)
        metrics.events.append(f"round {state.round}: members can do without {IN_WORDS[spare]}: trained no more")
        left = self.settings.rounds - state.round + 1
        if spare == OWN and not branches.kin.any() and left >= WORTHWHILE:
            mean = branches.models.average(np.maximum(state.sizes, 1e-9)[None].astype(np.float64))
            branches, velocity = branches.beside(GENERAL, mean, velocity)
            ballot = Ballot.blank(branches.names, branches.clusters, state.round - 1)
        return replace(state, branches=branches, velocity=velocity, ballot=ballot, dropped=dropped)

    def _inherit(self, state: C, shares: NDArray[np.float64], engine: Engine) -> C:
        """The branches of clusters found anew, `shares` (new × old) of whose models they go on from."""
        branches, velocity = state.branches.inherit(shares, state.velocity, engine.head_names)
        ballot = None if state.ballot is None else state.ballot.of_clusters(len(shares))
        state = replace(state, branches=branches, velocity=velocity, ballot=ballot)
        if len(shares) == 1 or state.dropped or len(branches.stacks) > 1 or self.settings.sharing != "auto":
            return state
        if TRUNK not in self._branch_names(len(shares), engine):
            return state
        branches, velocity = branches.beside(TRUNK, branches.models, velocity)  # more clusters than one, at last
        branches, velocity = replace(branches, kin=np.zeros(len(shares), dtype=np.int64)).tied(
            velocity, engine.head_names
        )
        return replace(
            state,
            branches=branches,
            velocity=velocity,
            ballot=Ballot.blank(branches.names, len(shares), state.round - 1),
        )
