"""The engine over clients that live in this process: their data, their slots, and a backend that computes.

A node of a deployment runs the same engine on its one client, so that what is written here is written once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Features, Held, Split
from fedflux.data.holding import ClientHolding, Holding, LooseHolding, NothingToTellError, Pass, Seen
from fedflux.engine.base import (
    Answers,
    Backend,
    Job,
    Key,
    Preparation,
    Presence,
    Query,
    Scores,
    Statistic,
    Trained,
)
from fedflux.engine.predictor import Predictor
from fedflux.engine.rules import Extras, Rule
from fedflux.engine.slots import Kept, Slots
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.training import Training
from fedflux.operations import Arrays

T = TypeVar("T")


class SimulatedEngine:
    """Every client answers, at once and truthfully."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name
        self.device = backend.device
        self.precision = backend.precision
        self.trained_names = backend.trained_names
        self._slots = Slots()

    @property
    def head_names(self) -> frozenset[str]:
        """The tensors of the last layer."""
        return self.backend.head_names

    def initial(self, count: int = 1) -> Stack:
        """Models as they are built."""
        return self.backend.initial(count)

    def train(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        key: Key,
        rule: Rule | None = None,
        extras: Mapping[int, Extras] | None = None,
        preparation: Preparation | None = None,
    ) -> Trained:
        """Local training of every job, from rows of the start or from clients' own models."""
        told: dict[int, Arrays] = {}
        sent: list[Extras] | None = None if extras is None else [extras.get(job.client, {}) for job in jobs]
        if preparation is not None:
            sent, told = self._prepared(preparation, start, cohort, jobs, extras or {})
        if not jobs:
            return Trained((), start.take([]), told)
        begin, rows = self._with_slots(start, jobs)
        trained = self.backend.train(begin, cohort, rows, training, key, rule, sent)
        return Trained(tuple(jobs), self._sent_back(trained, jobs), told)

    def _prepared(
        self,
        preparation: Preparation,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        extras: Mapping[int, Extras],
    ) -> tuple[list[Extras], dict[int, Arrays]]:
        """What every job's rule is given, and what clients tell of it."""
        made: dict[int, Sequence[Extras]] = {}
        told: dict[int, Arrays] = {}
        losses = self.backend.losses(start, cohort, preparation.split)
        for client, own in zip(cohort, losses, strict=True):
            held = ClientHolding(cohort, client)
            made[client], told[client] = preparation.prepare(held, own, extras.get(client, {}))
        return [made[job.client][job.models[0]] for job in jobs], told

    def _with_slots(self, start: Stack, jobs: Sequence[Job]) -> tuple[Stack, Sequence[Job]]:
        """The start with clients' own models behind it, and jobs that name rows alone."""
        if not any(job.own for job in jobs):
            return start, jobs
        own: list[Parameters] = []
        rows = []
        for job in jobs:
            found = []
            for row, slot in zip(job.models, job.own or (None,) * len(job.models), strict=True):
                held = None if slot is None else self._slots.get(slot, job.client)
                found.append(row if held is None else len(start) + len(own))
                own += [] if held is None else [{**start.row(row), **held} if job.layers else held]
            rows.append(Job(job.client, tuple(found)))
        return (Stack.together([start, Stack.join(own)]) if own else start), rows

    def _sent_back(self, trained: Stack, jobs: Sequence[Job]) -> Stack:
        """The trained models that clients send; what they keep goes into their slots."""
        if not any(job.keep for job in jobs):
            return trained
        sent = []
        row = 0
        for job in jobs:
            for slot, back in zip(job.keep or (None,) * len(job.models), job.sent, strict=True):
                if slot is not None:
                    model = trained.row(row)
                    own = {name: model[name] for name in job.layers} if job.layers else model
                    self._slots.put(slot, job.client, own)
                sent += [row] if back else []
                row += 1
        return trained.take(sent)

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Accuracy of every member with each predictor."""
        scores = self.backend.evaluate([self.resolved(one, cohort.ids) for one in predictors], cohort, split)
        if split == "test" and cohort.federation.dataset.some_unlabelled:
            scores[:, [not cohort.federation.scorable(client) for client in cohort]] = np.nan
        return Scores(scores)

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of images: for whoever holds them, never for a server."""
        return self.backend.predict(predictor, features)

    def resolved(self, predictor: Predictor, clients: Sequence[int]) -> Predictor:
        """The same answers from one stack: clients' own models in front, and blends made."""
        if not predictor.slots:
            return predictor
        count = len(predictor.stack)
        own: list[Parameters] = []
        columns = np.zeros((len(clients), len(clients) * len(predictor.slots)))
        for place, slot in enumerate(predictor.slots):
            for k, client in enumerate(clients):
                weight = predictor.weights[k, count + place]
                if weight:
                    held = self._slots.get(slot, client)
                    if held is None:
                        raise NothingToTellError(f"client {client} keeps no model '{slot}'")
                    columns[k, len(own)] = weight
                    own.append({**predictor.stack.row(0), **held} if predictor.layers else held)
        stack = Stack.together([Stack.join(own), predictor.stack]) if own else predictor.stack
        weights = np.concatenate([columns[:, : len(own)], predictor.weights[:, :count]], axis=1)
        if predictor.blended:
            return Predictor.single(stack.average(weights), np.arange(len(clients)))
        return replace(predictor, stack=stack, weights=weights, slots=(), layers=())

    def ask(self, query: Query, clients: "Cohort | Held | Sequence[Features]", models: Stack | None = None) -> Answers:
        """Every client's answer, some clients at a time so that memory does not grow with the cohort."""
        told: list[int] = []
        arrays: list[Arrays] = []
        missing: dict[int, str] = {}
        for features, holdings in self._parts(query, clients):
            sums = [self._passed(one, features, holdings, models) for one in query.passes()]
            losses: Sequence[NDArray[np.float32] | None] = [None] * len(holdings)
            if query.losses is not None:
                assert models is not None
                losses = self.backend.losses(models, _cohort(features), query.losses)
            for k, held in enumerate(holdings):
                try:
                    arrays.append(query.answer(held, Seen([one[k] for one in sums], losses[k])))
                    told.append(held.client)
                except NothingToTellError as nothing:
                    missing[held.client] = str(nothing)
        return Answers(tuple(told), tuple(arrays), missing)

    def _parts(
        self, query: Query, clients: "Cohort | Held | Sequence[Features]"
    ) -> Iterator[tuple["Cohort | Held | Sequence[Features]", Sequence[Holding]]]:
        if isinstance(clients, Cohort):
            splits = {one.split for one in query.passes()} | ({query.losses} if query.losses else set())
            for part in clients.parts(*splits):
                yield part, [ClientHolding(part, client) for client in part]
        elif isinstance(clients, Held):
            for part in clients.cohort.parts(clients.split):
                yield replace(clients, cohort=part), [ClientHolding(part, client) for client in part]
        elif clients:
            yield clients, [LooseHolding(one, k) for k, one in enumerate(clients)]

    def _passed(
        self,
        one: Pass,
        clients: "Cohort | Held | Sequence[Features]",
        holdings: Sequence[Holding],
        models: Stack | None,
    ) -> list[Any]:
        """One pass of every client's examples; None where a client holds none of them."""
        assert models is not None
        chosen = [None if one.chosen is None else one.chosen(held) for held in holdings]
        some = [k for k, held in enumerate(holdings) if _counts(one, held, chosen[k])]
        if not some:
            return [None] * len(holdings)
        features = _features(one, clients, some, [chosen[k] for k in some])
        found = dict(zip(some, self.backend.reduce(models, features, one.statistic), strict=True))
        return [found.get(k) for k in range(len(holdings))]

    def public(self, models: Stack, images: Tensor, statistic: Statistic[T]) -> T:
        """A statistic of images that nobody owns."""
        return self.backend.reduce(models, [Features(images)], statistic)[0]

    def copy_slot(self, clients: Sequence[int], source: str, target: str) -> Sequence[int]:
        """These clients keep the model of one slot in another, too."""
        self._slots.copy(clients, source, target)
        return clients

    def drop_slot(self, clients: Sequence[int], name: str) -> None:
        """Forget the models of a slot."""
        self._slots.drop(clients, name)

    def hand_out(self, predictor: Predictor, cohort: Cohort) -> None:
        """Simulated clients have no use for a model."""

    def present(self, round: int) -> Presence | None:
        """Everyone, always."""
        return None

    def report(self) -> Mapping[str, Any]:
        """How many clients were trained side by side, where the backend counts them."""
        chunk = getattr(self.backend, "chunk", None)
        return {} if chunk is None else {"chunk": chunk}

    def remember(self) -> Mapping[str, Any]:
        """Nothing: clients are always where they were."""
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def kept(self) -> Kept:
        """The clients' slots."""
        return self._slots.kept()

    def restore(self, kept: Kept) -> None:
        """Go on with slots that were saved."""
        self._slots.restore(kept)


