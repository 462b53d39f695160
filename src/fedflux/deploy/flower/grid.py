"""A Grid in this process: server and client apps meet without a network, for tests and quick simulation."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RAISED = 2
"""Flower's code for a client app that raised."""


class InProcessGrid(Grid):  # type: ignore[misc]
    """Runs the client app of every node that is asked, one after another.

    A node is a configuration; its context lives as long as the Grid, as a SuperNode's does for one run.
    """

    def __init__(self, app: Callable[[Any, Any], Any], run_config: Mapping[str, Any]) -> None:
        self._app = app
        self._run_config = dict(run_config)
        self._contexts: dict[int, Any] = {}
        self._replies: dict[str, Any] = {}
        self._run: Any = None
        for name in ("task_id", "run_id", "node_id"):  # messages read them; a process of Flower's own has them set
            if getattr(TaskIdentity, f"_{name}") is None:
                setattr(TaskIdentity, name, 1)

    def join(self, node_id: int, node_config: Mapping[str, Any]) -> None:
        """A node connects."""
        self._contexts[node_id] = Context(1, node_id, dict(node_config), RecordDict(), dict(self._run_config))

    def leave(self, node_id: int) -> None:
        """A node is gone, and its memory with it."""
        del self._contexts[node_id]

    def restart(self, node_id: int) -> None:
        """A node comes back without its memory of the run."""
        self.join(node_id, self._contexts[node_id].node_config)

    def set_run(self, run: Any) -> None:
        """Remember the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run, where one was set."""
        return self._run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """A message, the older way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Who is there."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Have each message answered at once."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self._replies[ids[-1]] = self._answer(message)
        return ids

    def _answer(self, message: Any) -> Any:
        node_id = message.metadata.dst_node_id
        if node_id not in self._contexts:
            return Message(Error(RAISED, f"node {node_id} is not there"), reply_to=message)
        try:
            return self._app(message, self._contexts[node_id])
        except Exception as error:  # a client app may fail in any way
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """The answers, each once."""
        return [self._replies.pop(id) for id in list(message_ids) if id in self._replies]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Push and pull."""
        return self.pull_messages(self.push_messages(messages))
