"""Questions to nodes and their answers: every node is asked at once, a silent or broken one never stops the others.

A model that a node holds already is named, not sent; a node that has lost it (it was restarted) says so and is sent it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedflux.deploy.flower.records import ABOUT, ASK, MODEL, digest, model_arrays, pack, record_bytes
from fedflux.deploy.flower.roster import Node, Roster
from fedflux.engine.stack import Stack


@dataclass
class Traffic:
    """Bytes of one round, by kind of question."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)


@dataclass
class Exchange:
    """Sends through a Grid and keeps count."""

    grid: Any
    roster: Roster
    timeout: float
    traffic: dict[int, Traffic] = field(default_factory=dict)
    round: int = 0
    _offered: dict[str, Any] = field(default_factory=dict)
    _holds: dict[int, str] = field(default_factory=dict)

    def begin(self, round: int) -> None:
        """A new round: earlier models are no longer offered."""
        self.round = round
        self._offered.clear()

    def offer(self, models: Stack) -> list[str]:
        """The digests of models, ready to be asked under."""
        names = []
        for row in range(len(models)):
            arrays = model_arrays(models.row(row))
            name = digest(arrays)
            if name not in self._offered:
                self._offered[name] = pack(arrays)
            names.append(name)
        return names

    def message(
        self,
        node_id: int,
        kind: str,
        ask: Mapping[str, Any] | None = None,
        model: str | None = None,
        records: Mapping[str, Any] | None = None,
    ) -> Any:
        """One question; `model` is the digest of an offered model."""
        told = {**(ask or {}), "round": self.round, **({"model": model} if model else {})}
        content = {ASK: ConfigRecord(told), **(records or {})}
        if model and self._holds.get(node_id) != model:
            content[MODEL] = self._offered[model]
        return Message(RecordDict(content), dst_node_id=node_id, message_type=kind, group_id=str(self.round))

    def send(self, messages: Iterable[Any]) -> list[Any]:
        """The replies that carry content, by node; failures are told of and forgotten."""
        asked = list(messages)
        if not asked:
            return []
        replies = self._round_trip(asked)
        lost = [message for message in asked if _missing(replies.get(message.metadata.dst_node_id))]
        if lost:
            again = [self._in_full(message) for message in lost]
            for message in again:
                replies.pop(message.metadata.dst_node_id)
            replies |= self._round_trip(again)
        return [replies[node_id] for node_id in sorted(replies)]

    def ask(self, messages: Iterable[Any]) -> list[tuple[Node, Any]]:
        """Replies with the node that each is from, in client order."""
        replies = self.send(messages)
        found = [(self.roster.nodes[reply.metadata.src_node_id], reply.content) for reply in replies]
        return sorted(found, key=lambda pair: pair[0].client)

    def _in_full(self, message: Any) -> Any:
        """The same question with the model in it."""
        ask = dict(message.content[ASK])
        node_id, model = message.metadata.dst_node_id, str(ask.pop("model"))
        self._holds.pop(node_id, None)
        others = {name: record for name, record in message.content.items() if name not in (ASK, MODEL)}
        return self.message(node_id, message.metadata.message_type, ask, model, others)

    def _round_trip(self, asked: Sequence[Any]) -> dict[int, Any]:
        count = self.traffic.setdefault(self.round, Traffic())
        for message in asked:
            kind = message.metadata.message_type
            count.down[kind] = count.down.get(kind, 0) + record_bytes(message.content)
        replies = list(self.grid.send_and_receive(asked, timeout=self.timeout))
        # an error that Flower makes up for a dead node does not name it: the question does
        of_question = {message.metadata.message_id: message for message in asked}
        found: dict[int, Any] = {}
        for reply in replies:
            question = of_question.get(reply.metadata.reply_to_message_id)
            if question is None:
                continue
            node_id, kind = question.metadata.dst_node_id, question.metadata.message_type
            if reply.has_error():
                self._failed(node_id, kind, reply.error.reason)
                continue
            count.up[kind] = count.up.get(kind, 0) + record_bytes(reply.content)
            found[node_id] = reply
            if "model" in question.content[ASK]:
                self._holds[node_id] = str(question.content[ASK]["model"])
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        for message in asked:
            if message.metadata.message_id not in answered:
                self._failed(message.metadata.dst_node_id, message.metadata.message_type, "no answer in time")
        return found

    def _failed(self, node_id: int, kind: str, reason: str | None) -> None:
        self._holds.pop(node_id, None)
        who = self.roster.nodes.get(node_id)
        words = (reason or "no reason given").strip().splitlines()
        self.roster.tell(f"{who or f'node {node_id}'} failed in {kind}: {words[-1] if words else 'no reason given'}")


def _missing(reply: Any) -> bool:
    """Whether a node says that it does not hold the model it was asked under."""
    if reply is None or ABOUT not in reply.content:
        return False
    return bool(reply.content[ABOUT].get("missing", False))
