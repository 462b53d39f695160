"""FLUX-soft: like FLUX, but clusters lend each other what their descriptors say can be shared."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Averaging, RoundMetrics, Settings
from fedflux.algorithms.flux.describe import Told, describe
from fedflux.algorithms.flux.lending import heirs, mixture, sharing
from fedflux.algorithms.flux.plain import DESCRIPTION
from fedflux.algorithms.flux.rounds import FluxRounds
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.algorithms.registry import algorithm
from fedflux.clustering import Clusters
from fedflux.data import Cohort, Federation
from fedflux.descriptors.wire import client_bytes, from_arrays, put_arrays, to_arrays
from fedflux.engine import Engine, Stack
from fedflux.placement import Placement


@dataclass(frozen=True, eq=False)
class SoftState(Clustered):
    """FLUX's state, and V (M × M): how much a client of cluster c counts for the model of cluster m."""

    sharing: NDArray[np.float64] = field(default_factory=lambda: np.ones((1, 1)))
    releases: int = 1
    """How often a client has described the same examples, at most: what a private run composes over."""


def lend(
    models: Stack,
    trained: Stack,
    cluster: NDArray[np.int64],
    sizes: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> Stack:
    """θ_m ← Σ_k V_mc(k) s_k θ_k / Σ_k V_mc(k) s_k over all trained models; a cluster nobody trained keeps its model."""
    active = np.flatnonzero(np.bincount(cluster, weights=sizes, minlength=len(models)))
    if not len(active):
        return models
    averaged = trained.average(shares[np.ix_(active, cluster)] * sizes)
    return averaged if len(active) == len(models) else models.put(active, averaged)


@algorithm("flux-soft")
@dataclass(frozen=True)
class FluxSoft(FluxRounds[SoftState]):
    """Sparse soft aggregation. W_kj, what client j counts for client k, is V of their clusters times the size of j.

    Clients that no test tells apart have one row of W, hence one model: as many models are kept as there are clusters.
    Where clusters lend nothing this is FLUX to the bit, and where there is one cluster FedAvg.
    """

    redescribe: int = 0
    """Every how many rounds members describe themselves anew and V is made anew; 0: never, for data that stays as it
    is. V follows what clients hold, so nobody need find out that they drifted."""
    revision: ClassVar[int] = 6
    states: ClassVar[tuple[type, ...]] = (WarmUp, SoftState)
    reads: ClassVar[frozenset[str]] = DESCRIPTION | {"redescribe"}

    @classmethod
    def make(cls, settings: Settings) -> Self:
        """Weights come from calibrated tests, and so do the clusters."""
        how = replace(settings, clusterer=replace(settings.clusterer, name="calibrated"), true_count=False)
        return cls(how, redescribe=settings.redescribe)

    def _before_training(self, state: SoftState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> SoftState:
        """As FLUX, after members have described themselves anew where that is due."""
        if self.redescribe > 0 and (state.round - state.cluster_round) % self.redescribe == 0:
            state = self._redescribe(state, cohort, engine, metrics)
        return super()._before_training(state, cohort, engine, metrics)

    def _redescribe(self, state: SoftState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> SoftState:
        """Fresh descriptors of the members that have one, and clusters of everyone's, each going on from the models of
        the clusters before that it is like.
        """
        place = {client: row for row, client in enumerate(state.described)}
        members = cohort.only(place)
        with metrics.timed("descriptor"):
            told = describe(state.extractor, self._told_by(state.round, members), engine) if len(members) else None
        if told is None:
            return state
        metrics.send(told.clients, up=client_bytes(told.descriptors))
        metrics.count(told.clients, forward=1)
        rows = np.array([place[client] for client in told.clients])
        descriptors = put_arrays(state.descriptors, rows, to_arrays(told.descriptors))
        releases = state.releases + 1
        if all(np.array_equal(array, state.descriptors.get(name, 0)) for name, array in descriptors.items()):
            return replace(state, releases=releases)
        with metrics.timed("clustering"):
            clusters = self._group(from_arrays(descriptors), cohort.federation, state.described)
            shares = heirs(clusters.pool, state.clusters.pool, self.settings.clusterer.significance)
        assignment = state.assignment.copy()
        assignment[list(state.described)] = clusters.labels
        changed = int((assignment != state.assignment).sum())
        if changed or len(shares) != len(state.models):
            metrics.events.append(f"round {state.round}: {len(shares)} clusters of fresh descriptors")
        if not _same(shares):
            state = self._inherit(state, shares, engine)
        found = replace(state, assignment=assignment, clusters=clusters, descriptors=descriptors, tries=None)
        return self._shared(replace(found, clustered=len(state.described), releases=releases), metrics)

    def _begin(self, found: Clustered, before: WarmUp, metrics: RoundMetrics) -> SoftState:
        """FLUX's clusters, and what they lend each other."""
        begun = self._shared(SoftState(**{one.name: getattr(found, one.name) for one in fields(found)}), metrics)
        lending, clusters = int((begun.sharing > 0).sum()) - len(begun.sharing), len(begun.sharing)
        metrics.events.append(f"round {begun.round}: {lending} of {clusters * (clusters - 1)} ways to lend are used")
        return begun

    def _refine(self, state: SoftState, federation: Federation, engine: Engine, metrics: RoundMetrics) -> SoftState:
        """FLUX's clusters found anew, and what those lend each other."""
        refined = super()._refine(state, federation, engine, metrics)
        return refined if refined.clusters is state.clusters else self._shared(refined, metrics)

    def _seen(
        self, state: SoftState, told: Told, clusters: Clusters, engine: Engine, metrics: RoundMetrics
    ) -> SoftState:
        """The clusters of another look, and what those lend each other."""
        return self._shared(super()._seen(state, told, clusters, engine, metrics), metrics)

    def _shared(self, state: SoftState, metrics: RoundMetrics) -> SoftState:
        with metrics.timed("clustering"):
            found = sharing(state.clusters.pool, self.settings.clusterer.significance)
        return replace(state, sharing=found)

    def _by_cluster(self, state: SoftState) -> Averaging:
        """Models average over all that they may borrow from."""
        return partial(lend, shares=state.sharing)

    def _weights(self, state: SoftState, found: Placement) -> NDArray[np.float64]:
        """A mixture of the models of the clusters whose P(X) fits, of one where one alone does."""
        if self.settings.assignment != "calibrated" or found.distances is None:
            return super()._weights(state, found)
        return mixture(found.distances, len(state.extractor.question.projector))

    def summary(self, state: WarmUp | SoftState) -> Mapping[str, Any]:
        """How often clients described themselves, too."""
        told = super().summary(state)
        return told if isinstance(state, WarmUp) else {**told, "releases": state.releases}


def _same(shares: NDArray[np.float64]) -> bool:
    """Whether every new cluster goes on from the old one of its number."""
    return shares.shape[0] == shares.shape[1] and bool((np.flatnonzero(shares) % (len(shares) + 1) == 0).all())