def _counts(one: Pass, held: Holding, chosen: NDArray[np.int64] | None) -> bool:
    """Whether a client has anything to pass."""
    return held.size(one.split) > 0 if chosen is None else len(chosen) > 0


def _cohort(clients: "Cohort | Held | Sequence[Features]") -> Cohort:
    if not isinstance(clients, Cohort):
        raise ValueError("losses need labels, and these clients have none")
    return clients


def _features(
    one: Pass,
    clients: "Cohort | Held | Sequence[Features]",
    some: Sequence[int],
    chosen: Sequence[NDArray[np.int64] | None],
) -> Sequence[Features]:
    """What some of the clients pass: described where all of it is, made here where only a choice is."""
    if isinstance(clients, Cohort | Held):
        cohort = clients if isinstance(clients, Cohort) else clients.cohort
        if isinstance(clients, Held) and (one.split != clients.split or (one.labelled and not clients.labelled)):
            raise ValueError(f"these clients tell of their {clients.split} part, without labels: not of {one.split}")
        members = cohort if len(some) == len(cohort) else replace(cohort, ids=tuple(cohort.ids[k] for k in some))
        held: Sequence[Features] = members.held(one.split) if one.labelled else members.features(one.split)
    else:
        if one.labelled:
            raise ValueError("these clients have no labels")
        held = [Features(clients[k].x) for k in some]
    if all(rows is None for rows in chosen):
        return held
    return [each if rows is None else each.take(rows) for each, rows in zip(held, chosen, strict=True)]
