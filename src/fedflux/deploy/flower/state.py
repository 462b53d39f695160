"""The server's explicit state, and what a round's answers make of it. The formulas are the core's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.describe import Extractor
from fedflux.algorithms.flux.inheritance import carried_over
from fedflux.algorithms.flux.plain import GROWTH
from fedflux.algorithms.flux.trigger import should_cluster
from fedflux.clustering import Clusterer, Clusters, find_clusters, takes
from fedflux.deploy.flower.settings import FlowerSettings
from fedflux.descriptors.wire import from_arrays, join_arrays
from fedflux.engine.stack import Stack

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class FederationState:
    """Models (one until clustering, then one a cluster), who is where, and what places newcomers.

    Every random draw comes from (seed, round, client): with those two numbers this is the random state, too.
    """

    models: Stack
    seed: int
    round: int = 0
    accuracies: tuple[float, ...] = ()
    """The global model's mean validation accuracy after each round of the warm-up."""
    cluster_round: int | None = None
    extractor: Extractor | None = None
    """The reference model, the frozen bounds and the projector; late nodes are described under the same."""
    bounds_version: str = ""
    clusters: Clusters | None = None
    described: tuple[int, ...] = ()
    descriptors: Mapping[str, NDArray[np.generic]] | None = None
    clustered: int = 0
    assignment: Mapping[str, int] = field(default_factory=dict)
    """Cluster by client."""
    refused: Mapping[str, str] = field(default_factory=dict)

    def cluster(self, client: int) -> int:
        """The cluster of a client; before clustering everyone shares model 0."""
        return self.assignment.get(str(client), 0) if self.clusters is not None else 0

    def placed(self, client: int) -> bool:
        """Whether a client has its model: always before clustering, afterwards once it is described."""
        return self.clusters is None or str(client) in self.assignment


def clusterer(settings: FlowerSettings) -> Clusterer:
    """The core's clusterer as the run config names it."""
    return Clusterer(settings.clusterer, settings.clusters or None, settings.eps_scale, settings.significance)


def fires(state: FederationState, settings: FlowerSettings) -> bool:
    """Whether to cluster after this round: at the round that was told, else when C(r) says so."""
    if state.clusters is not None:
        return False
    if settings.cluster_round:
        return state.round >= settings.cluster_round
    return should_cluster(state.accuracies, settings.rounds)


def with_clusters(
    state: FederationState,
    extractor: Extractor,
    version: str,
    clients: Sequence[int],
    descriptors: Sequence[Arrays],
    settings: FlowerSettings,
) -> FederationState:
    """Clusters of the described clients; all start from the one model."""
    sent = join_arrays(descriptors)
    clusters = find_clusters(from_arrays(sent), clusterer(settings))
    return replace(
        state,
        models=state.models.take([0] * len(clusters.centroids)),
        cluster_round=state.round,
        extractor=extractor,
        bounds_version=version,
        clusters=clusters,
        described=tuple(clients),
        descriptors=sent,
        clustered=len(clients),
        assignment={str(client): int(label) for client, label in zip(clients, clusters.labels, strict=True)},
    )


def with_newcomers(
    state: FederationState, clients: Sequence[int], descriptors: Sequence[Arrays], settings: FlowerSettings
) -> FederationState:
    """Late clients in the clusters they fit best; clusters found anew where many have come since."""
    if not clients or state.clusters is None or state.descriptors is None:
        return state
    sent = join_arrays(descriptors)
    labels = state.clusters.place(from_arrays(sent), settings.assignment == "calibrated")
    added = {str(client): int(label) for client, label in zip(clients, labels, strict=True)}
    return _refined(
        replace(
            state,
            described=(*state.described, *clients),
            descriptors=join_arrays([state.descriptors, sent]),
            assignment={**state.assignment, **added},
        ),
        settings,
    )


def _refined(state: FederationState, settings: FlowerSettings) -> FederationState:
    """The core's rule: more clients see finer."""
    how, count = clusterer(settings), len(state.described)
    if state.descriptors is None or count < GROWTH * state.clustered or not takes(how, count):
        return state
    clusters = find_clusters(from_arrays(state.descriptors), how)
    came_from = np.array([state.assignment[str(client)] for client in state.described], dtype=np.int64)
    labels = zip(state.described, clusters.labels, strict=True)
    return replace(
        state,
        models=carried_over(state.models, came_from, clusters),
        clusters=clusters,
        clustered=count,
        assignment={**state.assignment, **{str(client): int(label) for client, label in labels}},
    )
