"""Rules of a round: one file a method, found here by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedflux.algorithms.apfl import Apfl
from fedflux.algorithms.atp import Atp
from fedflux.algorithms.base import Algorithm, Described, RoundMetrics, Settings
from fedflux.algorithms.describe import DescriptorSettings
from fedflux.algorithms.fedavg import FedAvg
from fedflux.algorithms.fedem import FedEM
from fedflux.algorithms.fedrc import FedRC
from fedflux.algorithms.flux import Flux
from fedflux.algorithms.local import Local
from fedflux.algorithms.pfedme import PFedMe
from fedflux.errors import unknown

__all__ = [
    "ALGORITHMS",
    "READS",
    "Algorithm",
    "Described",
    "DescriptorSettings",
    "FedAvg",
    "Flux",
    "Local",
    "RoundMetrics",
    "Settings",
    "make_algorithm",
]


def _flux_prior(settings: Settings) -> Flux:
    """The paper's FLUX-prior: k-means, told the true M."""
    return Flux(replace(settings, clusterer=replace(settings.clusterer, name="kmeans")), grouping="prior")


ALGORITHMS: dict[str, Callable[[Settings], Algorithm[Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "oracle": lambda settings: Flux(settings, grouping="true"),
    "flux": Flux,
    "flux-prior": _flux_prior,
    "fedem": FedEM,
    "fedrc": FedRC,
    "apfl": Apfl,
    "pfedme": PFedMe,
    "atp": Atp,
}

_DESCRIPTION = frozenset(("cluster_round", "assignment", "significance", "components", "covariance", "bounds"))
READS: dict[str, frozenset[str]] = {
    "local": frozenset(),
    "fedavg": frozenset(),
    "oracle": _DESCRIPTION,
    "flux": _DESCRIPTION | {"clusterer", "clusters", "eps_scale"},
    "flux-prior": _DESCRIPTION,
    "fedem": frozenset(("clusters",)),
    "fedrc": frozenset(("clusters",)),
    "apfl": frozenset(),
    "pfedme": frozenset(),
    "atp": frozenset(),
}
"""Which of the settings that not everyone reads each algorithm reads; the others cannot change its numbers."""


def make_algorithm(name: str, settings: Settings) -> Algorithm[Any]:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name](settings)
