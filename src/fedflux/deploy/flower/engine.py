"""Clients behind Flower's Grid as an engine: the session that runs simulated clients runs real nodes with this one.

A question to everyone is one exchange. What comes back is checked here, once, for all methods: whoever sends something
that cannot be is refused by name for the rest of the run, and what it sent is not used.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from json import dumps
from logging import INFO, getLogger
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Features, Federation, Held, Split
from fedflux.data.scaling import Scaling
from fedflux.deploy.flower import checks
from fedflux.deploy.flower.exchange import Exchange, Model, Question, mixtures_of
from fedflux.deploy.flower.records import TOLD, about
from fedflux.deploy.flower.settings import DeploymentSettings
from fedflux.deploy.node.requests import Ask, Asked, CopySlot, Evaluate, HandOut, Hello, Sent, Train, sent_back
from fedflux.deploy.node.roster import Roster
from fedflux.engine import (
    Answers,
    Job,
    Kept,
    Key,
    Predictor,
    Preparation,
    Presence,
    Query,
    Scores,
    SimulatedEngine,
    Stack,
    Statistic,
    Trained,
    Training,
    make_engine,
)
from fedflux.engine.rules import Extras, Rule
from fedflux.engine.stack import Parameters
from fedflux.errors import FedfluxError
from fedflux.files import jsonable
from fedflux.operations import Arrays

T = TypeVar("T")
LOOK = 1.0
"""Seconds between looks at who has come."""


class FlowerEngine:
    """Nodes that come and go; `model` names the model to train, given the shape of their images.

    `run` names the run for nodes that keep something for it; `truth` adds the true clusters, where nodes simulate them.
    """

    name, device, precision = "flower", "cpu", "fp32"

    def __init__(
        self,
        grid: Any,
        settings: DeploymentSettings,
        model: Callable[[tuple[int, ...]], str],
        seed: int,
        run: str,
        truth: Callable[[Federation], Federation] | None = None,
    ) -> None:
        self.settings = settings
        self.roster = Roster(settings.max_examples)
        self.exchange = Exchange(grid, settings.timeout)
        self.events: list[str] = []
        """What happened, in words: refusals and failures."""
        self._model, self._seed, self._run, self._truth = model, seed, run, truth
        self._scaling: Scaling | None = None
        self._done = self._last = 0
        """The last round that a resumed run has behind it, and the last that anybody was asked for."""
        self._wanted = settings.min_nodes
        self._slots: dict[int, set[str]] = {}
        """By client, the slots that it has filled, as far as this engine has seen it."""

    @cached_property
    def _name(self) -> str:
        return self._model(self._federation().input_shape)

    @cached_property
    def _local(self) -> SimulatedEngine:
        """The server's own copy of the model, for what needs no client."""
        return make_engine("loop", self._name, self._federation(), self._seed, "cpu")

    def _federation(self) -> Federation:
        declared = self.roster.federation(self._seed, self.settings.expected_nodes)
        declared = declared if self._scaling is None else declared.scaled(self._scaling)
        return declared if self._truth is None else self._truth(declared)

    @cached_property
    def trained_names(self) -> frozenset[str]:
        """As the server's own model has them."""
        return self._local.trained_names

    @property
    def head_names(self) -> frozenset[str]:
        """As the server's own model has them."""
        return self._local.head_names

    def initial(self, count: int = 1) -> Stack:
        """Models as they are built."""
        return self._local.initial(count)

    def public(self, models: Stack, images: Tensor, statistic: Statistic[T]) -> T:
        """A statistic of images that nobody owns."""
        return self._local.public(models, images, statistic)

    def present(self, round: int) -> Presence:
        """Meet whoever has come; the first time, wait until enough nodes with labels are there, then for one."""
        self.exchange.round, self._last = round, max(round, self._last, self._done)
        wanted = self._wanted if round else 0
        deadline = time.monotonic() + self.settings.wait
        while True:
            ids = list(self.exchange.grid.get_node_ids())
            self._meet(self.roster.unknown(ids), Hello(self._run, max(round, self._done + 1)))
            labelled, unlabelled = (self.roster.present(ids, labels) for labels in (True, False))
            if len(labelled) >= wanted:
                self._wanted = 1
                federation = self._federation()
                return Presence(federation if round else federation.at(self._last), labelled, unlabelled)
            if time.monotonic() > deadline:
                raise FedfluxError(f"{len(labelled)} of {wanted} labelled nodes came within {self.settings.wait:.0f} s")
            time.sleep(LOOK)

    def _meet(self, strangers: Iterable[int], hello: Hello) -> None:
        replies, failed = self.exchange.ask(dict.fromkeys(strangers, Question(hello)))
        failures = (f"node {id} failed in hello: {reason}" for id, reason in failed.items())
        self._tell(line for line in failures if line not in self.events)
        self._tell(self.roster.admit({id: about(content) for id, content in replies.items()}))

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
        """Local training, each client's jobs in one message; of a job's models those that it keeps do not come back."""
        models = Model.all(start)
        of = {client: tuple(job for job in jobs if job.client == client) for client in cohort}
        by, before = Sent.maybe(rule), Sent.maybe(preparation)
        questions = {}
        for client, own in of.items():
            rows = sorted({row for job in own for row in job.models}) if before is None else range(len(models))
            if rows:
                place = {row: k for k, row in enumerate(rows)}
                local = tuple(replace(job, models=tuple(place[row] for row in job.models)) for job in own)
                names, given = tuple(models[row].name for row in rows), (extras or {}).get(client, {})
                request = Train(self._asked(cohort, client), names, local, training, key, by, before, given)
                spared = frozenset(names) - request.begins_from(self._slots.get(client, set()))
                questions[client] = Question(request, {models[row].name: models[row] for row in rows}, spared)

        def read(client: int, content: Any) -> tuple[list[Parameters], Arrays]:
            known, count = checks.known_of(cohort, client), sum(map(sent_back, of[client]))
            offered = {name: model.params for name, model in questions[client].models.items()}
            models = checks.models_of(content, count, known.examples[training.split], offered)
            return models, {} if preparation is None else checks.arrays_of(content, preparation, known, TOLD)

        found, missing = self._ask("train", questions, read)
        for client in found:
            self._slots.setdefault(client, set()).update(slot for job in of[client] for slot in job.keep if slot)
        done = tuple(job for job in jobs if job.client in found)
        rest = {client: iter(rows) for client, (rows, _) in found.items()}
        trained = [next(rest[job.client]) for job in done for _ in range(sent_back(job))]
        told = {client: told for client, (_, told) in found.items()}
        return Trained(done, Stack.join(trained) if trained else start.take([]), told, missing)

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """The score of every member with each predictor; a model that several of them mix goes to a client once."""
        stacks = {id(one.stack): Model.all(one.stack) for one in predictors}
        questions = {}
        for place, client in enumerate(cohort):
            models, mixtures = mixtures_of([(one, stacks[id(one.stack)]) for one in predictors], place)
            request = Evaluate(self._asked(cohort, client), tuple(models), split, mixtures)
            questions[client] = Question(request, models)

        def read(client: int, content: Any) -> NDArray[np.float64]:
            empty = not cohort.federation.size(client, split)
            return checks.scores_of(content, len(predictors), empty, cohort.federation.task.several)

        found, missing = self._ask("evaluate", questions, read)
        values = np.full((len(predictors), len(cohort)), np.nan)
        for place, client in enumerate(cohort):
            values[:, place] = found.get(client, np.nan)
        return Scores(values, missing)

    def ask(self, query: Query, clients: "Cohort | Held | Sequence[Features]", models: Stack | None = None) -> Answers:
        """Every client's answer to a query; answers that are wrong beside the others' are refused too."""
        if not isinstance(clients, Cohort | Held):
            return self._local.ask(query, clients, models)
        cohort = clients if isinstance(clients, Cohort) else clients.cohort
        features = None if isinstance(clients, Cohort) or clients.labelled else clients.split
        sent, rows = Sent.of(query), [] if models is None else Model.all(models)
        names, needed = tuple(row.name for row in rows), {row.name: row for row in rows}
        questions = {k: Question(Ask(self._asked(cohort, k), names, sent, features), needed) for k in cohort}

        def read(client: int, content: Any) -> Arrays:
            return checks.arrays_of(content, query, checks.known_of(cohort, client))

        found, missing = self._ask(sent.name, questions, read)
        for client, fault in zip(list(found), query.faults(list(found.values())), strict=True):
            if fault is not None:
                missing[client] = self._refuse(client, fault)
                del found[client]
        refused = frozenset(client for client in missing if client in self.roster.refused)
        return Answers(tuple(found), tuple(found.values()), missing, refused)

    def scale(self, scaling: Scaling) -> None:
        """Every question says so from now on."""
        self._scaling = scaling

    def copy_slot(self, clients: Sequence[int], source: str, target: str) -> Sequence[int]:
        """These clients keep the model of one slot in another, too; returns those that said so."""
        round, scaling = self.exchange.round, self._scaling
        asked = {k: Asked(self._run, self._name, k, round, scaling=scaling) for k in clients}
        questions = {client: Question(CopySlot(one, source, target)) for client, one in asked.items()}
        copied = list(self._ask("copy_slot", questions, lambda client, content: None)[0])
        for client in copied:
            self._slots.setdefault(client, set()).add(target)
        return copied

    def drop_slot(self, clients: Sequence[int], name: str) -> None:
        """Not worth an exchange: nodes hold two models a slot at most."""

    def hand_out(self, predictor: Predictor, cohort: Cohort) -> None:
        """Clients that want a model are given what they answer with, and told where they were placed."""
        models, placed, questions = Model.all(predictor.stack), predictor.placement, {}
        for place, client in enumerate(cohort):
            if client in self.roster.nodes and self.roster.nodes[client].keeps:
                needed, (mixture,) = mixtures_of([(predictor, models)], place)
                told: dict[str, Any] = {}
                if placed is not None:
                    told = placed.take([place]).as_records([client])[0]
                request = HandOut(self._asked(cohort, client), tuple(needed), mixture, dumps(jsonable(told)))
                questions[client] = Question(request, needed)
        self._ask("hand_out", questions, lambda client, content: None)

    def _asked(self, cohort: Cohort, client: int) -> Asked:
        federation = cohort.federation
        who = (self._run, self._name, client, cohort.round or self._last)
        return Asked(*who, federation.most, federation.part, self._scaling)

    def _ask(
        self, what: str, questions: Mapping[int, Question], read: Callable[[int, Any], T]
    ) -> tuple[dict[int, T], dict[int, str]]:
        """By client, in order: what those say whose answers are right, and why there is nothing of the others."""
        there, nodes = set(self.exchange.grid.get_node_ids()), self.roster.nodes
        missing = {client: self.roster.refused[client] for client in questions if client in self.roster.refused}
        for client in questions.keys() - missing:
            if client not in nodes or nodes[client].id not in there:
                missing[client] = "it is not there"
        asked = {client: question for client, question in questions.items() if client not in missing}
        replies, failed = self.exchange.ask({nodes[client].id: question for client, question in asked.items()})
        found: dict[int, T] = {}
        for client, question in asked.items():
            id = nodes[client].id
            told = about(replies.get(id, {}))
            if id in failed or "declined" in told:
                missing[client] = failed[id] if id in failed else str(told["declined"])
                word = "failed in" if id in failed else "declined"  # the latter is its own decision, no fault
                self._tell([f"{nodes[client]} {word} {what}: {missing[client]}"])
                continue
            try:
                if "diverged" in told:
                    raise checks.FaultError(f"its update is not finite: {told['diverged']}")
                found[client] = checks.answer_of(replies[id], question.request, partial(read, client))
            except checks.FaultError as fault:
                missing[client] = self._refuse(client, str(fault))
        return found, missing

    def _refuse(self, client: int, reason: str) -> str:
        """Leave a client out from now on."""
        self.roster.refused[client] = reason
        self._tell([f"refused {self.roster.nodes[client]}: {reason}"])
        return reason

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.events.append(line)
            getLogger("flwr").log(INFO, "fedflux: %s", line)

    def report(self) -> Mapping[str, Any]:
        """Bytes on the wire and exchanges by round (0: after the last one), and who was refused and why."""
        return {**self.exchange.report(), **self.roster.report()}

    def remember(self) -> Mapping[str, Any]:
        """The round, the settings that count, who is who, who was refused, and what was sent so far."""
        told = {"round": self.exchange.round, "settings": self.settings.counting(), "traffic": self.exchange.remember()}
        return {**told, **self.roster.remember()}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with them."""
        for name, value in self.settings.counting().items():
            if memory["settings"][name] != value:
                raise FedfluxError(f"this run was begun with {name} {memory['settings'][name]}, not {value}")
        self._done = int(memory["round"])
        self.roster.recall(memory)
        self.exchange.recall(memory["traffic"])

    def kept(self) -> Kept:
        """Nothing: what clients keep, nodes keep."""
        return Kept()

    def restore(self, kept: Kept) -> None:
        """There is nothing to restore."""
