"""FEROMA: no clusters; every client goes on from a mean of all models, weighted by how alike clients' data are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.flux.describe import (
    Extractor,
    asked,
    describe,
    describe_unlabelled,
    fit_extractor,
)
from fedflux.algorithms.flux.trigger import should_cluster
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import averaged, count_round, sizes_of, validated
from fedflux.clustering.scaling import BlockScaler
from fedflux.data import Cohort, Features, Federation
from fedflux.descriptors.wire import client_bytes
from fedflux.engine import Engine, Job, Key, Predictor, Stack, Trained

NO_ZERO = 1e-8
"""What is added to a distance before it is turned into a weight: the authors'."""
HALVES = 2
"""Clients describe one half of their training data and then the other, in turn."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Profiles:
    """How clients are described, and what those said last whose models the server holds."""

    extractor: Extractor
    scaler: BlockScaler
    vectors: Floats
    """A scaled row for every model, NaN where its client has not been described."""


@dataclass(frozen=True, eq=False)
class FeromaState:
    """FedAvg's model until profiles are asked for; then the model that every client sent last."""

    models: Stack
    """One, or one for each of `senders`."""
    clients: Annotated[int, PerClient()]
    round: int = 0
    senders: tuple[int, ...] = ()
    """The clients whose models these are; nobody's while it is FedAvg's."""
    sizes: tuple[float, ...] = ()
    """s: on how many examples each was trained."""
    accuracies: tuple[float, ...] = ()
    profiles: Profiles | None = None
    described: int = 0
    """How often clients have been asked for profiles."""

    @property
    def rows(self) -> dict[int, int]:
        """By client, the row of its model."""
        return {client: row for row, client in enumerate(self.senders)}


