"""Nodes without labels: they describe their images, and are given the model of the cluster whose P(X) fits best."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedflux.deploy.flower.describing import ask_descriptors
from fedflux.deploy.flower.exchange import Exchange
from fedflux.deploy.flower.records import ABOUT, Arrays
from fedflux.deploy.flower.roster import Node
from fedflux.deploy.flower.settings import FlowerSettings
from fedflux.deploy.flower.state import FederationState
from fedflux.descriptors.wire import from_arrays

Place = tuple[int, tuple[float, ...], bool, float, float]
"""Cluster, distances, whether novel, novelty score, confidence."""


@dataclass(frozen=True)
class Placement:
    """Which cluster's model a client was given, and how far its data are from every cluster's."""

    cluster: int
    distances: tuple[float, ...]
    novel: bool
    """Whether its data are like no cluster's; it has the nearest cluster's model all the same."""
    novelty_score: float
    """p-value of its data being like some cluster's."""
    confidence: float
    """Probability of this cluster, given that it belongs to one."""
    taken: bool
    """Whether the node said that it has the model."""

    @property
    def distance(self) -> float:
        """From the chosen cluster."""
        return self.distances[self.cluster]


def assign_unlabelled(
    exchange: Exchange, nodes: Sequence[Node], state: FederationState, settings: FlowerSettings
) -> dict[int, Placement]:
    """Describe, place, send; before clustering there is one model for all, at no distance."""
    if not nodes:
        return {}
    chosen: dict[Node, Place] = dict.fromkeys(nodes, (0, (0.0,), False, 1.0, 1.0))
    if state.extractor is not None and state.clusters is not None:
        found = ask_descriptors(exchange, nodes, state.extractor, state.bounds_version, settings, labelled=False)
        chosen = {node: place(state, arrays, settings) for node, arrays in found}
    offered = exchange.offer(state.models)
    messages = []
    for node, (cluster, distances, novel, _, confidence) in chosen.items():
        ask = {"step": "take", "cluster": cluster, "distance": distances[cluster]}
        ask |= {"novel": novel, "confidence": confidence}
        messages.append(exchange.message(node.id, "query.assign", ask, offered[cluster]))
    taken = {
        node.client
        for node, content in exchange.ask(messages)
        if ABOUT in content and content[ABOUT].get("base") == offered[chosen[node][0]]
    }
    return {node.client: Placement(*put, node.client in taken) for node, put in chosen.items()}


def place(state: FederationState, arrays: Arrays, settings: FlowerSettings) -> Place:
    """The fitting cluster of one unlabelled client, its distances to all, and what is said of the choice."""
    assert state.clusters is not None
    found = state.clusters.judge(from_arrays(arrays), calibrated=settings.assignment == "calibrated")
    distances = tuple(float(distance) for distance in found.distances[0])
    return int(found.nearest[0]), distances, bool(found.novel[0]), float(found.score[0]), float(found.confidence[0])
