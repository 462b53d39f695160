"""Engines for the battery of checks: one loses answers, one notes what leaves clients, one packs every request."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedflux.data import Cohort, Features, Federation, Held, Split
from fedflux.engine import (
    Answers,
    Engine,
    Job,
    Kept,
    Key,
    Predictor,
    Preparation,
    Presence,
    Query,
    Scores,
    Stack,
    Statistic,
    Trained,
    Training,
)
from fedflux.engine.rules import Extras, Rule
from fedflux.operations import pack, unpack
from fedflux.streams import stream

T = TypeVar("T")
Asked = Cohort | Held | Sequence[Features]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class WrappedEngine:
    """Another engine, every call of which is handed on; subclasses change what they are there for."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.name = inner.name
        self.device = inner.device
        self.precision = inner.precision
        self.trained_names = inner.trained_names

    @property
    def head_names(self) -> frozenset[str]:
        """Handed on."""
        return self.inner.head_names

    def initial(self, count: int = 1) -> Stack:
        """Handed on."""
        return self.inner.initial(count)

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
        """Handed on."""
        return self.inner.train(start, cohort, jobs, training, key, rule, extras, preparation)

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Handed on."""
        return self.inner.evaluate(predictors, cohort, split)

    def ask(self, query: Query, clients: Asked, models: Stack | None = None) -> Answers:
        """Handed on."""
        return self.inner.ask(query, clients, models)

    def public(self, models: Stack, images: Tensor, statistic: Statistic[T]) -> T:
        """Handed on."""
        return self.inner.public(models, images, statistic)

    def copy_slot(self, clients: Sequence[int], source: str, target: str) -> Sequence[int]:
        """Handed on."""
        return self.inner.copy_slot(clients, source, target)

    def drop_slot(self, clients: Sequence[int], name: str) -> None:
        """Handed on."""
        self.inner.drop_slot(clients, name)

    def hand_out(self, predictor: Predictor, cohort: Cohort) -> None:
        """Handed on."""
        self.inner.hand_out(predictor, cohort)

    def present(self, round: int) -> Presence | None:
        """Handed on."""
        return self.inner.present(round)

    def report(self) -> Mapping[str, Any]:
        """Handed on."""
        return self.inner.report()

    def remember(self) -> Mapping[str, Any]:
        """Handed on."""
        return self.inner.remember()

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Handed on."""
        self.inner.recall(memory)

    def kept(self) -> Kept:
        """Handed on."""
        return self.inner.kept()

    def restore(self, kept: Kept) -> None:
        """Handed on."""
        self.inner.restore(kept)


class LossyEngine(WrappedEngine):
    """Loses a share of all answers, drawn call by call and client by client, after the clients have done their work."""

    def __init__(self, inner: Engine, share: float, seed: int = 0) -> None:
        super().__init__(inner)
        self._share = share
        self._seed = seed
        self._calls = 0

    def _lost(self, clients: Iterable[int]) -> dict[int, str]:
        self._calls += 1
        draws = {k: stream(self._seed, "lost answers", self._calls, k).random() for k in sorted(set(clients))}
        return {client: "dropped" for client, draw in draws.items() if draw < self._share}

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
        """Training, of which some clients' results are lost; what they keep, they keep."""
        trained = self.inner.train(start, cohort, jobs, training, key, rule, extras, preparation)
        lost = self._lost(trained.clients)
        told = {client: arrays for client, arrays in trained.told.items() if client not in lost}
        done = tuple(job for job in trained.jobs if job.client not in lost)
        models = trained.models.take(_rows(trained.jobs, lost))
        return Trained(done, models, told, {**trained.missing, **lost})

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Accuracies, of which some clients' are lost."""
        scores = self.inner.evaluate(predictors, cohort, split)
        lost = self._lost(cohort)
        values = np.where(np.isin(cohort.ids, list(lost)), np.nan, scores.values)
        return Scores(values, {**scores.missing, **lost})

    def ask(self, query: Query, clients: Asked, models: Stack | None = None) -> Answers:
        """Answers, of which some are lost."""
        answers = self.inner.ask(query, clients, models)
        lost = self._lost(answers.clients)
        left = [k for k, client in enumerate(answers.clients) if client not in lost]
        return replace(
            answers,
            clients=tuple(answers.clients[k] for k in left),
            arrays=tuple(answers.arrays[k] for k in left),
            missing={**answers.missing, **lost},
        )


def _rows(jobs: Sequence[Job], lost: Collection[int]) -> list[int]:
    """The rows of the models that were sent back by clients whose answers are not lost."""
    rows: list[int] = []
    row = 0
    for job in jobs:
        sent = sum(job.sent)
        rows += [] if job.client in lost else range(row, row + sent)
        row += sent
    return rows


@dataclass(frozen=True)
class Left:
    """An array that left a client: in answer to what, its name and shape, and how many examples the client holds."""

    request: str
    name: str
    client: int
    shape: tuple[int, ...]
    examples: frozenset[int]


class RecordingEngine(WrappedEngine):
    """Notes every array that leaves a client, but for models."""

    def __init__(self, inner: Engine, left: list[Left]) -> None:
        super().__init__(inner)
        self._left = left

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
        """Training, and a note of what was told besides."""
        trained = self.inner.train(start, cohort, jobs, training, key, rule, extras, preparation)
        for client, arrays in trained.told.items():
            self._note(type(preparation).__name__, client, arrays, _held(cohort.federation, client))
        return trained

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Accuracies, and a note of each client's."""
        scores = self.inner.evaluate(predictors, cohort, split)
        for client, column in zip(cohort, scores.values.T, strict=True):
            self._note("evaluate", client, {"accuracies": column}, _held(cohort.federation, client))
        return scores

    def ask(self, query: Query, clients: Asked, models: Stack | None = None) -> Answers:
        """Answers, and a note of each."""
        answers = self.inner.ask(query, clients, models)
        for client, arrays in zip(answers.clients, answers.arrays, strict=True):
            self._note(type(query).__name__, client, arrays, _examples(clients, client))
        return answers

    def _note(self, request: str, client: int, arrays: Mapping[str, Any], examples: frozenset[int]) -> None:
        self._left += [Left(request, name, client, array.shape, examples) for name, array in arrays.items()]


def _examples(clients: Asked, client: int) -> frozenset[int]:
    """How many examples of any kind a client holds that was asked."""
    if isinstance(clients, Cohort):
        return _held(clients.federation, client)
    if isinstance(clients, Held):
        return _held(clients.cohort.federation, client)
    return frozenset((len(clients[client]), len(clients[client].x)))


def _held(federation: Federation, client: int) -> frozenset[int]:
    """The sizes of a client's parts, as it was asked and as they are, with copies and without."""
    views = (federation, federation.origin)
    counts = {count(client, split) for one in views for split in SPLITS for count in (one.size, one.stored)}
    return frozenset(counts) - {0, 1}


class PackingEngine(WrappedEngine):
    """Packs and unpacks every operation as if clients were elsewhere: what is not registered is refused."""

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
        """Training by a rule and a preparation that travelled."""
        made = _travelled(preparation)
        return self.inner.train(start, cohort, jobs, training, key, _travelled(rule), extras, made)

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Accuracies with adaptations that travelled."""
        sent = [replace(one, adaptation=_travelled(one.adaptation)) for one in predictors]
        return self.inner.evaluate(sent, cohort, split)

    def ask(self, query: Query, clients: Asked, models: Stack | None = None) -> Answers:
        """Answers to a query that travelled."""
        return self.inner.ask(_travelled(query), clients, models)


def _travelled(operation: Any) -> Any:
    return None if operation is None else unpack(pack(operation))
