"""FLUX, FLUX-prior and the oracle: the same rounds, told nothing, the number of clusters, or all of them."""

from dataclasses import replace
from typing import ClassVar, Self

from fedflux.algorithms.base import RoundMetrics, Settings
from fedflux.algorithms.flux.rounds import FluxRounds
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.algorithms.registry import algorithm

_WHEN_AND_HOW = ("cluster_round", "components", "covariance", "bounds", "projector", "dp", "epsilon", "delta")
_WHOM = ("privacy_unit",)
_PLACING = ("assignment", "min_members", "late", "significance", "variation", "sharing", "novel", "novelty_level")
DESCRIPTION = frozenset((*_WHEN_AND_HOW, *_WHOM, *_PLACING, "finetune", "server_momentum"))
"""What everyone reads who makes descriptors and clusters by them."""


@algorithm("flux")
class Flux(FluxRounds[Clustered]):
    """The paper's method, with our clusterer."""

    revision: ClassVar[int] = 8
    states: ClassVar[tuple[type, ...]] = (WarmUp, Clustered)
    reads: ClassVar[frozenset[str]] = DESCRIPTION | {"clusterer", "clusters", "eps_scale"}

    def _begin(self, found: Clustered, before: WarmUp, metrics: RoundMetrics) -> Clustered:
        return found


@algorithm("flux-prior")
class FluxPrior(Flux):
    """The paper's FLUX-prior: k-means, told the true M."""

    reads: ClassVar[frozenset[str]] = DESCRIPTION

    @classmethod
    def make(cls, settings: Settings) -> Self:
        """With k-means."""
        return cls(replace(settings, clusterer=replace(settings.clusterer, name="kmeans")), grouping="prior")


@algorithm("oracle")
class Oracle(Flux):
    """FLUX with the true clusters put in at the same moment."""

    reads: ClassVar[frozenset[str]] = DESCRIPTION

    @classmethod
    def make(cls, settings: Settings) -> Self:
        """With the truth."""
        return cls(settings, grouping="true")
