"""FLUX (Algorithms 1 and 2): FedAvg until C(r) fires, then one model per cluster of descriptors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Described, RoundMetrics, Settings, aggregate, by_membership
from fedflux.algorithms.flux.describe import Extractor, describe, describe_unlabelled, fit_extractor, too_few
from fedflux.algorithms.flux.general_model import (
    MEMORY,
    SHARES,
    apart,
    beside,
    elected,
    hear,
    jobs_beside,
    jobs_of,
    votes,
)
from fedflux.algorithms.flux.inheritance import heritage, inherited
from fedflux.algorithms.flux.trigger import should_cluster
from fedflux.algorithms.shared.momentum import carried_on
from fedflux.clustering import Clusters, find_clusters, takes, with_centroids
from fedflux.data import Cohort, Features, Federation
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import client_bytes, from_arrays, join_arrays, to_arrays
from fedflux.engine import Engine, Key, Predictor, Stack, Verdict
from fedflux.errors import FedfluxError

UNPLACED = -1
GROWTH = 1.5
"""Clusters are found anew when so many times as many clients have described themselves: more clients see finer."""


@dataclass(frozen=True, eq=False)
class FluxState:
    """The models (one until clustering, then one a cluster), who is where, and what places newcomers."""

    models: Stack
    assignment: NDArray[np.int64]
    round: int = 0
    accuracies: tuple[float, ...] = ()
    cluster_round: int | None = None
    extractor: Extractor | None = None
    clusters: Clusters | None = None
    described: tuple[int, ...] = ()
    """The ids of the clients behind `descriptors`, in order of description."""
    descriptors: Mapping[str, NDArray[np.generic]] | None = None
    """As they were sent, which is an eighth of what is computed with: there may be very many."""
    clustered: int = 0
    """How many of the described clients the clusters were found from; later ones were placed."""
    general: Stack | None = None
    """One model for everyone, trained beside the clusters', where the method keeps one."""
    velocity: Stack | None = None
    """How the models, and the general one behind them, have been moving, where the server has momentum."""
    ballot: tuple[float, ...] = ()
    """How well each part of the general model's in the answer served the members' validation parts so far."""

    @property
    def share(self) -> float:
        """The general model's part in the answer to a client."""
        return elected(self.ballot)


def with_general_model(predictor: Predictor, state: FluxState) -> Predictor:
    """Clients that fit no cluster are answered by all clusters' models, each as heavy as its share of the clients."""
    assert predictor.verdict is not None
    mixture = by_membership(state.models, state.assignment, len(predictor.weights)).weights
    return replace(predictor, weights=np.where(predictor.verdict.novel[:, None], mixture, predictor.weights))


