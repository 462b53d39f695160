"""Who takes part: which node is which client, what each says it holds, and who was refused and why."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json import loads
from math import prod
from typing import Any

import numpy as np

from fedflux.data import Federation
from fedflux.data.dataset import Dataset, Examples
from fedflux.data.scaling import Scaling
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.deploy.node.data import UNNUMBERED
from fedflux.errors import FedfluxError
from fedflux.plugins import in_words

MOST = 1_000_000
"""Clients are numbered below this."""
NUMBERS = 2**24
"""An example holds no more numbers than this, and is of no more classes."""
MOST_AXES = 6


@dataclass(frozen=True)
class Kind:
    """What all nodes must hold alike."""

    input_shape: tuple[int, ...]
    classes: int
    scaling: Scaling
    integers: bool
    copies: int
    """How often each training example is held."""
    several: bool = False
    """Whether a record may have several labels."""

    def __str__(self) -> str:
        what = "integers" if self.integers else "inputs"
        labels = f"with {self.classes} labels" if self.several else f"of {self.classes} classes"
        return f"{what} {self.input_shape} {labels}, scale {self.scaling}, {self.copies} copies"


@dataclass(frozen=True)
class Node:
    """What a node said of itself when it was first met."""

    id: int
    """The transport's number. Flower ties it to the node's key, and draws it anew for every simulation."""
    client: int
    """Who it is for the method: random draws come from this."""
    labelled: bool
    stored: tuple[int, int, int]
    """Examples of each split, without copies."""
    kind: Kind
    keeps: bool
    """Whether it wants a model at the end."""

    def __str__(self) -> str:
        return f"client {self.client} (node {self.id})"

    @staticmethod
    def read(id: int, client: int, told: Mapping[str, Any], most: int) -> "Node":
        """From the answer to hello; whatever does not fit raises."""
        shape, stored = tuple(told["input-shape"]), tuple(told["stored"])
        scaling = Scaling.from_plain(loads(told["scale"]))
        counts = (*shape, *stored, told["classes"], told["copies"])
        if not all(type(one) is int for one in counts) or not 1 <= len(shape) <= MOST_AXES or len(stored) != 3:
            raise ValueError("input shape, classes or counts make no sense")
        if min(*shape, told["classes"], told["copies"]) < 1 or min(stored) < 0 or not 0 <= client < MOST:
            raise ValueError("input shape, classes, counts or number make no sense")
        if prod(shape) > NUMBERS:
            raise ValueError(f"an input of {prod(shape):,} numbers: at most {NUMBERS:,} are right")
        if told["classes"] > NUMBERS:
            raise ValueError(f"{told['classes']:,} classes: at most {NUMBERS:,} are right")
        if not all(type(told[name]) is bool for name in ("labels", "keeps", "integers", "several")):
            raise ValueError("labels, keeps, integers and several are true or false")
        examples = stored[0] * told["copies"] if told["labels"] else stored[2]
        if not 0 < examples <= most:
            raise ValueError(f"it counts {examples:,} examples: 1 to {most:,} are right")
        kind = Kind(shape, told["classes"], scaling, told["integers"], told["copies"], told["several"])
        return Node(id, client, told["labels"], stored, kind, told["keeps"])


@dataclass
class Roster:
    """Nodes met so far, and clients that may no longer take part."""

    most: int
    """The most examples a node may claim."""
    nodes: dict[int, Node] = field(default_factory=dict)
    """By client."""
    numbers: dict[int, int] = field(default_factory=dict)
    """By node id, the numbers of clients that brought none."""
    refused: dict[int, str] = field(default_factory=dict)
    """By client, the reason."""
    kind: Kind | None = None
    clients: int = 0
    """How many there were when the run was saved."""
    turned_away: dict[int, str] = field(default_factory=dict)
    """By node id, why a node was not even let in."""
    met: dict[int, Node] = field(default_factory=dict)
    """By node id, in order of arrival: who introduced itself properly, let in or not, until the kind is settled."""
    settled: bool = False
    """Whether a round has begun, so that the kind of data stays what it is."""

    def unknown(self, ids: Iterable[int]) -> list[int]:
        """Nodes that have not introduced themselves yet."""
        met = {node.id for node in self.nodes.values()} | self.turned_away.keys()
        return sorted(id for id in ids if id not in met)

    def admit(self, introductions: Mapping[int, Mapping[str, Any]]) -> list[str]:
        """Note what nodes say of themselves, or turn them away; what most of those hold that came before the first
        round is what all must hold, and until then all are judged anew. A line for each that is not let in, or is now.
        """
        before = dict(self.turned_away)
        strangers: list[Node] = []
        for id in sorted(introductions):
            told = introductions[id]
            try:
                if "declined" in told:
                    raise FedfluxError(str(told["declined"]))
                strangers.append(Node.read(id, self._number(id, told["client"]), told, self.most))
            except FedfluxError as error:
                self.turned_away[id] = str(error)
            except Exception as error:  # what a stranger sends may fail in any way
                self.turned_away[id] = f"it does not introduce itself properly ({in_words(error)})"
        if not self.settled:
            self.met |= {node.id: node for node in strangers}
            strangers, self.nodes = list(self.met.values()), {}
            first = [node for node in strangers if node.labelled] or strangers
            self.kind = Counter(node.kind for node in first).most_common(1)[0][0] if first else None
        for node in strangers:
            fault = self._fault(node)
            if fault is None:
                self.nodes[node.client] = node
                self.turned_away.pop(node.id, None)
            else:
                self.turned_away[node.id] = fault
        late = [f"let node {id} in after all" for id in before if id not in self.turned_away]
        away = {id: why for id, why in self.turned_away.items() if id in introductions or before.get(id) != why}
        return [*late, *(f"refused node {id}: {why}" for id, why in away.items())]

    def _number(self, id: int, client: Any) -> int:
        """The number that a node brings, or the next one that is free; the node id keeps it."""
        if type(client) is not int:
            raise TypeError("its number is no whole number")
        if client == UNNUMBERED and id not in self.numbers:
            taken = {*self.nodes, *self.numbers.values(), *self.refused}
            self.numbers[id] = next(number for number in range(MOST) if number not in taken)
        return self.numbers[id] if client == UNNUMBERED else client

    def _fault(self, node: Node) -> str | None:
        """A refused client stays out; two nodes cannot be one client, and all must hold the same kind of data."""
        other = self.nodes.get(node.client)
        if node.client in self.refused:
            return f"client {node.client} was refused: {self.refused[node.client]}"
        if other is not None:
            return f"node {other.id} is client {node.client} already"
        return None if node.kind == self.kind else f"{node.kind}, where the others hold {self.kind}"

    def present(self, ids: Iterable[int], labelled: bool) -> tuple[int, ...]:
        """Clients that are there and may take part."""
        there = set(ids)
        nodes = (node for node in self.nodes.values() if node.id in there and node.client not in self.refused)
        return tuple(sorted(node.client for node in nodes if node.labelled == labelled))

    @property
    def _count(self) -> int:
        """How many clients there are, those that stayed away since the run was saved among them."""
        return max([self.clients, *(client + 1 for client in self.nodes)])

    def report(self) -> dict[str, dict[str, str]]:
        """Who was refused, by client, and who was not even let in, by node id."""
        refused, away = ({str(k): why for k, why in sorted(of.items())} for of in (self.refused, self.turned_away))
        return {"refused": refused, "turned_away": away}

    def remember(self) -> dict[str, Any]:
        """Who is who, and who is out, in plain values."""
        numbers = {str(id): client for id, client in self.numbers.items()}
        return {"clients": self._count, "numbers": numbers, "refused": self.report()["refused"]}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with them."""
        self.clients = max(self.clients, int(memory["clients"]))
        self.numbers |= {int(id): int(client) for id, client in memory["numbers"].items()}
        self.refused |= {int(client): str(reason) for client, reason in memory["refused"].items()}

    def federation(self, seed: int, announced: int) -> Federation:
        """What was declared, as methods see it: sizes and kind of data, and no example. The kind is settled then."""
        kind, self.settled = self.kind, True
        assert kind is not None  # somebody is there
        kept = np.int64 if kind.integers else np.float32
        target = np.zeros((1, kind.classes) if kind.several else 1, dtype=np.int64)
        blank = Examples(np.zeros((1, *kind.input_shape), dtype=kept), target)
        dataset = Dataset("nodes", blank, blank, kind.classes, scaling=kind.scaling)
        stored = [self.nodes[k].stored if k in self.nodes else (0, 0, 0) for k in range(self._count)]
        numbers = np.arange(max(max(counts) for counts in stored))  # one array, however many say how much they hold
        rows = tuple(ClientRows(*(numbers[:count] for count in counts)) for counts in stored)
        patterns = (Pattern(),) * len(rows)
        return Federation(dataset, rows, patterns, seed, duplicate=kind.copies, announced=announced)