@algorithm("feroma")
@dataclass(frozen=True)
class Feroma(Method):
    """Fenoglio et al., "FEROMA", ICLR 2026.

    After some rounds of FedAvg clients send profiles, which are FLUX's descriptors under the model of that moment. In
    every further round client i begins from Σ_k w_ik s_k θ_k / Σ_k w_ik s_k over the models that clients sent last,
    w_ik = 1 / (‖d_i − d_k‖ + 1e-8), d_i its new profile and d_k that with which k's model was trained.

    The authors describe random halves of the validation part, anew in each round: the same data described twice would
    be at distance 0 from itself, so that nobody would ever hear others. Here it is the halves of the training part, in
    turn, so that a client's two last profiles are as far apart as those of two clients of one distribution.
    """

    settings: Settings
    weighting: Literal["profiles", "equal"] = "profiles"
    """`equal`: every w_ik is the same, which is FedAvg."""
    power: float = 1.0
    """What weights are raised to: 4 is an option of the authors' code."""
    least: float = 0.0
    """Weights below this are taken to be zero: 0.04 is an option of the authors' code."""
    several_labels: ClassVar[bool] = True
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (FeromaState,)
    reads: ClassVar[frozenset[str]] = frozenset(
        ("finetune", "cluster_round", "components", "covariance", "bounds", "projector", "redescribe")
    )

    def init(self, federation: Federation, engine: Engine) -> FeromaState:
        """The initial model."""
        return FeromaState(engine.initial(), len(federation))

    def round(self, state: FeromaState, cohort: Cohort, engine: Engine) -> tuple[FeromaState, RoundMetrics]:
        """FedAvg's round, until profiles are asked for; then every member begins from a model that is mixed for it."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        if state.senders:
            state = self._train_apart(state, cohort, engine, metrics)
            metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
            return state, metrics
        trained = self._train(state.models, cohort, [Job(client) for client in cohort], engine, metrics)
        state = replace(state, models=averaged(self.settings, state.models, trained, cohort))
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        scores = [score for score in metrics.validation.values() if not np.isnan(score)]
        state = replace(state, accuracies=(*state.accuracies, float(np.mean(scores)) if scores else 0.0))
        if trained.jobs and self._fires(state):
            metrics.events.append(f"round {state.round}: from now on clients are given models mixed by their profiles")
            state = replace(state, models=trained.models, senders=trained.clients, sizes=_sizes(trained, cohort))
        return state, metrics

    def _fires(self, state: FeromaState) -> bool:
        if self.settings.cluster_round is not None:
            return state.round >= self.settings.cluster_round
        return should_cluster(state.accuracies, self.settings.rounds)

    def _train(
        self, start: Stack, cohort: Cohort, jobs: Sequence[Job], engine: Engine, metrics: RoundMetrics
    ) -> Trained:
        with metrics.timed("training"):
            key = Key(self.settings.seed, cohort.round)
            trained = engine.train(start, cohort, jobs, self.settings.training, key)
        count_round(metrics, cohort, trained, start.model_bytes(), self.settings.training.epochs)
        metrics.missed(cohort.round, trained.missing)
        return trained

    def _train_apart(self, state: FeromaState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FeromaState:
        """Profiles, a model for every member, training; what members send takes the place of what they sent before."""
        due = self.settings.redescribe and (state.round - len(state.accuracies) - 1) % self.settings.redescribe == 0
        before = state.profiles
        state, told = self._describe(state, cohort, engine, metrics) if due else (state, {})
        weights = self._weights(before, told, state, cohort, bool(due))
        mixtures, row = np.unique(weights, axis=0, return_inverse=True)
        start = state.models.average(mixtures)  # a mixture that several are given is made once
        jobs = [Job(client, (m,)) for client, m in zip(cohort, row.reshape(-1).tolist(), strict=True)]
        trained = self._train(start, cohort, jobs, engine, metrics)
        return _with_sent(state, trained, _sizes(trained, cohort), told)

    def _describe(
        self, state: FeromaState, cohort: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> tuple[FeromaState, dict[int, Floats]]:
        """Every member's profile, by client, of the half of its data whose turn it is."""
        half = state.described % HALVES
        asked_now = cohort.chunks(half, half + 1, HALVES)
        known = state.profiles
        with metrics.timed("descriptor"):
            extractor = self._extractor(state, cohort, engine, metrics)
            told = None if extractor is None or not len(asked_now) else describe(extractor, asked_now, engine)
        if extractor is None or told is None:
            return state, {}
        before = extractor.up if known is None else 0
        metrics.send(told.clients, up=before + client_bytes(told.descriptors))
        metrics.count(told.clients, forward=1 / HALVES)
        scaler = BlockScaler.fit(told.descriptors) if known is None else known.scaler
        vectors = scaler.transform(told.descriptors)
        if known is None:
            known = Profiles(extractor, scaler, np.full((len(state.senders), vectors.shape[1]), np.nan))
        state = replace(state, profiles=known, described=state.described + 1)
        return state, dict(zip(told.clients, vectors, strict=True))

    def _extractor(self, state: FeromaState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> Extractor | None:
        """φ: the model that FedAvg ended with, the same for the rest of the run."""
        if state.profiles is not None:
            return state.profiles.extractor
        reference = _mean(state)
        found = fit_extractor(reference, cohort, engine, self.settings.descriptor)
        if found is not None:
            metrics.send(cohort, down=found.down + reference.model_bytes())
            metrics.count(cohort, models_down=1, forward=found.forward)
        return found

    def _weights(
        self, before: Profiles | None, told: Mapping[int, Floats], state: FeromaState, cohort: Cohort, due: bool
    ) -> Floats:
        """w_ik s_k (members × models); between descriptions everyone goes on from its own."""
        sizes = np.maximum(np.array(state.sizes), NO_ZERO)
        found = np.ones((len(cohort), len(sizes)))
        rows = state.rows
        for place, client in enumerate(cohort):
            if self.weighting == "equal":
                continue
            if not due and client in rows:
                found[place] = np.arange(len(sizes)) == rows[client]
            elif before is not None and client in told:
                found[place] = self._alike(told[client], before.vectors)
        return np.asarray(found * sizes)

    def _alike(self, own: Floats, others: Floats) -> Floats:
        """1 / (‖d − d_k‖ + 1e-8), summing to one; all the same where nobody has a profile."""
        weights = np.nan_to_num(1 / (np.linalg.norm(own - others, axis=1) + NO_ZERO), nan=0.0)
        if not weights.any():
            return np.ones(len(others))
        weights = (weights / weights.sum()) ** self.power
        weights = weights / weights.sum()
        kept = np.where(weights >= min(self.least, weights.max()), weights, 0.0)
        return np.asarray(kept / kept.sum())

    def known(self, state: FeromaState, clients: Cohort, engine: Engine) -> Predictor:
        """The model that the client trained last; whoever never did has the mean of all."""
        if not state.senders:
            return Predictor.shared(state.models, np.ones(1), len(clients))
        rows = state.rows
        chosen = np.array([rows.get(client, len(rows)) for client in clients], dtype=np.int64)
        return Predictor.single(Stack.together([state.models, _mean(state)]), chosen)

    def unseen(self, state: FeromaState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The model of the client whose label-free profile is nearest; without profiles, the mean of all."""
        mean, profiles = _mean(state), state.profiles
        everyone = Predictor.shared(mean, np.ones(1), len(features))
        told = None if profiles is None else describe_unlabelled(profiles.extractor, features, engine)
        if profiles is None or told is None or np.isnan(profiles.vectors).all():
            return everyone
        vectors = profiles.scaler.transform(told.descriptors)
        distances = np.nan_to_num(cdist(vectors, profiles.vectors[:, : vectors.shape[1]]), nan=np.inf)
        row = {client: place for place, client in enumerate(asked(features))}
        chosen = np.full(len(features), len(state.models))
        chosen[[row[client] for client in told.clients]] = distances.argmin(axis=1)
        return Predictor.single(Stack.together([state.models, mean]), chosen)

    def assignment(self, state: FeromaState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(state.clients)


def _sizes(trained: Trained, cohort: Cohort) -> tuple[float, ...]:
    return tuple(sizes_of(trained, cohort).tolist())


def _mean(state: FeromaState) -> Stack:
    """One model of all, by size."""
    if not state.senders:
        return state.models
    return state.models.average(np.maximum(np.array([state.sizes]), NO_ZERO))


def _with_sent(state: FeromaState, trained: Trained, sizes: Sequence[float], told: Mapping[int, Floats]) -> FeromaState:
    """The state with what was sent in a round, and the profiles that it was sent with."""
    rows = state.rows
    come = [k for k, client in enumerate(trained.clients) if client not in rows]
    again = [k for k, client in enumerate(trained.clients) if client in rows]
    models = state.models
    if again:
        models = models.put([rows[trained.clients[k]] for k in again], trained.models.take(again))
    if come:
        models = Stack.together([models, trained.models.take(come)])
    senders = (*state.senders, *(trained.clients[k] for k in come))
    held = {**dict(zip(state.senders, state.sizes, strict=True)), **dict(zip(trained.clients, sizes, strict=True))}
    profiles = state.profiles
    if profiles is not None:
        blank = np.full((len(come), profiles.vectors.shape[1]), np.nan)
        vectors = np.concatenate([profiles.vectors, blank])
        for place, client in enumerate(senders):
            if client in told and client in trained.clients:
                vectors[place] = told[client]
        profiles = replace(profiles, vectors=vectors)
    return replace(state, models=models, senders=senders, sizes=tuple(held[k] for k in senders), profiles=profiles)
