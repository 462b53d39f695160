"""The rounds of FLUX (Algorithm 1): FedAvg until C(r) fires, then one model per cluster of descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, RoundMetrics, Settings
from fedflux.algorithms.flux.answers import FluxAnswers
from fedflux.algorithms.flux.describe import Told, describe, describe_all, too_few
from fedflux.algorithms.flux.general_model import MEMORY, SHARES, jobs_of, votes
from fedflux.algorithms.flux.inheritance import inherited, shares_of_members
from fedflux.algorithms.flux.placing import ask_tries
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.algorithms.flux.trigger import should_cluster
from fedflux.algorithms.shared.averaging import aggregate
from fedflux.algorithms.shared.momentum import carried_on
from fedflux.clustering import Clusters, find_clusters, takes, with_centroids
from fedflux.data import Cohort, Federation
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import client_bytes, from_arrays, join_arrays, to_arrays
from fedflux.engine import Engine, Key, Predictor, Stack
from fedflux.errors import FedfluxError

GROWTH = 1.5
"""Clusters are found anew when so many times as many clients have described themselves: more clients see finer."""
C = TypeVar("C", bound=Clustered)


@dataclass(frozen=True)
class FluxRounds(FluxAnswers[C], Generic[C]):
    """The rounds of FLUX and its kin; `grouping` says who decides the clusters.

    `found`: the clusterer, told nothing; `prior`: the clusterer, told the true number M; `true`: the true clusters.
    """

    settings: Settings
    grouping: Literal["found", "prior", "true"] = "found"

    @property
    def uses_truth(self) -> bool:
        """Only when told how many clusters there are, or which."""
        return self.grouping != "found" or self.settings.true_count

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
        return state, metrics

    def _warm_up(self, state: WarmUp, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> WarmUp | C:
        """A round of FedAvg; clusters of those present once C(r) fires."""
        training, key = self.settings.training, Key(self.settings.seed, state.round)
        with metrics.timed("training"):
            jobs = jobs_of(cohort, np.zeros(len(cohort), dtype=np.int64))
            trained = engine.train(state.models, cohort, jobs, training, key)
            members = cohort.only(trained.clients)
            sizes = members.sizes("train")
            zeros = np.zeros(len(members), dtype=np.int64)
            models = (self.settings.average or aggregate)(state.models, trained.models, zeros, sizes)
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
        return (self._cluster(state, cohort, engine, metrics) or state) if self._fires(state) else state

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
        return should_cluster(state.accuracies, self.settings.rounds)

    def _before_training(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Newcomers are placed, clusters refined, and the general model's part in answers is voted on."""
        state = self._place_newcomers(state, cohort, engine, metrics)
        state = self._refine(state, cohort.federation, metrics)
        return self._weigh(state, cohort, engine, metrics)

    def _train(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Every member that is placed trains its cluster's model and, where there is one, the general one."""
        placed = cohort.only([client for client in cohort if state.assignment[client] != UNPLACED])
        training, key, count = self.settings.training, Key(self.settings.seed, state.round), len(state.models)
        general = None if state.general is None else count
        with metrics.timed("training"):
            jobs = jobs_of(placed, state.assignment[list(placed.ids)], general)
            trained = engine.train(state.answering, placed, jobs, training, key)
            members = placed.only(trained.clients)
            cluster, sizes = state.assignment[list(members.ids)], members.sizes("train")
            own = trained.models if general is None else trained.models.take(np.arange(len(members)))
            after = replace(state, models=self._average(state, own, cluster, sizes))
            if state.general is not None and sizes.any():
                rest = np.arange(len(members), 2 * len(members))
                everyone = np.zeros(len(members), dtype=np.int64)
                rule = self.settings.average or aggregate
                general_model = rule(state.general, trained.models.take(rest), everyone, sizes)
                after = replace(after, general=general_model)
            after = self._with_momentum(state, after, cluster[sizes > 0], engine)
        self._count_training(placed, members, after.models.model_bytes(), 1 if general is None else 2, metrics)
        metrics.send(cohort)
        metrics.missed(state.round, trained.missing)
        return after

    def _with_momentum(self, before: C, after: C, cluster: NDArray[np.int64], engine: Engine) -> C:
        """The models that somebody trained in this round, and the general one, carried on by the server's momentum."""
        beta, count = self.settings.server_momentum, len(after.models)
        if not beta:
            return after
        rows = np.unique(cluster)
        if before.general is not None and len(rows):
            rows = np.append(rows, count)
        moved, velocity = carried_on(
            before.answering, after.answering, before.velocity, beta, rows, engine.trained_names
        )
        general = None if after.general is None else moved.take([count])
        return replace(after, models=moved.take(range(count)), general=general, velocity=velocity)

    def _average(self, state: C, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64]) -> Stack:
        """The clusters' models from what their members trained."""
        return (self.settings.average or aggregate)(state.models, trained, cluster, sizes)

    def _measure(self, state: C, cohort: Cohort, engine: Engine) -> dict[int, float]:
        """The members' validation accuracies after the round."""
        return engine.evaluate([self.known(state, cohort, engine)], cohort, "validation").by_client(cohort)

    def _weigh(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """How far the general model is heard, where clients are answered by both: members vote before they train, so
        that their clusters' models know them no better than those of clients that stay away.
        """
        if not self.settings.general_model or state.general is None:
            return state
        own = Predictor.single(state.models, np.maximum(state.assignment[list(cohort.ids)], 0))
        before = np.array(state.ballot) if state.ballot else np.zeros(len(SHARES))
        found = MEMORY * before + votes(own, state.answering, cohort, engine)
        weighed = replace(state, ballot=tuple(found.tolist()))
        if weighed.share != state.share:
            metrics.events.append(f"round {state.round}: the general model's part in answers is {weighed.share:g}")
        return weighed

    def _told_by(self, round: int, cohort: Cohort) -> Cohort:
        """The data that members describe: all that they hold."""
        return cohort

    def _cluster(self, state: WarmUp, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C | None:
        """Descriptors of the members under the current global model, then clusters that all start from it."""
        with metrics.timed("descriptor"):
            told_by = self._told_by(state.round, cohort)
            found = describe_all(state.models, cohort, told_by, engine, self.settings.descriptor)
        if found is None:
            words = "nobody could be described; clustering waits for the next round"
            metrics.events.append(f"round {state.round}: {words}")
            return None
        extractor, told = found
        metrics.send(told.clients, up=extractor.up + client_bytes(told.descriptors), down=extractor.down)
        metrics.count(told.clients, forward=2 if extractor.scatter_bytes else 1)
        with metrics.timed("clustering"):
            clusters = self._group(told.descriptors, cohort.federation, told.clients)
        assignment = np.full(len(cohort.federation), UNPLACED, dtype=np.int64)
        assignment[list(told.clients)] = clusters.labels
        count = len(clusters.centroids)
        metrics.events.append(f"round {state.round}: {count} clusters of {len(told.clients)} clients")
        if self.grouping != "true" and (few := too_few(told.descriptors, self.settings.descriptor)):
            hint = f"{few:.0f} examples a class: --projector discriminant may see finer"
            metrics.events.append(f"round {state.round}: {hint}")
        general = self.settings.general_model
        return self._begin(
            Clustered(
                models=state.models.take([0] * count),
                assignment=assignment,
                round=state.round,
                cluster_round=state.round,
                extractor=extractor,
                clusters=clusters,
                described=told.clients,
                descriptors=to_arrays(told.descriptors),
                clustered=len(told.clients),
                general=state.models if general else None,
                velocity=inherited(state.velocity, np.ones((count + general, 1))),
            ),
            state,
            metrics,
        )

    def _begin(self, found: Clustered, before: WarmUp, metrics: RoundMetrics) -> C:
        """The state that the method goes on with from its first clusters."""
        raise TypeError(f"{type(self).__name__} does not say what it goes on with")

    def _refine(self, state: C, federation: Federation, metrics: RoundMetrics) -> C:
        """Cluster everyone who is described by now, once they are many more or nobody is left to come.

        A new cluster goes on from the models that its members had.
        """
        count = len(state.described)
        due = count == federation.expected > state.clustered or count >= GROWTH * state.clustered
        if not (self.settings.regroup and due and takes(self.settings.clusterer, count)):
            return state
        with metrics.timed("clustering"):
            clusters = self._group(from_arrays(state.descriptors), federation, state.described)
        shares = shares_of_members(len(state.models), state.assignment[list(state.described)], clusters)
        models, velocity = state.models.average(shares), inherited(state.velocity, shares)
        assignment = state.assignment.copy()
        assignment[list(state.described)] = clusters.labels
        metrics.events.append(f"round {state.round}: {len(models)} clusters found anew of {count} clients")
        state = replace(state, models=models, velocity=velocity)
        return replace(state, assignment=assignment, clusters=clusters, clustered=count, tries=None)

    def _group(self, descriptors: Descriptors, federation: Federation, ids: Sequence[int]) -> Clusters:
        """Clusters of the clients with these ids, in the order of their descriptors."""
        if not self.uses_truth:
            return find_clusters(descriptors, self.settings.clusterer)
        truth = federation.truth
        assert truth is not None
        members = truth[list(ids)]
        if self.grouping == "true":
            return with_centroids(descriptors, members)
        return find_clusters(descriptors, replace(self.settings.clusterer, clusters=len(np.unique(members))))

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
