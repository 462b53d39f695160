"""Methods that cluster clients once, by a summary of their data, and then run FedAvg inside every cluster."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, Method, PerClient, RoundMetrics
from fedflux.algorithms.shared.averaging import averaged, count_round, validated
from fedflux.algorithms.shared.membership import own_model, unplaced, with_placed
from fedflux.data import Cohort, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Query, Stack


class Summary(Query, Protocol):
    """A question whose answer is one array of single precision, which sums up a client's data."""

    name: ClassVar[str]
    """Of the array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""


@dataclass(frozen=True, eq=False)
class OneShotState:
    """The models (one, until the first members are clustered), who is in which cluster, and everyone's summary."""

    models: Stack
    assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    summaries: Annotated[NDArray[np.float32], PerClient(0)]
    """(clients × the summary's shape), zeros where not yet asked."""
    round: int = 0


class OneShot(Method):
    """A method says what sums up a client's data, how far summaries are apart and what clusters follow."""

    states: ClassVar[tuple[type, ...]] = (OneShotState,)

    @abstractmethod
    def question(self, federation: Federation) -> Summary:
        """What every client is asked once."""

    @abstractmethod
    def distances(self, mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Between all pairs of summaries (mine × theirs)."""

    @abstractmethod
    def clustered(self, distances: NDArray[np.float64]) -> NDArray[np.int64]:
        """The clusters of the first clients, from the distances between them, numbered from 0."""

    @abstractmethod
    def nearest(self, distances: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The clusters that newcomers join (rows: newcomers, columns: clients that have these clusters)."""

    def init(self, federation: Federation, engine: Engine) -> OneShotState:
        """One model, nobody placed."""
        summaries = np.zeros((len(federation), *self.question(federation).shape), dtype=np.float32)
        return OneShotState(engine.initial(), np.full(len(federation), UNPLACED, dtype=np.int64), summaries)

    def round(self, state: OneShotState, cohort: Cohort, engine: Engine) -> tuple[OneShotState, RoundMetrics]:
        """Cluster the first members, place later ones, then FedAvg inside every cluster."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        state = self._place(state, cohort, engine, metrics)
        members = cohort.only(set(cohort) - set(unplaced(state.assignment, cohort)))
        jobs = [Job(client, (int(state.assignment[client]),)) for client in members]
        with metrics.timed("training"):
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, members, jobs, self.settings.training, key)
            models = averaged(self.settings, state.models, trained, cohort)
        state = replace(state, models=models)
        metrics.send(cohort)
        count_round(metrics, members, trained, models.model_bytes(), self.settings.training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _place(self, state: OneShotState, clients: Cohort, engine: Engine, metrics: RoundMetrics) -> OneShotState:
        """Ask newcomers for their summaries; the first are clustered, later ones join the nearest cluster."""
        newcomers = clients.only(unplaced(state.assignment, clients))
        if not len(newcomers):
            return state
        question = self.question(clients.federation)
        with metrics.timed("descriptor"):
            answers = engine.ask(question, newcomers)
        metrics.missed(state.round, answers.missing)
        if not len(answers):
            return state
        told, summaries = list(answers.clients), state.summaries.copy()
        summaries[told] = answers.stacked(question.name)
        metrics.send(told, up=summaries[0].nbytes)
        with metrics.timed("clustering"):
            placed = np.flatnonzero(state.assignment != UNPLACED)
            models = state.models
            if len(placed):
                labels = self.nearest(self.distances(summaries[told], summaries[placed]), state.assignment[placed])
            else:
                labels = self.clustered(self.distances(summaries[told], summaries[told]))
                models = models.take([0] * (labels.max() + 1))
                metrics.events.append(f"round {state.round}: {len(models)} clusters of {len(told)} clients")
        assignment = with_placed(state.assignment, told, labels)
        return replace(state, models=models, assignment=assignment, summaries=summaries)

    def complete(self, state: OneShotState, clients: Cohort, engine: Engine) -> tuple[OneShotState, RoundMetrics]:
        """Whoever never took part is asked for its summary now."""
        metrics = RoundMetrics()
        return self._place(state, clients, engine, metrics), metrics

    def known(self, state: OneShotState, clients: Cohort, engine: Engine) -> Predictor:
        """The model of the client's cluster."""
        return own_model(state.models, state.assignment, clients)

    def assignment(self, state: OneShotState) -> NDArray[np.int64]:
        """The cluster of every client, −1 where it was not asked yet."""
        return state.assignment


def as_they_appear(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters, numbered as they first appear."""
    _, first, index = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[index.reshape(-1)], dtype=np.int64)
