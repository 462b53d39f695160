"""FLUX-soft: like FLUX, but clusters lend each other what their descriptors say can be shared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import RoundMetrics
from fedflux.algorithms.flux.describe import describe, describe_unlabelled
from fedflux.algorithms.flux.general_model import hear
from fedflux.algorithms.flux.inheritance import inherited
from fedflux.algorithms.flux.lending import heirs, mixture, sharing
from fedflux.algorithms.flux.plain import Flux, FluxState, with_general_model
from fedflux.data import Cohort, Features, Federation
from fedflux.descriptors.wire import client_bytes, from_arrays, put_arrays, to_arrays
from fedflux.engine import Engine, Predictor, Stack, Verdict


@dataclass(frozen=True, eq=False)
class SoftState(FluxState):
    """FLUX's state, and V (M × M): how much a client of cluster c counts for the model of cluster m."""

    sharing: NDArray[np.float64] | None = None
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
    averaged = trained.average(shares[np.ix_(active, cluster)] * sizes)
    return averaged if len(active) == len(models) else models.put(active, averaged)


@dataclass(frozen=True)
class FluxSoft(Flux):
    """Sparse soft aggregation. W_kj, what client j counts for client k, is V of their clusters times the size of j.

    Clients that no test tells apart have one row of W, hence one model: as many models are kept as there are clusters.
    Where clusters lend nothing this is FLUX to the bit, and where there is one cluster FedAvg.
    """

    redescribe: int = 0
    """Every how many rounds members describe themselves anew and V is made anew; 0: never, for data that stays as it
    is. V follows what clients hold, so nobody need find out that they drifted."""
    revision: ClassVar[int] = 4

    def init(self, federation: Federation, engine: Engine) -> SoftState:
        """One model, nobody placed."""
        return SoftState(**vars(super().init(federation, engine)))

    def round(self, state: FluxState, cohort: Cohort, engine: Engine) -> tuple[FluxState, RoundMetrics]:
        """As FLUX, after members have described themselves anew where that is due."""
        told = RoundMetrics()
        if state.cluster_round is not None and self._due(state.round + 1 - state.cluster_round):
            state = self._redescribe(state, cohort, engine, told)
        state, metrics = super().round(state, cohort, engine)
        metrics.add(told)
        return state, metrics

    def _due(self, rounds: int) -> bool:
        """Whether members describe themselves anew so many rounds after the first time."""
        return self.redescribe > 0 and rounds % self.redescribe == 0

    def _redescribe(self, state: FluxState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FluxState:
        """Fresh descriptors of the members that have one, and clusters of everyone's, each going on from the models of
        the clusters before that it is like.
        """
        assert isinstance(state, SoftState)
        place = {client: row for row, client in enumerate(state.described)}
        members = replace(cohort, ids=tuple(client for client in cohort if client in place))
        if not len(members) or state.extractor is None or state.clusters is None or state.descriptors is None:
            return state
        with metrics.timed("descriptor"):
            fresh = describe(state.extractor, self._told_by(state, members), engine)
        metrics.send(members, up=client_bytes(fresh))
        metrics.count(members, forward=1)
        rows = np.array([place[client] for client in members])
        descriptors = put_arrays(state.descriptors, rows, to_arrays(fresh))
        releases = state.releases + 1
        if all(np.array_equal(array, state.descriptors.get(name, 0)) for name, array in descriptors.items()):
            return replace(state, releases=releases)
        with metrics.timed("clustering"):
            clusters = self._group(from_arrays(descriptors), cohort.federation, state.described)
            shares = heirs(clusters.pool, state.clusters.pool, self.settings.clusterer.alpha)
        assignment = state.assignment.copy()
        assignment[list(state.described)] = clusters.labels
        changed = int((assignment != state.assignment).sum())
        if changed or len(shares) != len(state.models):
            metrics.events.append(f"round {state.round + 1}: {len(shares)} clusters of fresh descriptors")
        models, velocity = state.models, state.velocity
        if not _same(shares):
            models, velocity = models.average(shares), inherited(velocity, shares)
        state = replace(state, models=models, velocity=velocity)
        found = replace(state, assignment=assignment, clusters=clusters, descriptors=descriptors)
        return self._shared(replace(found, clustered=len(state.described), releases=releases), metrics)

    def _cluster(self, state: FluxState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> FluxState:
        """FLUX's clusters, and what they lend each other."""
        found = self._shared(super()._cluster(state, cohort, engine, metrics), metrics)
        assert found.sharing is not None
        lending, clusters = int((found.sharing > 0).sum()) - len(found.sharing), len(found.sharing)
        metrics.events.append(f"round {state.round}: {lending} of {clusters * (clusters - 1)} ways to lend are used")
        return found

    def _refine(self, state: FluxState, federation: Federation, metrics: RoundMetrics) -> FluxState:
        """FLUX's clusters found anew, and what those lend each other."""
        refined = super()._refine(state, federation, metrics)
        return refined if refined.clusters is state.clusters else self._shared(refined, metrics)

    def _shared(self, state: FluxState, metrics: RoundMetrics) -> SoftState:
        assert isinstance(state, SoftState)
        assert state.clusters is not None
        with metrics.timed("clustering"):
            found = sharing(state.clusters.pool, self.settings.clusterer.alpha)
        return replace(state, sharing=found)

    def _average(
        self, state: FluxState, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64]
    ) -> Stack:
        """Models average over all that they may borrow from."""
        assert isinstance(state, SoftState)
        if state.sharing is None:
            return super()._average(state, trained, cluster, sizes)
        return lend(state.models, trained, cluster, sizes, state.sharing)

    def unseen(self, state: FluxState, features: Sequence[Features], engine: Engine) -> Predictor:
        """A mixture of the models of the clusters whose P(X) fits, of one where one alone does."""
        if state.clusters is None or state.extractor is None or not self.settings.calibrated_assignment:
            return super().unseen(state, features, engine)
        descriptors = describe_unlabelled(state.extractor, features, engine)
        found = state.clusters.judge(descriptors, self.settings.novelty_level)
        verdict = Verdict(found.nearest, found.novel, found.score, found.confidence)
        weights = mixture(found.distances, descriptors.mean.shape[2])
        predictor = Predictor(state.models, weights, found.distances, verdict=verdict)
        predictor = with_general_model(predictor, state) if self.settings.novel == "global" else predictor
        return hear(predictor, state.general, state.share)


def _same(shares: NDArray[np.float64]) -> bool:
    """Whether every new cluster goes on from the old one of its number."""
    return shares.shape[0] == shares.shape[1] and bool((np.flatnonzero(shares) % (len(shares) + 1) == 0).all())