@dataclass(frozen=True)
class Flux:
    """The paper's method; `grouping` says who decides the clusters.

    `found`: the clusterer, told nothing (`flux`); `prior`: the clusterer, told the true number M (`flux-prior`);
    `true`: the true clusters themselves (`oracle`).
    """

    settings: Settings
    grouping: Literal["found", "prior", "true"] = "found"
    revision: ClassVar[int] = 6

    @property
    def uses_truth(self) -> bool:
        """Only when told how many clusters there are, or which."""
        return self.grouping != "found" or self.settings.true_count

    def init(self, federation: Federation, engine: Engine) -> FluxState:
        """One model, nobody placed."""
        if self.uses_truth and federation.truth is None:
            raise FedfluxError("these clients have no true clusters: oracle, flux-prior and --clusters true need them")
        return FluxState(engine.initial(), np.full(len(federation), UNPLACED, dtype=np.int64))

    def round(self, state: FluxState, cohort: Cohort, engine: Engine) -> tuple[FluxState, RoundMetrics]:
        """Place newcomers, train every member from its cluster's model, average per cluster; cluster if C(r) fires."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        if state.clusters is not None:
            state = self._place_newcomers(state, cohort, engine, metrics)
            state = self._refine(state, cohort.federation, metrics)
        state = self._weigh(state, cohort, engine, metrics)
        state = self._train(state, cohort, engine, metrics)
        scores = engine.evaluate(self.known(state, cohort, engine), cohort, "validation")
        metrics.validation = dict(zip(cohort, scores.tolist(), strict=True))
        if state.clusters is None:
            known = scores[~np.isnan(scores)]
            state = replace(state, accuracies=(*state.accuracies, float(known.mean()) if len(known) else 0.0))
            if self._fires(state):
                state = self._cluster(state, cohort, engine, metrics)
        return state, metrics

    def _fires(self, state: FluxState) -> bool:
        if self.settings.cluster_round is not None:
            return state.round >= self.settings.cluster_round
        return should_cluster(state.accuracies, self.settings.rounds)

    def _train(self, state: FluxState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FluxState:
        """Every member trains its cluster's model and, where there is one, the general one."""
        cluster = np.maximum(state.assignment[list(cohort.ids)], 0)
        training, key, sizes = self.settings.training, Key(self.settings.seed, state.round), cohort.sizes("train")
        general = state.general
        with metrics.timed("training"):
            if general is None:
                trained = engine.train(state.models, cohort, jobs_of(cohort, cluster), training, key)
            else:
                jobs = jobs_beside(cohort, cluster, len(state.models))
                both = engine.train(beside(state.models, general), cohort, jobs, training, key)
                trained, general = apart(both, sizes)
            models = self._average(state, trained, cluster, sizes)
            after = replace(state, models=models, general=general)
            after = self._with_momentum(state, after, cluster[sizes > 0], engine)
        each = 1 if general is None else 2
        metrics.send(cohort, up=each * models.model_bytes(), down=each * models.model_bytes())
        metrics.count(cohort, models_down=each, models_up=each, training=each * training.epochs)
        return after

    def _with_momentum(
        self, before: FluxState, after: FluxState, cluster: NDArray[np.int64], engine: Engine
    ) -> FluxState:
        """The models that somebody trained in this round, and the general one, carried on by the server's momentum."""
        beta, count = self.settings.server_momentum, len(after.models)
        if not beta:
            return after
        was, now, rows = before.models, after.models, np.unique(cluster)
        if before.general is not None and after.general is not None:
            was, now, rows = beside(was, before.general), beside(now, after.general), np.append(rows, count)
        moved, velocity = carried_on(was, now, before.velocity, beta, rows, engine.trained_names)
        general = None if after.general is None else moved.take([count])
        return replace(after, models=moved.take(range(count)), general=general, velocity=velocity)

    def _average(
        self, state: FluxState, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64]
    ) -> Stack:
        """The clusters' models from what their members trained."""
        return aggregate(state.models, trained, cluster, sizes)

    def _weigh(self, state: FluxState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FluxState:
        """How far the general model is heard, where clients are answered by both: members vote before they train, so
        that their clusters' models know them no better than those of clients that stay away.
        """
        if not self.settings.beside or state.general is None:
            return state
        own = Predictor.single(state.models, state.assignment[list(cohort.ids)])
        before = np.array(state.ballot) if state.ballot else np.zeros(len(SHARES))
        found = replace(state, ballot=tuple((MEMORY * before + votes(own, state.general, cohort, engine)).tolist()))
        if found.share != state.share:
            metrics.events.append(f"round {state.round}: the general model's part in answers is {found.share:g}")
        return found

    def _told_by(self, state: FluxState, cohort: Cohort) -> Cohort:
        """The data that members describe: all that they hold."""
        return cohort

    def _cluster(self, state: FluxState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FluxState:
        """Descriptors of the members under the current global model, then clusters that all start from it."""
        with metrics.timed("descriptor"):
            extractor = fit_extractor(state.models, cohort, engine, self.settings.descriptor)
            told = self._told_by(state, cohort)
            descriptors = describe(extractor, told, engine)
        metrics.send(told, up=extractor.up + client_bytes(descriptors), down=extractor.down)
        metrics.count(told, forward=2 if extractor.scatter_bytes else 1)
        with metrics.timed("clustering"):
            clusters = self._group(descriptors, cohort.federation, told.ids)
        assignment = state.assignment.copy()
        assignment[list(told.ids)] = clusters.labels
        count = len(clusters.centroids)
        metrics.events.append(f"round {state.round}: {count} clusters of {len(told)} clients")
        if self.grouping != "true" and (few := too_few(descriptors, self.settings.descriptor)):
            hint = f"{few:.0f} examples a class: --projector discriminant may see finer"
            metrics.events.append(f"round {state.round}: {hint}")
        return replace(
            state,
            models=state.models.take([0] * count),
            assignment=assignment,
            cluster_round=state.round,
            extractor=extractor,
            clusters=clusters,
            described=told.ids,
            descriptors=to_arrays(descriptors),
            clustered=len(told),
            general=state.models if self.settings.beside else None,
            velocity=inherited(state.velocity, np.ones((count + self.settings.beside, 1))),
        )

    def _refine(self, state: FluxState, federation: Federation, metrics: RoundMetrics) -> FluxState:
        """Cluster everyone who is described by now, once they are many more or nobody is left to come.

        A new cluster goes on from the models that its members had.
        """
        count = len(state.described)
        everyone = count == len(federation) > state.clustered
        due = everyone or count >= GROWTH * state.clustered
        if state.descriptors is None or not (due and takes(self.settings.clusterer, count)):
            return state
        with metrics.timed("clustering"):
            clusters = self._group(from_arrays(state.descriptors), federation, state.described)
        shares = heritage(len(state.models), state.assignment[list(state.described)], clusters)
        models, velocity = state.models.average(shares), inherited(state.velocity, shares)
        assignment = state.assignment.copy()
        assignment[list(state.described)] = clusters.labels
        metrics.events.append(f"round {state.round}: {len(models)} clusters found anew of {count} clients")
        state = replace(state, models=models, velocity=velocity)
        return replace(state, assignment=assignment, clusters=clusters, clustered=count)

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

    def _place_newcomers(self, state: FluxState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FluxState:
        """Clients that take part for the first time after clustering get the cluster they fit best."""
        unplaced = replace(cohort, ids=tuple(client for client in cohort if state.assignment[client] == UNPLACED))
        told = self._told_by(state, unplaced)
        newcomers = list(told.ids)
        if not newcomers or state.extractor is None or state.descriptors is None:
            return state
        with metrics.timed("descriptor"):
            descriptors, placed = self._place(state, told, engine)
        assignment = state.assignment.copy()
        assignment[newcomers] = placed
        down = state.extractor.down + state.models.model_bytes()
        metrics.send(newcomers, up=client_bytes(descriptors), down=down)
        metrics.count(newcomers, models_down=1, forward=1)
        return replace(
            state,
            assignment=assignment,
            described=(*state.described, *newcomers),
            descriptors=join_arrays([state.descriptors, to_arrays(descriptors)]),
        )

    def _place(self, state: FluxState, newcomers: Cohort, engine: Engine) -> tuple[Descriptors, NDArray[np.int64]]:
        assert state.extractor is not None
        assert state.clusters is not None
        descriptors = describe(state.extractor, newcomers, engine)
        if self.grouping == "true":
            return descriptors, self._true_clusters(state, newcomers, descriptors)
        return descriptors, state.clusters.place(descriptors, self.settings.calibrated_assignment)

    def _true_clusters(self, state: FluxState, newcomers: Cohort, descriptors: Descriptors) -> NDArray[np.int64]:
        """The oracle puts a newcomer with its true cluster, or where nobody of it was described, where it fits best."""
        assert state.clusters is not None
        truth = newcomers.federation.truth
        assert truth is not None
        placed = state.clusters.place(descriptors, self.settings.calibrated_assignment)
        cluster_of = {int(truth[client]): int(state.assignment[client]) for client in state.described}
        return np.array([cluster_of.get(int(truth[k]), int(p)) for k, p in zip(newcomers, placed, strict=True)])

    def complete(self, state: FluxState, clients: Cohort, engine: Engine) -> tuple[FluxState, RoundMetrics]:
        """Clients that never took part are placed like late ones; without clusters everyone shares the one model."""
        metrics = RoundMetrics()
        if state.clusters is None:
            return replace(state, assignment=np.zeros_like(state.assignment)), metrics
        return self._place_newcomers(state, clients, engine, metrics), metrics

    def known(self, state: FluxState, clients: Cohort, engine: Engine) -> Predictor:
        """The model of the cluster that each client's training data was put in, and the general one as it is heard."""
        if state.clusters is None:
            return Predictor.shared(state.models, np.ones(1), len(clients))
        own = Predictor.single(state.models, np.maximum(state.assignment[list(clients.ids)], 0))
        return hear(own, state.general, state.share)

    def unseen(self, state: FluxState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The model of the cluster whose P(X) fits best (Algorithm 2); whoever fits none is told so."""
        if state.clusters is None or state.extractor is None:
            return Predictor.shared(state.models, np.ones(1), len(features))
        descriptors = describe_unlabelled(state.extractor, features, engine)
        how = self.settings
        found = state.clusters.judge(descriptors, how.novelty_level, how.calibrated_assignment)
        verdict = Verdict(found.nearest, found.novel, found.score, found.confidence)
        predictor = replace(Predictor.single(state.models, found.nearest, found.distances), verdict=verdict)
        predictor = with_general_model(predictor, state) if how.novel == "global" else predictor
        return hear(predictor, state.general, state.share)

    def assignment(self, state: FluxState) -> NDArray[np.int64]:
        """The cluster of every client, −1 where it has none yet."""
        return state.assignment

    def described(self, state: FluxState) -> Described | None:
        """Everyone who sent a descriptor."""
        if state.descriptors is None or state.clusters is None:
            return None
        clients = np.array(state.described, dtype=np.int64)
        return Described(clients, state.descriptors, state.assignment[clients], state.clusters)
