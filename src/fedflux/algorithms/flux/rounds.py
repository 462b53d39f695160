"""The rounds of FLUX (Algorithm 1): FedAvg until C(r) fires, then one model per cluster of descriptors."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, RoundMetrics
from fedflux.algorithms.flux.describe import Told, describe, describe_all, too_few
from fedflux.algorithms.flux.looks import FluxLooks
from fedflux.algorithms.flux.placing import ask_tries
from fedflux.algorithms.flux.sharing.ballots import Ballot
from fedflux.algorithms.flux.sharing.rounds import Update
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.algorithms.flux.trigger import first_look, should_cluster
from fedflux.algorithms.shared.averaging import aggregate
from fedflux.algorithms.shared.momentum import carried_on
from fedflux.clustering import Clusters
from fedflux.data import Cohort, Federation
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import client_bytes, join_arrays, to_arrays
from fedflux.engine import Engine, Job, Key
from fedflux.errors import FedfluxError

C = TypeVar("C", bound=Clustered)


@dataclass(frozen=True)
class FluxRounds(FluxLooks[C], Generic[C]):
    """The rounds of FLUX and its kin."""

    def init(self, federation: Federation, engine: Engine) -> WarmUp | C:
        """One model, nobody placed."""
        if self.uses_truth and federation.truth is None:
            raise FedfluxError("these clients have no true clusters: oracle, flux-prior and --clusters true need them")
        return WarmUp(engine.initial(), len(federation))

    def round(self, state: WarmUp | C, cohort: Cohort, engine: Engine) -> tuple[WarmUp | C, RoundMetrics]:
        """Place newcomers, train every member from its cluster's model, average per cluster; cluster if C(r) fires."""
        metrics = RoundMetrics()
        if isinstance(state, WarmUp):
            return self._warm_up(replace(state, round=state.round + 1), cohort, engine, metrics), metrics
        state = self._before_training(replace(state, round=state.round + 1), cohort, engine, metrics)
        state = self._train(state, cohort, engine, metrics)
        metrics.validation = self._measure(state, cohort, engine)
        metrics.parts = dict(zip(state.branches.names, self._heard(state, cohort), strict=True))
        return state, metrics

    def _warm_up(self, state: WarmUp, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> WarmUp | C:
        """A round of FedAvg; clusters of those present once C(r) fires."""
        training, key = self.settings.training, Key(self.settings.seed, state.round)
        with metrics.timed("training"):
            trained = engine.train(state.models, cohort, [Job(client) for client in cohort], training, key)
            members = cohort.only(trained.clients)
            sizes = members.sizes("train")
            zeros = np.zeros(len(members), dtype=np.int64)
            models = (self.settings.average or aggregate)(state.models, trained.models, zeros, sizes)
            update = Update(state.models, trained.models, members, sizes)
            velocity, beta = state.velocity, self.settings.server_momentum
            if beta:
                rows = [0] if sizes.any() else []
                models, velocity = carried_on(state.models, models, velocity, beta, rows, engine.trained_names)
        state = replace(state, models=models, velocity=velocity)
        self._count_training(cohort, members, models.model_bytes(), 1, metrics)
        metrics.missed(state.round, trained.missing)
        scores = engine.evaluate([self._known_in_warm_up(state, len(cohort))], cohort, "validation")
        metrics.validation = scores.by_client(cohort)
        known = scores.values[0][~np.isnan(scores.values[0])]
        state = replace(state, accuracies=(*state.accuracies, float(known.mean()) if len(known) else 0.0))
        return (self._cluster(state, cohort, engine, metrics, update) or state) if self._fires(state) else state

    def _count_training(
        self, cohort: Cohort, members: Cohort, model_bytes: int, each: int, metrics: RoundMetrics
    ) -> None:
        metrics.send(cohort, down=each * model_bytes)
        metrics.send(members, up=each * model_bytes)
        metrics.count(cohort, models_down=each)
        metrics.count(members, models_up=each, training=each * self.settings.training.epochs)

    def _fires(self, state: WarmUp) -> bool:
        if self.settings.cluster_round is not None:
            return state.round >= self.settings.cluster_round
        if self.settings.look_again:
            return state.round >= first_look(self.settings.rounds)
        return should_cluster(state.accuracies, self.settings.rounds)

    def _before_training(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Clusters are looked for again, newcomers placed, and the branches' parts in answers are voted on."""
        state = self._look_again(state, cohort, engine, metrics)
        state = self._place_newcomers(state, cohort, engine, metrics)
        state = self._refine(state, cohort.federation, engine, metrics)
        return self._weigh(state, cohort, engine, metrics)

    def _train(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Every member that is placed trains its cluster's model of every branch."""
        placed = cohort.only([client for client in cohort if state.assignment[client] != UNPLACED])
        training, key, branches = self.settings.training, Key(self.settings.seed, state.round), state.branches
        with metrics.timed("training"):
            jobs = branches.jobs(placed, state.assignment[list(placed.ids)])
            trained = engine.train(state.answering, placed, jobs, training, key)
            members = placed.only(trained.clients)
            cluster, sizes = state.assignment[list(members.ids)], members.sizes("train")
            rule, head = self.settings.average or aggregate, engine.head_names
            after = branches.averaged(trained.models, cluster, sizes, head, self._by_cluster(state), rule)
            velocity, beta = state.velocity, self.settings.server_momentum
            if beta:
                after, velocity = branches.moved_on(after, velocity, beta, cluster[sizes > 0], engine)
        self._count_training(placed, members, state.models.model_bytes(), len(branches.stacks), metrics)
        metrics.send(cohort)
        metrics.missed(state.round, trained.missing)
        return replace(state, branches=after, velocity=velocity)

    def _measure(self, state: C, cohort: Cohort, engine: Engine) -> dict[int, float]:
        """The members' validation accuracies after the round."""
        return engine.evaluate([self.known(state, cohort, engine)], cohort, "validation").by_client(cohort)

    def _cluster(
        self, state: WarmUp, cohort: Cohort, engine: Engine, metrics: RoundMetrics, update: Update
    ) -> C | None:
        """Descriptors of the members under the current global model, then clusters that all start from it."""
        with metrics.timed("descriptor"):
            told_by = self._told_by(state.round, cohort)
            found = describe_all(state.models, cohort, told_by, engine, self.settings.descriptor)
        if found is None:
            words = "nobody could be described; clustering waits for the next round"
            metrics.events.append(f"round {state.round}: {words}")
            return None
        extractor, told = found
        self._count_description(extractor, told, metrics)
        with metrics.timed("clustering"):
            clusters = self._group(told.descriptors, cohort.federation, told.clients)
        assignment = np.full(len(cohort.federation), UNPLACED, dtype=np.int64)
        assignment[list(told.clients)] = clusters.labels
        count = len(clusters.centroids)
        number = f"{count} cluster{'' if count == 1 else 's'}"
        metrics.events.append(f"round {state.round}: {number} of {len(told.clients)} clients")
        if few := too_few(told.descriptors, self.settings.descriptor):
            finer = "described once more" if extractor.earlier_bytes else "--projector discriminant may see finer"
            metrics.events.append(f"round {state.round}: {few:.0f} examples a class: {finer}")
        names = self._branch_names(count, engine)
        branches = self._branches(names, state.models, update, assignment, count, engine)
        if branches.kin.any():
            what = "a model" if branches.whole else "a trunk"
            groups = f"{branches.kin.max() + 1} groups of clusters pull apart: each shares {what} of its own"
            metrics.events.append(f"round {state.round}: {groups}")
        return self._begin(
            Clustered(
                branches=branches,
                assignment=assignment,
                round=state.round,
                cluster_round=state.round,
                extractor=extractor,
                clusters=clusters,
                described=told.clients,
                descriptors=to_arrays(told.descriptors),
                clustered=len(told.clients),
                looks=(state.round,),
                velocity=None if state.velocity is None else state.velocity.take([0] * len(branches.answering)),
                ballot=Ballot.blank(names, count, state.round) if len(names) > 1 else None,
            ),
            state,
            metrics,
        )

    def _begin(self, found: Clustered, before: WarmUp, metrics: RoundMetrics) -> C:
        """The state that the method goes on with from its first clusters."""
        raise TypeError(f"{type(self).__name__} does not say what it goes on with")

    def _place_newcomers(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Clients that take part for the first time after clustering get the cluster they fit best."""
        unplaced = cohort.only([client for client in cohort if state.assignment[client] == UNPLACED])
        asked = self._told_by(state.round, unplaced)
        if not len(asked):
            return state
        with metrics.timed("descriptor"):
            told = describe(state.extractor, asked, engine)
            if told is None:
                return state
            placed = self._place(state, asked.only(told.clients), told)
        newcomers = list(told.clients)
        assignment = state.assignment.copy()
        assignment[newcomers] = placed
        down = state.extractor.down + state.models.model_bytes()
        metrics.send(newcomers, up=client_bytes(told.descriptors), down=down)
        metrics.count(newcomers, models_down=1, forward=1)
        return replace(
            state,
            assignment=assignment,
            described=(*state.described, *newcomers),
            descriptors=join_arrays([state.descriptors, to_arrays(told.descriptors)]),
        )

    def _fitting(self, clusters: Clusters, late: Descriptors) -> NDArray[np.int64]:
        """The clusters that late clients fit best, by the rule that was asked for."""
        if self.settings.assignment == "mixture":
            return clusters.likeliest(late)
        return clusters.place(late, self.settings.assignment == "calibrated")

    def _place(self, state: C, newcomers: Cohort, told: Told) -> NDArray[np.int64]:
        """The clusters of late clients; the oracle puts each with its true cluster, where somebody of it is there."""
        placed = self._fitting(state.clusters, told.descriptors)
        if self.grouping != "true":
            return placed
        truth = newcomers.federation.truth
        assert truth is not None
        cluster_of = {int(truth[client]): int(state.assignment[client]) for client in state.described}
        return np.array([cluster_of.get(int(truth[k]), int(p)) for k, p in zip(told.clients, placed, strict=True)])

    def complete(self, state: WarmUp | C, clients: Cohort, engine: Engine) -> tuple[WarmUp | C, RoundMetrics]:
        """Clients that never took part are placed like late ones; without clusters everyone shares the one model."""
        metrics = RoundMetrics()
        if isinstance(state, WarmUp):
            return replace(state, over=True), metrics
        state = self._place_newcomers(state, clients, engine, metrics)
        return self._try(state, clients, engine, metrics), metrics

    def _try(self, state: C, clients: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Members say how likely their validation parts are in every cluster, so that unseen clients can be told how
        sure their placement is. Under privacy nobody is asked: that would be one more release.
        """
        if self.settings.assignment != "mixture" or self.settings.descriptor.privacy is not None:
            return state
        tried = set() if state.tries is None else set(state.tries.member.tolist())
        members = clients.only([k for k in clients if state.assignment[k] != UNPLACED and k not in tried])
        found = ask_tries(state.extractor, state.clusters, members, engine, self.settings.seed)
        if found is None:
            return state
        tries, sent = found
        told = tries.likelihoods.nbytes + tries.sizes.nbytes + tries.misfit.nbytes
        each = told // max(len(tries.member), 1)
        metrics.send(tries.member.tolist(), up=each, down=sent)
        return replace(state, tries=tries if state.tries is None else state.tries.join(tries))
