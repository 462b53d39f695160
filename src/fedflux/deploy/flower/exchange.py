"""Questions to nodes and their answers: every node is asked at once, a silent or broken one never stops the others.

A model that a node holds already is named, not sent; a node that has lost it (it was restarted) says so and is sent it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedflux.deploy.flower.records import ABOUT, digest, model_arrays, pack_models, record_bytes
from fedflux.deploy.flower.requests import message_type, to_records, version
from fedflux.engine.stack import Parameters, Stack

POLL = 0.1
"""Seconds between looks for answers; longer where answers take long."""


class FaultError(Exception):
    """What is wrong with an answer, in words."""


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
        return pack_models([model_arrays(self.params)])

    @staticmethod
    def all(stack: Stack | None) -> list["Model"]:
        """Every row of a stack."""
        return [] if stack is None else [Model(stack.row(row)) for row in range(len(stack))]


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
        kind = message_type(question.request)
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


def check(content: Any, question: Question, read: Callable[[Any], Any]) -> Any:
    """What an answer says; whatever is wrong with it is told as a fault."""
    try:
        told = about(content).get("base")
        wanted = version(to_records(question.request))
        if told != wanted:
            raise FaultError(f"its answer is for version {str(told)[:8]}, not {wanted[:8]}")
        return read(content)
    except FaultError:
        raise
    except Exception as error:  # what a stranger sends may fail in any way
        raise FaultError(f"its answer cannot be read: {type(error).__name__}") from error


def about(content: Any) -> dict[str, Any]:
    """What a reply says beside its arrays."""
    found = content.get(ABOUT)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def _lost(content: Any) -> set[str]:
    """The models that a node says it would need."""
    found = about(content).get("missing")
    return {str(name) for name in found} if isinstance(found, list) else set()


def _in_words(reason: str | None) -> str:
    lines = (reason or "").strip().splitlines()
    return lines[-1] if lines else "no reason given"
