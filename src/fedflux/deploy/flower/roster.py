"""Who takes part: which node is which client, who has labels, and who was refused and why."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedflux.deploy.flower.checks import count_fault


@dataclass(frozen=True)
class Node:
    """What a node said of itself when it was first met."""

    id: int
    """Flower's number: tied to the node's key in a deployment, drawn anew for every simulation."""
    client: int
    """Who it is for the method: `partition-id` of its configuration, else its id. Random draws come from this."""
    labelled: bool
    examples: int
    """Training examples, or images without labels."""
    image_shape: tuple[int, ...]
    classes: int

    def __str__(self) -> str:
        return f"client {self.client} (node {self.id})"

    @staticmethod
    def read(id: int, told: Mapping[str, Any]) -> "Node":
        """From the answer to `query.hello`; whatever does not fit raises."""
        shape = tuple(int(side) for side in told["image-shape"])
        labelled, examples, classes = told["labels"], told["examples"], told["classes"]
        if not isinstance(labelled, bool) or len(shape) != 3 or min(shape) < 1 or int(classes) < 1:
            raise ValueError("labels, image shape or classes make no sense")
        return Node(id, int(told["client"]), labelled, examples, shape, int(classes))


@dataclass
class Roster:
    """Nodes met so far, and clients that may no longer take part."""

    limit: int
    """The most examples a node may claim."""
    tell: Callable[[str], None]
    nodes: dict[int, Node] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    """By client, the reason."""
    kind: tuple[tuple[int, ...], int] | None = None
    """Image shape and number of classes of the federation."""
    _turned_away: set[int] = field(default_factory=set)

    def unknown(self, ids: Iterable[int]) -> list[int]:
        """Nodes that have not introduced themselves yet."""
        return sorted(id for id in ids if id not in self.nodes and id not in self._turned_away)

    def admit(self, introductions: Mapping[int, Mapping[str, Any]]) -> None:
        """Note what nodes say of themselves, or refuse them. What most of the first ones hold is what all must hold."""
        strangers = [node for node in map(self._read, introductions, introductions.values()) if node is not None]
        labelled = [node for node in strangers if node.labelled] or strangers
        if self.kind is None and labelled:
            self.kind = Counter((node.image_shape, node.classes) for node in labelled).most_common(1)[0][0]
        for node in strangers:
            fault = self.refused.get(node.client) or count_fault(node.examples, None, self.limit) or self._clash(node)
            if fault is None:
                self.nodes[node.id] = node
            else:
                self._turned_away.add(node.id)
                self.tell(f"refused {node}: {fault}")

    def _read(self, id: int, told: Mapping[str, Any]) -> Node | None:
        try:
            return Node.read(id, told)
        except (KeyError, TypeError, ValueError) as error:
            self._turned_away.add(id)
            self.tell(f"refused node {id}: it does not introduce itself properly ({error})")
            return None

    def _clash(self, node: Node) -> str | None:
        """Two nodes cannot be one client, and all must hold the same kind of data."""
        for other in self.nodes.values():
            if other.client == node.client:
                return f"node {other.id} is client {node.client} already"
        if self.kind is not None and self.kind != (node.image_shape, node.classes):
            shape, classes = self.kind
            return f"images {node.image_shape} of {node.classes} classes, where the others hold {shape} of {classes}"
        return None

    def refuse(self, node: Node, reason: str) -> None:
        """Leave a node out from now on; what it sent is not used."""
        self.refused[node.client] = reason
        self.tell(f"refused {node}: {reason}")

    def present(self, ids: Iterable[int], labelled: bool) -> list[Node]:
        """Nodes that are there and may take part, in client order."""
        there = [self.nodes[id] for id in ids if id in self.nodes]
        chosen = (node for node in there if node.labelled == labelled and node.client not in self.refused)
        return sorted(chosen, key=lambda node: node.client)
