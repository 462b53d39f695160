"""Clients behind Flower's Grid as an engine: the session that runs simulated clients runs real nodes with this one.

A question to everyone is one exchange. What comes back is checked here, once, for all methods: whoever sends something
that cannot be is refused by name for the rest of the run, and what it sent is not used.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from json import dumps
from logging import INFO, getLogger
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Cohort, Features, Federation, Held, Split
from fedflux.data.holding import About
from fedflux.deploy.flower.exchange import Exchange, FaultError, Model, Question, about, check
from fedflux.deploy.flower.records import ANSWER, TOLD, model_arrays, parameters, unpack, unpack_models
from fedflux.deploy.flower.requests import Ask, Asked, CopySlot, Evaluate, HandOut, Hello, Mixture, Sent, Train, begins
from fedflux.deploy.flower.roster import SPLITS, Roster
from fedflux.deploy.flower.settings import DeploymentSettings
from fedflux.engine import Answers, Job, Kept, Key, Predictor, Preparation, Presence, Query, Scores, SimulatedEngine
from fedflux.engine import Stack, Statistic, Trained, Training, make_engine
from fedflux.engine.rules import Extras, Rule
from fedflux.engine.stack import Parameters
from fedflux.errors import FedfluxError
from fedflux.files import jsonable
from fedflux.operations import Arrays

T = TypeVar("T")
LOOK = 1.0
"""Seconds between looks at who has come."""


class FlowerEngine:
    """Nodes that come and go; `model` decides which model is trained from the shape of their images.

    `run` names the run for nodes that keep something for it; `truth` adds the true clusters where nodes simulate them.
    """

    name, device, precision = "flower", "cpu", "fp32"

    def __init__(
        self,
        grid: Any,
        settings: DeploymentSettings,
        model: Callable[[tuple[int, int, int]], str],
        seed: int,
        run: str,
        truth: Callable[[Federation], Federation] | None = None,
    ) -> None:
        self.settings = settings
        self.roster = Roster(settings.max_examples)
        self.exchange = Exchange(grid, settings.timeout)
        self.events: list[str] = []
        """What happened, in words: refusals and failures."""
        self._model = model
        self._seed = seed
        self._run = run
        self._truth = truth
        self._done = 0
        """The last round that a run that goes on has behind it."""
        self._met = False
        self._slots: dict[int, set[str]] = {}

    @cached_property
    def _local(self) -> SimulatedEngine:
        """The server's own copy of the model, for what needs no client."""
        federation = self._federation()
        return make_engine("loop", self._model(federation.image_shape), federation, self._seed, "cpu")

    @property
    def trained_names(self) -> frozenset[str]:
        """As the server's own model has them."""
        return self._local.trained_names

    def initial(self, count: int = 1) -> Stack:
        """Models as they are built."""
        return self._local.initial(count)

    def public(self, models: Stack, images: Tensor, statistic: Statistic[T]) -> T:
        """A statistic of images that nobody owns."""
        return self._local.public(models, images, statistic)

    def present(self, round: int) -> Presence:
        """Meet whoever has come; before the first round, and before any, wait until enough nodes with labels are there."""
        self.exchange.round = round
        wanted = 0 if round == 0 else 1 if self._met else self.settings.min_nodes
        deadline = time.monotonic() + self.settings.wait
        while True:
            ids = list(self.exchange.grid.get_node_ids())
            hello = Question(Hello(self._run, max(round, self._done + 1)))
            replies, failed = self.exchange.ask(dict.fromkeys(self.roster.unknown(ids), hello))
            self._tell(f"node {id} failed in hello: {reason}" for id, reason in failed.items())
            self._tell(self.roster.admit({id: about(content) for id, content in replies.items()}))
            labelled, unlabelled = (self.roster.present(ids, labels) for labels in (True, False))
            if len(labelled) >= wanted:
                self._met = True
                return Presence(self._federation(), labelled, unlabelled)
            if time.monotonic() > deadline:
                raise FedfluxError(f"{len(labelled)} of {wanted} labelled nodes came within {self.settings.wait:.0f} s")
            time.sleep(LOOK)

    def _federation(self) -> Federation:
        declared = self.roster.federation(self._seed, self.settings.expected_nodes)
        return declared if self._truth is None else self._truth(declared)

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
        """Local training of every job, each client's in one message."""
        models = Model.all(start)
        of = {client: tuple(job for job in jobs if job.client == client) for client in cohort}
        questions = {}
        for client, own in of.items():
            if not own and preparation is None:
                continue
            used = sorted({row for job in own for row in job.models})
            rows = range(len(models)) if preparation is not None else used
            place = {row: k for k, row in enumerate(rows)}
            local = tuple(replace(job, models=tuple(place[row] for row in job.models)) for job in own)
            names = tuple(models[row].name for row in rows)
            request = Train(
                *(self._asked(cohort, client), names, local, training, key),
                *(Sent.of(rule), Sent.of(preparation), (extras or {}).get(client, {})),
            )
            begun = {names[row] for job in local for row, slot in begins(job) if not self._has(client, slot)}
            spared = frozenset(names) - (set(names) if preparation is not None else begun)
            questions[client] = Question(request, {models[row].name: models[row] for row in rows}, spared)

        def read(client: int, content: Any) -> tuple[list[Parameters], Arrays]:
            size = cohort.federation.size(client, training.split)
            if (told := about(content).get("examples")) != size:
                raise FaultError(f"it counts {told} examples, but said {size:,} before")
            sent = sum(keep is None for job in of[client] for keep in job.keep or (None,) * len(job.models))
            arrays = unpack(content[TOLD]) if TOLD in content else {}
            fault = None if preparation is None else preparation.fault(arrays, _about(cohort, client))
            if fault is not None:
                raise FaultError(fault)
            return _models(unpack_models(content[ANSWER]) if sent else {}, sent, start), arrays

        found, missing = self._ask("train", questions, read)
        for client in found:
            self._slots.setdefault(client, set()).update(s for job in of[client] for s in job.keep if s is not None)
        done = tuple(job for job in jobs if job.client in found)
        rest = {client: list(rows) for client, (rows, _) in found.items()}
        rows = [rest[job.client].pop(0) for job in done for keep in job.keep or (None,) * len(job.models) if not keep]
        trained = Stack.join(rows) if rows else start.take([])
        return Trained(done, trained, {client: told for client, (_, told) in found.items()}, missing)

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> Scores:
        """Accuracy of every member with each predictor; a model that several of them mix goes to a client once."""
        stacks = {id(one.stack): Model.all(one.stack) for one in predictors}
        questions = {}
        for place, client in enumerate(cohort):
            models, mixtures = _mixtures([(one, stacks[id(one.stack)], place) for one in predictors])
            request = Evaluate(self._asked(cohort, client), tuple(models), split, mixtures)
            questions[client] = Question(request, models)

        def read(client: int, content: Any) -> NDArray[np.float64]:
            found = unpack(content[ANSWER])["accuracy"].astype(np.float64)
            empty = not cohort.federation.size(client, split)
            right = np.isnan(found) if empty else (found >= 0) & (found <= 1)
            if found.shape != (len(predictors),) or not right.all():
                raise FaultError(f"its accuracy {found.tolist()} is outside 0 to 1")
            return found

        found, missing = self._ask("evaluate", questions, read)
        nothing = np.full(len(predictors), np.nan)
        return Scores(np.stack([found.get(client, nothing) for client in cohort], axis=1), missing)

    def ask(self, query: Query, clients: "Cohort | Held | Sequence[Features]", models: Stack | None = None) -> Answers:
        """Every client's answer to a query; answers that are wrong beside the others' are refused too."""
        if not isinstance(clients, Cohort | Held):
            return self._local.ask(query, clients, models)
        cohort, features = (clients, None) if isinstance(clients, Cohort) else (clients.cohort, clients.split)
        sent, needed = Sent.of(query), {model.name: model for model in Model.all(models)}
        assert sent is not None
        names = tuple(model.name for model in Model.all(models))
        questions = {
            client: Question(Ask(self._asked(cohort, client), names, sent, features), needed) for client in cohort
        }

        def read(client: int, content: Any) -> Arrays:
            arrays = unpack(content[ANSWER])
            fault = query.fault(arrays, _about(cohort, client))
            if fault is not None:
                raise FaultError(fault)
            return arrays

        found, missing = self._ask(sent.name, questions, read)
        for client, fault in zip(list(found), query.faults(list(found.values())), strict=True):
            if fault is not None:
                missing[client] = self._refuse(client, fault)
                del found[client]
        refused = frozenset(client for client in missing if client in self.roster.refused)
        return Answers(tuple(found), tuple(found.values()), missing, refused)

    def copy_slot(self, clients: Sequence[int], source: str, target: str) -> None:
        """These clients keep the model of one slot in another, too."""
        round = self.exchange.round
        asked = {client: Asked(self._run, self._name, client, round) for client in clients}
        questions = {client: Question(CopySlot(one, source, target)) for client, one in asked.items()}
        for client in self._ask("copy_slot", questions, lambda client, content: None)[0]:
            self._slots.setdefault(client, set()).add(target)

    def hand_out(self, predictor: Predictor, cohort: Cohort) -> None:
        """Clients that want a model are given what they answer with, and told where they were placed."""
        models, questions = Model.all(predictor.stack), {}
        for place, client in enumerate(cohort):
            if client in self.roster.nodes and self.roster.nodes[client].keeps:
                needed, (mixture,) = _mixtures([(predictor, models, place)])
                placed = predictor.placement
                told = {} if placed is None else placed.take([place]).as_records([client])[0]
                told |= {} if placed is None else {"distance": placed.distance[place]}
                words = dumps(jsonable(told))
                request = HandOut(self._asked(cohort, client), tuple(needed), mixture, words)
                questions[client] = Question(request, needed)
        self._ask("hand_out", questions, lambda client, content: None)

    @cached_property
    def _name(self) -> str:
        return self._model(self._federation().image_shape)

    def _asked(self, cohort: Cohort, client: int) -> Asked:
        federation = cohort.federation
        return Asked(self._run, self._name, client, cohort.round, federation.most, federation.part)

    def _has(self, client: int, slot: str | None) -> bool:
        return slot is not None and slot in self._slots.get(client, ())

    def _ask(
        self, what: str, questions: Mapping[int, Question], read: Callable[[int, Any], T]
    ) -> tuple[dict[int, T], dict[int, str]]:
        """By client, in order: what those say whose answers are right, and why there is nothing of the others."""
        there = set(self.exchange.grid.get_node_ids())
        missing = {client: self.roster.refused[client] for client in questions if client in self.roster.refused}
        ids = {client: node.id for client, node in self.roster.nodes.items() if client not in missing}
        missing |= {client: "it is not there" for client in questions.keys() - missing if ids.get(client) not in there}
        asked = {ids[client]: (client, question) for client, question in questions.items() if client not in missing}
        replies, failed = self.exchange.ask({id: question for id, (_, question) in asked.items()})
        found: dict[int, T] = {}
        for id, (client, question) in asked.items():
            told = about(replies.get(id, {}))
            if id in failed or "declined" in told:
                missing[client] = failed.get(id) or str(told["declined"])
                self._tell([f"{self.roster.nodes[client]} failed in {what}: {missing[client]}"])
            elif "diverged" in told:
                missing[client] = self._refuse(client, f"its update is not finite: {told['diverged']}")
            else:
                try:
                    found[client] = check(replies[id], question, lambda content, client=client: read(client, content))
                except FaultError as fault:
                    missing[client] = self._refuse(client, str(fault))
        return found, missing

    def _refuse(self, client: int, reason: str) -> str:
        """Leave a client out from now on; what it sent is not used."""
        self.roster.refused[client] = reason
        self._tell([f"refused {self.roster.nodes[client]}: {reason}"])
        return reason

    def _tell(self, lines: Any) -> None:
        for line in lines:
            self.events.append(line)
            getLogger("flwr").log(INFO, "fedflux: %s", line)

    def report(self) -> Mapping[str, Any]:
        """Bytes on the wire and exchanges by round (0: after the last one), and who was refused and why."""
        traffic = {str(round): count for round, count in sorted(self.exchange.traffic.items())}
        columns = zip(("wire_down", "wire_up", "exchanges"), range(3), strict=True)
        counts = {name: {round: count[k] for round, count in traffic.items()} for name, k in columns}
        return {**counts, "refused": {str(client): reason for client, reason in sorted(self.roster.refused.items())}}

    def remember(self) -> Mapping[str, Any]:
        """Numbers that nodes were given, refusals, and what was sent so far."""
        return {
            "round": self.exchange.round,
            "clients": len(self._federation()) if self.roster.nodes else 0,
            "numbers": {str(id): client for id, client in self.roster.numbers.items()},
            "refused": {str(client): reason for client, reason in self.roster.refused.items()},
            "traffic": {str(round): list(count) for round, count in self.exchange.traffic.items()},
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with them."""
        self._done, self.roster.clients = int(memory["round"]), int(memory["clients"])
        self.roster.numbers |= {int(id): int(client) for id, client in memory["numbers"].items()}
        self.roster.refused |= {int(client): str(reason) for client, reason in memory["refused"].items()}
        before = {int(round): list(count) for round, count in memory["traffic"].items()}
        self.exchange.traffic = {**before, **self.exchange.traffic}

    def kept(self) -> Kept:
        """Nothing: what clients keep, nodes keep."""
        return Kept()

    def restore(self, kept: Kept) -> None:
        """There is nothing to restore."""


def _about(cohort: Cohort, client: int) -> About:
    federation = cohort.federation
    sizes = {split: federation.size(client, split) for split in SPLITS}
    return About(sizes, federation.classes, federation.most is None and federation.part is None)


def _mixtures(
    predictors: Sequence[tuple[Predictor, Sequence[Model], int]],
) -> tuple[dict[str, Model], tuple[Mixture, ...]]:
    """One client's rows of predictors, and the models that they mix: those of weight zero are left out."""
    rows = [(one, models, one.weights[place]) for one, models, place in predictors]
    needed = {
        models[k].name: models[k] for one, models, row in rows for k in np.flatnonzero(row[: len(models)]).tolist()
    }
    mixtures = []
    for one, models, row in rows:
        weights = dict.fromkeys(needed, 0.0)
        for k in np.flatnonzero(row[: len(models)]).tolist():
            weights[models[k].name] += float(row[k])
        slots = {slot: float(w) for slot, w in zip(one.slots, row[len(models) :], strict=True) if w}
        told = (*weights.values(), *slots.values())
        mixtures.append(Mixture(told, tuple(slots), one.blended, Sent.of(one.adaptation)))
    return needed, tuple(mixtures)


def _models(arrays: Arrays, count: int, start: Stack) -> list[Parameters]:
    """Trained models from an answer: of the same names, shapes and types as those that were sent, and finite."""
    wanted = model_arrays(start.row(0))
    names = {f"{row}/{name}" for row in range(count) for name in wanted}
    if odd := sorted(names ^ arrays.keys()):
        raise FaultError(f"its update is of another model: {', '.join(odd[:3])} not in both")
    for full, array in arrays.items():
        name = full.partition("/")[2]
        if array.shape != wanted[name].shape:
            raise FaultError(f"its update has a wrong shape: {name} is {array.shape}, not {wanted[name].shape}")
        if array.dtype != wanted[name].dtype:
            raise FaultError(f"its update has a wrong type: {name} is {array.dtype}, not {wanted[name].dtype}")
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array.astype(np.float64)).all():
            raise FaultError(f"its update holds NaN or infinite numbers in {name}")
    return [parameters({name: arrays[f"{row}/{name}"] for name in wanted}) for row in range(count)]
