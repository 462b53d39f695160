"""FedDrift: a client whose accuracy drops leaves for a model of its own; models that serve each other's data merge."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedflux.algorithms.base import UNPLACED, Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import aggregate, averaged, by_membership, validated
from fedflux.algorithms.shared.membership import own_model, unplaced, with_placed
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.streams import stream

SAMPLE_BATCHES = 21
"""Accuracies are measured on at most so many batches of a client's data: the authors'."""


@dataclass(frozen=True, eq=False)
class FedDriftState:
    """The models, whose data trained each, and what every client last measured."""

    models: Stack
    assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    accuracy: Annotated[NDArray[np.float64], PerClient(np.nan)]
    """a_i: the accuracy that a drop is measured from, NaN before a client's first step."""
    release: Annotated[NDArray[np.int64], PerClient(0)]
    """The round in which a client's isolation ends."""
    history: Annotated[NDArray[np.int64], PerClient(0, axis=1)]
    """In how many rounds each model was each client's (models × clients)."""
    used: NDArray[np.int64]
    """The last round in which each model was somebody's."""
    round: int = 0


@algorithm("feddrift")
@dataclass(frozen=True)
class FedDrift(Method):
    """Jothimurugesan et al., "Federated Learning under Distributed Concept Drift", AISTATS 2023.

    Every round is a time step; the clustering runs at its start, one round of FedAvg per model follows. The defaults
    are the authors' recommended H_A_F_1_06_0: distance A, one model a client at first, W = 1, δ = δ' = 0.06.
    """

    settings: Settings
    start: Literal["own", "one"] = "own"
    """`own` (F): a client begins with a model of its own, merged from the next round on; `one` (C): all share one."""
    delta: float = 0.06
    """δ: a client has drifted when its accuracy drops by more than this."""
    merge_delta: float | None = None
    """δ': models merge that lose at most this much on each other's data; None: δ."""
    isolation: int = 1
    """W: for so many rounds a client that left is alone with its new model."""
    max_models: int | None = None
    """None: as many as there are clients; FLUX's comparison has 10."""
    past_data: bool = True
    """Whether a model goes on being trained on the data that was given to it in earlier rounds. The union over rounds
    is a set, so that with data that stays the same it is what the client holds. Clients keep no data of the past: where
    it does change, False trains and compares a model by the clients that it has now."""
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (FedDriftState,)
    reads: ClassVar[frozenset[str]] = frozenset(("finetune",))

    def init(self, federation: Federation, engine: Engine) -> FedDriftState:
        """One model, nobody placed."""
        count = len(federation)
        nobody = np.full(count, UNPLACED, dtype=np.int64)
        zeros = np.zeros(count, dtype=np.int64)
        return FedDriftState(engine.initial(), nobody, np.full(count, np.nan), zeros, zeros[None], zeros[:1])

    def round(self, state: FedDriftState, cohort: Cohort, engine: Engine) -> tuple[FedDriftState, RoundMetrics]:
        """Look for drift, merge, then train every model by the data that was given to it."""
        before = state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        sample = cohort.limited(SAMPLE_BATCHES * self.settings.training.batch_size)
        members, first = cohort, (state.assignment == UNPLACED).all()
        with metrics.timed("clustering"):
            if first:
                state = self._begin(state, cohort)
            else:
                candidates = self._candidates(state)
                told, accuracies = self._accuracies(state, candidates, cohort, sample, engine, metrics)
                members = cohort.only(told)
                state, left = self._drift(state, candidates, accuracies, members)
                old = ~np.isin(candidates, left)
                state = self._merge(state, candidates[old], accuracies[old], sample.only(told), metrics)
        state, trained = self._train(state, members, engine, metrics)
        state = self._measure(state, cohort, sample.only(trained), engine, metrics)
        state = before if first and not trained else state  # nobody took a first step: they take it another time
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _begin(self, state: FedDriftState, cohort: Cohort) -> FedDriftState:
        """t = 0: the members' first models, all of them the initial one."""
        count = min(len(cohort), self._most(state)) if self.start == "own" else 1
        chosen = np.arange(len(cohort)) % count
        history, used = np.zeros((count, len(state.assignment)), dtype=np.int64), np.ones(count, dtype=np.int64)
        state = replace(state, models=state.models.take([0] * count), history=history, used=used)
        return _given(state, cohort, chosen)

    def _most(self, state: FedDriftState) -> int:
        return len(state.assignment) if self.max_models is None else self.max_models

    def _candidates(self, state: FedDriftState) -> NDArray[np.int64]:
        """The models that clients may join: those that no isolated client is alone with."""
        isolated = state.assignment[(state.release > state.round) & (state.assignment != UNPLACED)]
        free = np.setdiff1d(np.arange(len(state.models)), isolated)
        return free if len(free) else np.arange(len(state.models))

    def _accuracies(
        self,
        state: FedDriftState,
        candidates: NDArray[np.int64],
        cohort: Cohort,
        sample: Cohort,
        engine: Engine,
        metrics: RoundMetrics,
    ) -> tuple[list[int], NDArray[np.float64]]:
        """A[m][i]: every candidate on every member's data (candidates × members), and the members that answered."""
        predictors = [Predictor.single(state.models, np.full(len(sample), m)) for m in candidates]
        scores = engine.evaluate(predictors, sample, "train")
        told = [client for client in sample if client not in scores.missing]
        share = sample.sizes("train").sum() / max(cohort.sizes("train").sum(), 1)
        metrics.send(cohort, down=len(candidates) * state.models.model_bytes())
        metrics.count(cohort, models_down=len(candidates))
        metrics.count(told, forward=len(candidates) * share)
        metrics.missed(state.round, scores.missing)
        return told, np.nan_to_num(scores.values[:, np.isin(sample.ids, told)])

    def _drift(
        self,
        state: FedDriftState,
        candidates: NDArray[np.int64],
        accuracies: NDArray[np.float64],
        cohort: Cohort,
    ) -> tuple[FedDriftState, list[int]]:
        """Every member joins its best model b, or leaves with a copy of it when a_i − A[b][i] > δ.

        A member without a first step has no accuracy to drop from; with a model a client at first it gets a copy too.
        The rows of the new models come back with the state.
        """
        members = np.array(cohort.ids, dtype=np.int64)
        best = candidates[accuracies.argmax(axis=0)]
        now = accuracies.max(axis=0)
        staying = state.release[members] > state.round
        first = state.assignment[members] == UNPLACED
        leaving = ~staying & ((state.accuracy[members] - now > self.delta) | (first & (self.start == "own")))
        chosen = np.where(staying, state.assignment[members], best)
        in_use = {*chosen.tolist(), *np.delete(state.assignment, members).tolist()}
        sources, rows, left = list(range(len(state.models))), [], []
        for k in np.flatnonzero(leaving):
            row = self._new_row(state, len(sources), in_use)
            if row is None:
                continue  # every model is in use: it joins b after all
            sources[row : row + 1] = [int(best[k])]
            chosen[k] = row
            in_use.add(row)
            rows.append(row)
            left.append(k)
        accuracy, release = state.accuracy.copy(), state.release.copy()
        accuracy[members[~staying]] = np.where(first, np.nan, now)[~staying]
        release[members[left]] = state.round + self.isolation
        added = len(sources) - len(state.models)
        history, used = np.pad(state.history, ((0, added), (0, 0))), np.pad(state.used, (0, added))
        history[rows] = 0
        state = replace(state, models=state.models.take(sources), history=history, used=used)
        return _given(replace(state, accuracy=accuracy, release=release), cohort, chosen), rows

    def _new_row(self, state: FedDriftState, count: int, in_use: set[int]) -> int | None:
        """The next row; when there may be no more, that of the model used least recently; None where all are in use."""
        if count < self._most(state):
            return count
        idle = np.array([m for m in range(len(state.models)) if m not in in_use])
        if not len(idle):
            return None
        oldest = idle[state.used[idle] == state.used[idle].min()]
        return int(stream(self.settings.seed, "feddrift reuse", state.round, len(in_use)).choice(oldest))

    def _merge(
        self,
        state: FedDriftState,
        candidates: NDArray[np.int64],
        accuracies: NDArray[np.float64],
        sample: Cohort,
        metrics: RoundMetrics,
    ) -> FedDriftState:
        """Complete linkage of d_pq = max(acc[p][p] − acc[p][q], acc[q][q] − acc[q][p], 0), cut at δ'.

        acc[p][q] is the accuracy of p on the data given to q, as far as its holders are present; models without any are
        not compared. A group becomes its first model, averaged by the number of (client, round) pairs behind each.
        """
        held = self._data(state)[candidates][:, list(sample.ids)] * sample.sizes("train")
        compared = held.sum(axis=1) > 0
        rows, held = candidates[compared], held[compared]
        if len(rows) < 2:
            return state
        pooled = accuracies[compared] @ held.T / held.sum(axis=1)
        loss = pooled.diagonal()[:, None] - pooled
        distance = np.maximum(np.maximum(loss, loss.T), 0)
        cut = self.delta if self.merge_delta is None else self.merge_delta
        groups = fcluster(linkage(squareform(distance, checks=False), "complete"), cut, criterion="distance")
        target = np.arange(len(state.models))
        for group in np.unique(groups):
            target[rows[groups == group]] = rows[groups == group].min()
        kept = len(np.unique(target))
        if kept < len(target):
            metrics.events.append(f"round {state.round}: {len(target)} models merge into {kept}")
            state = merged(state, target)
        return state

    def _data(self, state: FedDriftState) -> NDArray[np.bool_]:
        """Whose data each model is trained on (models × clients)."""
        if self.past_data:
            return np.asarray(state.history > 0)
        return np.asarray(state.assignment == np.arange(len(state.models))[:, None])

    def _train(
        self, state: FedDriftState, cohort: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> tuple[FedDriftState, list[int]]:
        """FedAvg of every model that is somebody's now, by all members whose data was given to it; and who trained."""
        active, data = np.unique(state.assignment[list(cohort.ids)]), self._data(state)
        jobs = [Job(client, (int(m),)) for client in cohort for m in active if data[m, client]]
        with metrics.timed("training"):
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, cohort, jobs, self.settings.training, key)
            models = averaged(self.settings, state.models, trained, cohort)
        asked = [job.client for job in jobs]
        metrics.send(asked, down=models.model_bytes())
        metrics.send(trained.clients, up=models.model_bytes())
        metrics.count(asked, models_down=1)
        metrics.count(trained.clients, models_up=1, training=self.settings.training.epochs)
        metrics.missed(state.round, trained.missing)
        return replace(state, models=models), list(trained.clients)

    def _measure(
        self, state: FedDriftState, cohort: Cohort, sample: Cohort, engine: Engine, metrics: RoundMetrics
    ) -> FedDriftState:
        """After a client's first step: the accuracy that later ones are compared with."""
        fresh = sample.only([client for client in sample if np.isnan(state.accuracy[client])])
        if not len(fresh):
            return state
        found = engine.evaluate([self.known(state, fresh, engine)], fresh, "train").by_client(fresh)
        accuracy = state.accuracy.copy()
        accuracy[list(found)] = list(found.values())
        whole = sum(cohort.federation.size(client, "train") for client in fresh)
        metrics.send(fresh, down=state.models.model_bytes())
        metrics.count(fresh, models_down=1)
        metrics.count(found, forward=fresh.sizes("train").sum() / max(whole, 1))
        return replace(state, accuracy=accuracy)

    def complete(self, state: FedDriftState, clients: Cohort, engine: Engine) -> tuple[FedDriftState, RoundMetrics]:
        """Whoever never took part joins the model that is best on its training data."""
        metrics = RoundMetrics()
        late = clients.only(unplaced(state.assignment, clients))
        if not len(late):
            return state, metrics
        sample = late.limited(SAMPLE_BATCHES * self.settings.training.batch_size)
        everything = np.arange(len(state.models))
        with metrics.timed("clustering"):
            told, accuracies = self._accuracies(state, everything, late, sample, engine, metrics)
        return replace(state, assignment=with_placed(state.assignment, told, accuracies.argmax(axis=0))), metrics

    def known(self, state: FedDriftState, clients: Cohort, engine: Engine) -> Predictor:
        """The client's model of the last round."""
        return own_model(state.models, state.assignment, clients)

    def unseen(self, state: FedDriftState, features: Sequence[Features], engine: Engine) -> Predictor:
        """Accuracy needs labels: all models, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))

    def assignment(self, state: FedDriftState) -> NDArray[np.int64]:
        """The model of every client, −1 where it has none yet."""
        return state.assignment


def merged(state: FedDriftState, target: NDArray[np.int64]) -> FedDriftState:
    """Every model goes into model `target[m]`; models are averaged by their histories, which add up."""
    kept, index = np.unique(target, return_inverse=True)
    history = np.zeros((len(kept), state.history.shape[1]), dtype=np.int64)
    np.add.at(history, index, state.history)
    used = np.zeros(len(kept), dtype=np.int64)
    np.maximum.at(used, index, state.used)
    models = aggregate(state.models.take(kept), state.models, index, state.history.sum(axis=1).astype(np.float64))
    assignment = np.where(state.assignment == UNPLACED, UNPLACED, index[state.assignment])
    return replace(state, models=models, assignment=assignment, history=history, used=used)


def _given(state: FedDriftState, cohort: Cohort, chosen: NDArray[np.int64]) -> FedDriftState:
    """The members' data of this round goes to these models."""
    history, used = state.history.copy(), state.used.copy()
    history[chosen, list(cohort.ids)] += 1
    used[chosen] = state.round
    return replace(state, assignment=with_placed(state.assignment, cohort, chosen), history=history, used=used)
