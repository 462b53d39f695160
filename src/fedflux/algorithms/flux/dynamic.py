"""FLUX-dynamic: FLUX whose clients describe themselves again and again, and whose clusters follow when some drift."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import RoundMetrics, Settings
from fedflux.algorithms.flux.describe import describe
from fedflux.algorithms.flux.looks import GROWTH
from fedflux.algorithms.flux.plain import DESCRIPTION
from fedflux.algorithms.flux.rounds import FluxRounds
from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, TRUNK
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.algorithms.registry import algorithm
from fedflux.clustering import takes
from fedflux.clustering.change.drift import add_descriptors, descend, drifted, with_past
from fedflux.clustering.change.history import KeptHistory, at_rows
from fedflux.data import Cohort, Federation
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import client_bytes, from_arrays, put_arrays, to_arrays
from fedflux.engine import Engine, Predictor
from fedflux.placement import Placement

MEMORY = 32
"""Past clusters kept, those that were somebody's last."""
HALF, MORE = 0.5, 0.6
"""The general model's part in the answer to an unseen client that fits a cluster, and to one that fits none: then it
decides where the two are as sure of different answers. On MNIST two opinions were better than one (docs/drift.md)."""
NAMED = 20
"""Clients named in an event, at most."""


@dataclass(frozen=True, eq=False)
class DynamicState(Clustered):
    """FLUX's state, whose models and clusters go on after those of now with past ones that nobody is in any more."""

    used: tuple[int, ...] = ()
    """The round in which each cluster last was somebody's."""
    accuracy: tuple[float, ...] = ()
    """Of each cluster's model on its members' validation parts, when it last had any."""
    general_accuracy: float = 0.0
    """Of the general model on everyone's validation parts, in the last round."""
    releases: int = 1
    """How often a client has described the same examples, at most: what a private run composes over."""
    members: tuple[int, ...] = ()
    """Who took part in the last round."""
    told: tuple[int, ...] = ()
    """The last chunk that each of `described` told: that of the round of its last description."""
    history: KeptHistory | None = None
    """What each of `described` told first and since, to find slow drift by; None: nobody looks for it."""


