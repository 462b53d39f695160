"""What clusters of a FLUX run share: which branches are trained, how members weigh them, and which can go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Averaging, RoundMetrics
from fedflux.algorithms.flux.answers import FluxAnswers
from fedflux.algorithms.flux.sharing.ballots import Ballot, general_may_begin, hold
from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, TRUNK, Branches
from fedflux.algorithms.flux.sharing.kin import LARGEST, agree, cosines, find_kin
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

    def cosines(
        self, assignment: NDArray[np.int64], clusters: int, layers: frozenset[str] | None = None
    ) -> NDArray[np.float64]:
        """Between clusters' mean updates, of all layers or of these alone."""
        cluster = assignment[list(self.members.ids)]
        rows = np.flatnonzero(cluster >= 0)
        start, trained = (one if layers is None else one.only(layers) for one in (self.start, self.trained.take(rows)))
        return cosines(start, trained, cluster[rows], self.sizes[rows], clusters)


class FluxSharing(FluxAnswers[C], Generic[C]):
    """The part of FLUX's rounds that decides what is shared."""

    def _branch_names(self, clusters: int, engine: Engine) -> tuple[str, ...]:
        """The branches of so many clusters; of one a second would be the same. A model of one layer has no trunk to
        share: a general model is heard beside clusters' own instead.
        """
        sharing, trunk = self.settings.sharing, engine.initial().tensors.keys() - engine.head_names
        if sharing == "general":
            return (OWN, GENERAL)
        if sharing == "none" or clusters == 1:
            return (OWN,)
        if not trunk:
            return (OWN, GENERAL) if sharing == "auto" else (OWN,)
        return (TRUNK,) if sharing == "trunk" else (OWN, TRUNK)

    def _branches(
        self,
        names: Sequence[str],
        model: Stack,
        update: Update,
        assignment: NDArray[np.int64],
        clusters: int,
        engine: Engine,
    ) -> Branches:
        """All branches from one model; who shares a trunk is told by what the last round's members made of it."""
        stacks = {name: model.take([0] * (1 if name == GENERAL else clusters)) for name in names}
        if self.settings.sharing != "auto" or TRUNK not in names or not 2 < clusters <= LARGEST:
            return Branches(stacks, np.zeros(clusters, dtype=np.int64))
        kin = find_kin(update.cosines(assignment, clusters))
        whole = bool(kin.any()) and agree(update.cosines(assignment, clusters, engine.head_names), kin)
        return Branches(stacks, kin, whole)

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
        ballot = hold(state.ballot, state.branches, cohort, cluster, engine)
        weighed = replace(state, ballot=ballot)
        if state.ballot.one_for_all:
            if weighed.share != state.share:
                metrics.events.append(f"round {state.round}: the general model's part in answers is {weighed.share:g}")
            return weighed
        spare = ballot.droppable(state.round, self.settings.rounds)
        general = self._general(weighed) if spare == OWN or ballot.asks_for_another else None
        if spare is None and general is not None:
            metrics.send(cohort, down=general.model_bytes())
            metrics.count(cohort, models_down=1)
            if general_may_begin(general, ballot, state.branches, cohort, cluster, engine):
                spare = OWN
            else:
                weighed = replace(state, ballot=ballot.refused())
        return weighed if spare is None else self._drop(weighed, spare, general, metrics)

    def _general(self, state: C) -> Stack | None:
        """The mean of the models that share a trunk, from which one for everybody may begin.

        None where groups of clusters pull apart, or where too few rounds are left to it.
        """
        left = self.settings.rounds - state.round + 1
        if TRUNK not in state.branches.stacks or state.branches.kin.any() or left < WORTHWHILE:
            return None
        return state.branches.stacks[TRUNK].average(np.maximum(state.sizes, 1e-9)[None].astype(np.float64))

    def _drop(self, state: C, spare: str, general: Stack | None, metrics: RoundMetrics) -> C:
        """Without the branch that ballots spare.

        Where clusters can do without models of their own although nothing sets groups of them apart, one model for all
        of them may know still more: it takes that place.
        """
        branches, velocity = state.branches.without(spare, state.velocity)
        begun, dropped = None, (*state.dropped, spare)
        metrics.events.append(f"round {state.round}: members can do without {IN_WORDS[spare]}: trained no more")
        if spare == OWN and general is not None:
            branches, velocity = branches.beside(GENERAL, general, velocity)
            begun = Ballot.blank(branches.names, branches.clusters, state.round - 1)
        return replace(state, branches=branches, velocity=velocity, ballot=begun, dropped=dropped)

    def _inherit(self, state: C, shares: NDArray[np.float64], engine: Engine) -> C:
        """The branches of clusters found anew, `shares` (new × old) of whose models they go on from."""
        branches, velocity = state.branches.inherit(shares, state.velocity, engine.head_names)
        ballot = None if state.ballot is None else state.ballot.of_clusters(len(shares))
        state = replace(state, branches=branches, velocity=velocity, ballot=ballot)
        names = self._branch_names(len(shares), engine)
        if state.dropped or branches.names != (OWN,) or TRUNK not in names:
            return state
        # more clusters than one, at last
        if names == (TRUNK,):
            branches = replace(branches, stacks={TRUNK: branches.models})
        else:
            branches, velocity = branches.beside(TRUNK, branches.models, velocity)
        branches, velocity = branches.tied(velocity, engine.head_names)
        ballot = Ballot.blank(names, len(shares), state.round - 1) if len(names) > 1 else None
        return replace(state, branches=branches, velocity=velocity, ballot=ballot)
