"""Questions to nodes and their answers: every node is asked at once, a silent or broken one never stops the others.

A model that a node holds already is named, not sent; a node that has lost it (it was restarted) says so and is sent it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flwr.app import Message, RecordDict

from fedflux.deploy.flower.records import about, pack_model, record_bytes, to_records
from fedflux.deploy.node.arrays import digest, model_arrays
from fedflux.deploy.node.requests import Mixture, Sent
from fedflux.engine.predictor import Predictor
from fedflux.engine.stack import Parameters, Stack
from fedflux.operations import name_of

POLL = 0.2
"""Seconds between looks for answers; longer where answers take long."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model that may be sent; its digest and its record are made once, for everyone."""

    params: Parameters

    @cached_property
    def name(self) -> str:
        """Its digest."""
        return digest(model_arrays(self.params))

    @cached_property
    def record(self) -> Any:
        """As it travels."""
        return pack_model(model_arrays(self.params))

    @staticmethod
    def all(stack: Stack) -> list["Model"]:
        """Every row of a stack."""
        return [Model(stack.row(row)) for row in range(len(stack))]


@dataclass(frozen=True, eq=False)
class Question:
    """A request, and the models that it needs; `spared` ones are sent only if the node asks for them."""

    request: Any
    models: Mapping[str, Model] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()


@dataclass
class Exchange:
    """Sends through a Grid and keeps count, by round: bytes down, bytes up, exchanges."""

    grid: Any
    timeout: float
    round: int = 0
    traffic: dict[int, list[int]] = field(default_factory=dict)
    _holds: dict[int, set[str]] = field(default_factory=dict)
    """By node, the models that it has been sent and has not said to have lost."""

    def ask(self, questions: Mapping[int, Question]) -> tuple[dict[int, Any], dict[int, str]]:
        """By node id, the content of replies, and why there is none."""
        failed: dict[int, str] = {}
        replies = self._round_trip(questions, failed)
        lost = {id: _lost(content) & questions[id].models.keys() for id, content in replies.items()}
        again = {id: replace(questions[id], spared=questions[id].spared - lost[id]) for id in lost if lost[id]}
        for id in again:
            self._holds[id] -= lost[id]
            del replies[id]
        return {**replies, **self._round_trip(again, failed)}, failed

    def _round_trip(self, questions: Mapping[int, Question], failed: dict[int, str]) -> dict[int, Any]:
        if not questions:
            return {}
        count = self.traffic.setdefault(self.round, [0, 0, 0])
        asked = [self._message(id, question) for id, question in questions.items()]
        count[0] += sum(record_bytes(message.content) for message in asked)
        count[2] += 1
        answers = self._send(asked)
        found: dict[int, Any] = {}
        for message in asked:
            # an error that Flower makes up for a dead node does not name it: the question does
            id, reply = message.metadata.dst_node_id, answers.get(message.metadata.message_id)
            if reply is None or reply.has_error():
                self._holds.pop(id, None)
                failed[id] = "no answer in time" if reply is None else _in_words(reply.error.reason)
                continue
            count[1] += record_bytes(reply.content)
            found[id] = reply.content
            self._holds.setdefault(id, set()).update(questions[id].models.keys() - questions[id].spared)
        return found

    def _message(self, id: int, question: Question) -> Any:
        absent = question.models.keys() - self._holds.get(id, set()) - question.spared
        content = {**to_records(question.request), **{name: question.models[name].record for name in sorted(absent)}}
        name = name_of(question.request)
        kind = name if name in ("train", "evaluate") else f"query.{name}"
        return Message(RecordDict(content), dst_node_id=id, message_type=kind, group_id=str(self.round))

    def _send(self, asked: list[Any]) -> dict[str, Any]:
        """The replies that come in time, by the message that each answers."""
        waiting = {id for id in self.grid.push_messages(asked) if id}
        found: dict[str, Any] = {}
        begin = time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                found[reply.metadata.reply_to_message_id] = reply
            waiting -= found.keys()
            spent = time.monotonic() - begin
            if not waiting or spent > self.timeout:
                break
            time.sleep(min(POLL + spent / 50, 1.0))
        return found

    def report(self) -> dict[str, dict[str, int]]:
        """What was sent, by round."""
        names = ("wire_down", "wire_up", "exchanges")
        counts = sorted(self.traffic.items())
        return {name: {str(round): count[k] for round, count in counts} for k, name in enumerate(names)}

    def remember(self) -> dict[str, list[int]]:
        """The same, to be saved."""
        return {str(round): list(count) for round, count in self.traffic.items()}

    def recall(self, memory: Mapping[str, Sequence[int]]) -> None:
        """Count on."""
        self.traffic = {int(round): list(count) for round, count in memory.items()} | self.traffic


def mixtures_of(
    predictors: Sequence[tuple[Predictor, Sequence[Model]]], place: int
) -> tuple[dict[str, Model], tuple[Mixture, ...]]:
    """One client's rows of predictors, and the models that they mix: those of weight zero are left out."""
    used = [[(models[k], float(one.weights[place, k])) for k in range(len(models))] for one, models in predictors]
    needed = {model.name: model for row in used for model, weight in row if weight}
    bases = {models[0].name: models[0] for one, models in predictors if one.layers}
    needed = bases | needed
    mixtures = []
    for (one, models), row in zip(predictors, used, strict=True):
        weights = dict.fromkeys(needed, 0.0)
        for model, weight in row:
            if weight:
                weights[model.name] += weight
        slots = dict(zip(one.slots, one.weights[place, len(models) :].tolist(), strict=True))
        slots = {slot: weight for slot, weight in slots.items() if weight}
        told = (*weights.values(), *slots.values())
        base = list(needed).index(models[0].name) if one.layers else 0
        mixtures.append(Mixture(told, tuple(slots), one.blended, Sent.maybe(one.adaptation), one.layers, base))
    return needed, tuple(mixtures)


def _lost(content: Any) -> set[str]:
    """The models that a node says it would need."""
    found = about(content).get("missing")
    return {str(name) for name in found} if isinstance(found, list) else set()


def _in_words(reason: str | None) -> str:
    lines = (reason or "").strip().splitlines()
    return lines[-1] if lines else "no reason given"
