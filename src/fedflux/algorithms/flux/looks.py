"""Who is in which cluster: found from descriptions, and found again as the model learns or more clients come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from fedflux.algorithms.base import UNPLACED, RoundMetrics, Settings
from fedflux.algorithms.flux.describe import Extractor, Told, describe_all, finer
from fedflux.algorithms.flux.sharing.branches import shares_of_members
from fedflux.algorithms.flux.sharing.rounds import FluxSharing
from fedflux.algorithms.flux.state import Clustered
from fedflux.algorithms.flux.trigger import PRESENT, common_model, due, same_partition
from fedflux.clustering import Clusters, find_clusters, takes, with_centroids
from fedflux.data import Cohort, Federation
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import client_bytes, from_arrays, to_arrays
from fedflux.engine import Engine

GROWTH = 1.5
"""Clusters are found anew when so many times as many clients have described themselves: more clients see finer."""
C = TypeVar("C", bound=Clustered)


@dataclass(frozen=True)
class FluxLooks(FluxSharing[C], Generic[C]):
    """The part of FLUX's rounds that decides who belongs together; `grouping` says who knows it.

    `found`: the clusterer, told nothing; `prior`: the clusterer, told the true number M; `true`: the true clusters.
    """

    settings: Settings
    grouping: Literal["found", "prior", "true"] = "found"

    @property
    def uses_truth(self) -> bool:
        """Only when told how many clusters there are, or which."""
        return self.grouping != "found" or self.settings.true_count

    def _told_by(self, round: int, cohort: Cohort) -> Cohort:
        """The data that members describe: all that they hold."""
        return cohort

    def _count_description(self, extractor: Extractor, told: Told, metrics: RoundMetrics) -> None:
        metrics.send(told.clients, up=extractor.up + client_bytes(told.descriptors), down=extractor.down)
        metrics.count(told.clients, forward=extractor.forward)

    def _look_again(self, state: C, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> C:
        """Describe everyone under a model that knows more, and find clusters anew.

        A look that tells fewer clusters apart than the one before saw less, and is not taken.
        """
        once = self.settings.cluster_round is not None or not self.settings.look_again
        if once or not due(state.round, state.looks, self.settings.rounds):
            return state
        there = cohort.only(set(state.described))
        if len(there) < PRESENT * len(state.described):
            return state
        state = replace(state, looks=(*state.looks, state.round - 1))
        reference = common_model(state.branches, state.sizes)
        metrics.send(there, down=reference.model_bytes())
        metrics.count(there, models_down=1)
        with metrics.timed("descriptor"):
            told_by = self._told_by(state.round - 1, there)
            found = describe_all(reference, there, told_by, engine, finer(self.settings.descriptor))
        if found is None:
            return state
        extractor, told = found
        self._count_description(extractor, told, metrics)
        if len(told.clients) < PRESENT * len(state.described):
            return state
        with metrics.timed("clustering"):
            clusters = self._group(told.descriptors, cohort.federation, told.clients)
        before = state.assignment[list(told.clients)]
        if len(clusters.centroids) < len(np.unique(before)):
            return state
        if not same_partition(before, clusters.labels):
            words = f"{len(clusters.centroids)} clusters of {len(told.clients)} clients at another look"
            metrics.events.append(f"round {state.round - 1}: {words}")
            state = replace(state, cluster_round=state.round - 1)
        return self._seen(replace(state, extractor=extractor), told, clusters, engine, metrics)

    def _seen(self, state: C, told: Told, clusters: Clusters, engine: Engine, metrics: RoundMetrics) -> C:
        """The state with clusters of fresh descriptions; who did not describe itself is placed when it comes again."""
        shares = shares_of_members(len(state.models), state.assignment[list(told.clients)], clusters)
        assignment = np.full_like(state.assignment, UNPLACED)
        assignment[list(told.clients)] = clusters.labels
        state = self._inherit(state, shares, engine)
        return replace(
            state,
            assignment=assignment,
            clusters=clusters,
            described=told.clients,
            descriptors=to_arrays(told.descriptors),
            clustered=len(told.clients),
            tries=None,
        )

    def _refine(self, state: C, federation: Federation, engine: Engine, metrics: RoundMetrics) -> C:
        """Cluster everyone who is described by now, once they are many more or nobody is left to come.

        A new cluster goes on from the models that its members had.
        """
        count = len(state.described)
        due = count == federation.expected > state.clustered or count >= GROWTH * state.clustered
        if not (self.settings.regroup and due and takes(self.settings.clusterer, count)):
            return state
        with metrics.timed("clustering"):
            clusters = self._group(from_arrays(state.descriptors), federation, state.described)
        shares = shares_of_members(len(state.models), state.assignment[list(state.described)], clusters)
        assignment = state.assignment.copy()
        assignment[list(state.described)] = clusters.labels
        metrics.events.append(f"round {state.round}: {len(shares)} clusters found anew of {count} clients")
        state = self._inherit(state, shares, engine)
        return replace(state, assignment=assignment, clusters=clusters, clustered=count, tries=None)

    def _group(self, descriptors: Descriptors, federation: Federation, ids: Sequence[int]) -> Clusters:
        """Clusters of the clients with these ids, in the order of their descriptors."""
        if not self.uses_truth:
            return find_clusters(descriptors, self.settings.clusterer)
        truth = federation.truth
        assert truth is not None
        members = truth[list(ids)]
        if self.grouping == "true":
            return with_centroids(descriptors, members)
        return find_clusters(descriptors, replace(self.settings.clusterer, clusters=len(np.unique(members))))