@algorithm("flux-dynamic")
class FluxDynamic(FluxRounds[DynamicState]):
    """Descriptors are made of disjoint chunks of the training data, one a round, so that tests compare fresh samples.

    A client whose new chunk does not fit its earlier ones drifted, and so did one whose recent chunks do not fit the
    first ones. Then clusters are found anew, each going on from the old one that it equals or is nearest to; old ones
    that nobody is in any more are remembered.
    """

    revision: ClassVar[int] = 7
    states: ClassVar[tuple[type, ...]] = (WarmUp, DynamicState)
    reads: ClassVar[frozenset[str]] = (DESCRIPTION - {"novel", "late"}) | {
        *("clusterer", "eps_scale", "redescribe", "false_alarms", "drift_test")
    }

    @classmethod
    def make(cls, settings: Settings) -> Self:
        """Clusters are first looked for when C(r) fires; after that every round asks whether somebody drifted."""
        return cls(replace(settings, look_again=False))

    def _before_training(
        self, state: DynamicState, cohort: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> DynamicState:
        """Find out who joined, who left and who drifted."""
        state = self._follow(state, cohort, engine, metrics)
        return replace(state, members=cohort.ids)

    def round(
        self, state: WarmUp | DynamicState, cohort: Cohort, engine: Engine
    ) -> tuple[WarmUp | DynamicState, RoundMetrics]:
        """As FLUX; then both kinds of model are measured by the members' validation parts."""
        if isinstance(state, WarmUp):
            after, metrics = super().round(state, cohort, engine)
            return (after if isinstance(after, WarmUp) else replace(after, members=cohort.ids)), metrics
        metrics = RoundMetrics()
        state = self._before_training(replace(state, round=state.round + 1), cohort, engine, metrics)
        state = self._train(state, cohort, engine, metrics)
        assert state.general is not None  # this method always trains one
        everyone = Predictor.shared(state.general, np.ones(1), len(cohort))
        scores = engine.evaluate([self.known(state, cohort, engine), everyone], cohort, "validation")
        metrics.validation = scores.by_client(cohort)
        metrics.parts = dict(zip(state.branches.names, self._heard(state, cohort), strict=True))
        return _measured(state, cohort, *scores.values), metrics

    def _chunks(self, round: int, cohort: Cohort, count: int | None = None) -> Cohort:
        """The members with the last `count` of the chunks up to this round's; all of them where none is told."""
        first = 0 if count is None else max(round - count, 0)
        return cohort.chunks(first, round, max(self.settings.rounds, round))

    def _told_by(self, round: int, cohort: Cohort) -> Cohort:
        """First descriptions leave the chunks of later rounds alone."""
        return self._chunks(round, cohort)

    def _begin(self, found: Clustered, before: WarmUp, metrics: RoundMetrics) -> DynamicState:
        """FLUX's clusters; the model of everyone so far goes on as the general one."""
        begun = DynamicState(**{one.name: getattr(found, one.name) for one in fields(found)})
        return replace(
            begun,
            ballot=None,
            told=(before.round,) * len(found.described),
            used=(before.round,) * len(found.models),
            accuracy=(before.accuracies[-1],) * len(found.models),
            general_accuracy=before.accuracies[-1],
            history=None if self.settings.drift_test == "chunk" else KeptHistory.of(found.descriptors),
        )

    def _branch_names(self, clusters: int, engine: Engine) -> tuple[str, ...]:
        """What is shared is the general model, which is always trained; with `trunk` clusters have that, too."""
        trunk = self.settings.sharing == "trunk" and TRUNK in super()._branch_names(max(clusters, 2), engine)
        return (TRUNK, GENERAL) if trunk else (OWN, GENERAL)

    def _follow(self, state: DynamicState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> DynamicState:
        """Newcomers, leavers and drift; clusters are found anew where somebody drifted or many came."""
        self._tell_leavers(state, cohort, metrics)
        before = state.described
        state = self._place_newcomers(state, cohort, engine, metrics)
        joined = sorted(set(state.described) - set(before))
        if joined:
            metrics.events.append(f"round {state.round}: {_clients(joined)} joined")
        moved: list[int] = []
        if (state.round - state.cluster_round) % self.settings.redescribe == 0:
            state, moved = self._redescribe(state, cohort.only(before), engine, metrics)
        count = len(state.described)
        grown = count == cohort.federation.expected > state.clustered or count >= GROWTH * state.clustered
        if (moved or grown) and takes(self.settings.clusterer, count):
            state = self._recluster(state, cohort.federation, engine, metrics)
        elif moved:
            state = self._move(state, moved)
        held = set(state.assignment[list(cohort.ids)].tolist())
        return replace(state, used=tuple(state.round if m in held else last for m, last in enumerate(state.used)))

    def _redescribe(
        self, state: DynamicState, members: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> tuple[DynamicState, list[int]]:
        """Compare each member's fresh chunk with what it told before; those that drifted tell all they hold now."""
        place = {client: row for row, client in enumerate(state.described)}
        # whoever joined since the last time told some of these chunks then
        due = [client for client in members if state.told[place[client]] <= state.round - self.settings.redescribe]
        members = replace(members, ids=tuple(due))
        fresh = self._chunks(state.round, members, self.settings.redescribe)
        if not len(fresh):
            return state, []
        with metrics.timed("descriptor"):
            new = describe(state.extractor, fresh, engine)
            if new is None:
                return state, []
            fresh = fresh.only(new.clients)
            rows = np.array([place[client] for client in fresh])
            old = at_rows(state.descriptors, rows)
            state, changed = self._changed(state, rows, old, new.descriptors)
            arrays = put_arrays(state.descriptors, rows, to_arrays(add_descriptors(old, new.descriptors)))
        share = fresh.sizes("train").sum() / max(members.sizes("train").sum(), 1)
        metrics.send(fresh, up=client_bytes(new.descriptors))
        metrics.count(fresh, forward=share)
        moved = [client for client, yes in zip(fresh, changed, strict=True) if yes]
        if moved:
            found = f"drift at {len(moved)} of {len(fresh)} clients"
            metrics.events.append(f"round {state.round}: {found}: {_numbers(moved)}")
            with metrics.timed("descriptor"):
                now = describe(state.extractor, self._chunks(state.round, members.only(moved)), engine)
            if now is not None:
                rows = np.array([place[client] for client in now.clients])
                arrays = put_arrays(arrays, rows, to_arrays(now.descriptors))
                if state.history is not None:
                    state = replace(state, history=state.history.begun_anew(rows, now.descriptors))
                metrics.send(now.clients, up=client_bytes(now.descriptors))
                metrics.count(now.clients, forward=state.round / max(self.settings.rounds, state.round))
        done = set(fresh)
        told = tuple(state.round if k in done else last for k, last in zip(state.described, state.told, strict=True))
        return replace(state, descriptors=arrays, told=told, releases=state.releases + (2 if moved else 1)), moved

    def _changed(
        self, state: DynamicState, rows: NDArray[np.int64], old: Descriptors, new: Descriptors
    ) -> tuple[DynamicState, NDArray[np.bool_]]:
        """Who drifted: whose new chunk does not fit what it told before, or what it told lately what it told first."""
        if state.history is None:
            return state, drifted(old, new, self.settings.false_alarms)
        history, changed = state.history.changed(rows, old, new, self.settings.false_alarms)
        return replace(state, history=history), changed

    def _move(self, state: DynamicState, moved: Sequence[int]) -> DynamicState:
        """Those that drifted go to the clusters that they fit best now, where clusters cannot be found anew."""
        rows = np.flatnonzero(np.isin(state.described, moved))
        now = at_rows(state.descriptors, rows)
        assignment = state.assignment.copy()
        assignment[[state.described[row] for row in rows]] = self._fitting(state.clusters, now)
        return replace(state, assignment=assignment)

    def _recluster(
        self, state: DynamicState, federation: Federation, engine: Engine, metrics: RoundMetrics
    ) -> DynamicState:
        """Clusters of everyone's descriptors as they are now, each from the model of an old one."""
        descriptors = from_arrays(state.descriptors)
        with metrics.timed("clustering"):
            found = self._group(descriptors, federation, state.described)
            came_from, same = descend(found.pool, state.clusters.pool, self.settings.clusterer.significance)
        left = np.setdiff1d(np.arange(len(state.used)), came_from[same])
        latest = left[np.argsort([-state.used[m] for m in left], kind="stable")][:MEMORY]
        kept = np.sort(latest)
        assignment = state.assignment.copy()
        assignment[list(state.described)] = found.labels
        # what no old cluster equals goes on from the nearest, unless the general model has learnt more since
        general = ~same & (np.array(state.accuracy)[came_from] < state.general_accuracy)
        starts = np.where(general, len(state.models), came_from)
        count, equal, near = len(same), int(same.sum()), int((~same & ~general).sum())
        told = f"{count} clusters, {equal} go on as they were, {near} from the nearest, {int(general.sum())} from the"
        metrics.events.append(f"round {state.round}: {told} general model; {len(kept)} past ones are remembered")
        rows = [*starts.tolist(), *kept.tolist()]
        branches, velocity = state.branches.restart(rows, state.velocity, engine.head_names)
        return replace(
            state,
            branches=branches,
            velocity=velocity,
            assignment=assignment,
            clusters=with_past(found, descriptors, state.clusters, kept),
            clustered=len(state.described),
            tries=None,
            used=(*[state.round] * count, *(state.used[m] for m in kept)),
            accuracy=tuple(state.accuracy[m] for m in (*came_from, *kept)),
        )

    def _tell_leavers(self, state: DynamicState, cohort: Cohort, metrics: RoundMetrics) -> None:
        """Members of the last round that are missing, unless taking part is a matter of chance."""
        gone = sorted(set(state.members) - set(cohort))
        if gone and self.settings.everyone:
            metrics.events.append(f"round {state.round}: {_clients(gone)} left")

    def _place_newcomers(
        self, state: DynamicState, cohort: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> DynamicState:
        """As FLUX; what they told goes up to this round's chunk."""
        placed = super()._place_newcomers(state, cohort, engine, metrics)
        came = np.arange(len(placed.told), len(placed.described))
        if len(came) and placed.history is not None:
            placed = replace(placed, history=placed.history.joined(to_arrays(at_rows(placed.descriptors, came))))
        return replace(placed, told=(*placed.told, *[state.round] * (len(placed.described) - len(placed.told))))

    def _share_of_unseen(self, state: DynamicState, found: Placement) -> NDArray[np.float64]:
        """Both opinions are heard, the general model's more where no cluster fits."""
        return np.where(found.novel, MORE, HALF)

    def summary(self, state: WarmUp | DynamicState) -> Mapping[str, Any]:
        """How often clients described the same examples, too."""
        told = super().summary(state)
        return told if isinstance(state, WarmUp) else {**told, "releases": state.releases}


def _measured(
    state: DynamicState, cohort: Cohort, own: NDArray[np.float64], general: NDArray[np.float64]
) -> DynamicState:
    """The state that knows how good each cluster's model and the general one are on the members' validation parts."""
    held, told = state.assignment[list(cohort.ids)], ~np.isnan(own)
    if not told.any():
        return state
    accuracy = list(state.accuracy)
    for m in np.unique(held[told & (held >= 0)]).tolist():
        accuracy[m] = float(own[told & (held == m)].mean())
    return replace(state, accuracy=tuple(accuracy), general_accuracy=float(general[told].mean()))


def _numbers(clients: Sequence[int]) -> str:
    told = ", ".join(map(str, clients[:NAMED]))
    return told if len(clients) <= NAMED else f"{told}, …"


def _clients(clients: Sequence[int]) -> str:
    return f"{len(clients)} {'client' if len(clients) == 1 else 'clients'} ({_numbers(clients)})"
