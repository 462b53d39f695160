"""Rules of a round: one file a method, found here by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedflux.algorithms.base import Algorithm, Described, RoundMetrics, Settings
from fedflux.algorithms.baselines.apfl import Apfl
from fedflux.algorithms.baselines.atp import Atp
from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.fedavg import FedAvg
from fedflux.algorithms.baselines.feddrift import FedDrift
from fedflux.algorithms.baselines.fedem import FedEM
from fedflux.algorithms.baselines.fedrc import FedRC
from fedflux.algorithms.baselines.fesem import Fesem
from fedflux.algorithms.baselines.haccs import Haccs
from fedflux.algorithms.baselines.ifca import Ifca
from fedflux.algorithms.baselines.local import Local
from fedflux.algorithms.baselines.paper import HARNESS
from fedflux.algorithms.baselines.pfedme import PFedMe
from fedflux.algorithms.flux.describe import DescriptorSettings
from fedflux.algorithms.flux.dynamic import FluxDynamic
from fedflux.algorithms.flux.plain import Flux
from fedflux.algorithms.flux.soft import FluxSoft
from fedflux.errors import unknown

__all__ = [
    "ALGORITHMS",
    "HARNESS",
    "OWN_RULE",
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


def _flux_soft(settings: Settings) -> FluxSoft:
    """FLUX-soft: weights come from calibrated tests, and so do its clusters."""
    told = replace(settings, clusterer=replace(settings.clusterer, name="calibrated"), true_count=False)
    return FluxSoft(told, redescribe=settings.redescribe)


ALGORITHMS: dict[str, Callable[[Settings], Algorithm[Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "oracle": lambda settings: Flux(settings, grouping="true"),
    "flux": Flux,
    "flux-prior": _flux_prior,
    "flux-dynamic": FluxDynamic,
    "flux-soft": _flux_soft,
    "ifca": Ifca,
    "fesem": Fesem,
    "cfl": Cfl,
    "haccs": Haccs,
    "feddrift": FedDrift,
    "fedem": FedEM,
    "fedrc": FedRC,
    "apfl": Apfl,
    "pfedme": PFedMe,
    "atp": Atp,
}

_DESCRIPTION = frozenset(("cluster_round", "assignment", "significance", "components", "covariance", "bounds"))
_DESCRIPTION |= {"projector", "answer", "novel", "novelty_level", "dp", "epsilon", "delta"}
_MOMENTUM = frozenset(("server_momentum",))
"""Ours and FedAvg; the other methods are as their authors define them."""
_ONE_MODEL = frozenset(("finetune",))
"""Methods that answer a client with one model, which can then be fine-tuned."""
READS: dict[str, frozenset[str]] = {
    "local": frozenset(),
    "fedavg": _ONE_MODEL | _MOMENTUM,
    "oracle": _ONE_MODEL | _MOMENTUM | _DESCRIPTION,
    "flux": _ONE_MODEL | _MOMENTUM | _DESCRIPTION | {"clusterer", "clusters", "eps_scale"},
    "flux-prior": _ONE_MODEL | _MOMENTUM | _DESCRIPTION,
    "flux-dynamic": _ONE_MODEL
    | _MOMENTUM
    | (_DESCRIPTION - {"novel", "answer"})
    | {"clusterer", "eps_scale", "redescribe", "false_alarms"},
    "flux-soft": _ONE_MODEL | _MOMENTUM | _DESCRIPTION | {"redescribe"},
    "ifca": _ONE_MODEL | {"clusters"},
    "fesem": _ONE_MODEL | {"clusters"},
    "cfl": _ONE_MODEL,
    "haccs": _ONE_MODEL,
    "feddrift": _ONE_MODEL,
    "fedem": frozenset(("clusters",)),
    "fedrc": frozenset(("clusters",)),
    "apfl": frozenset(),
    "pfedme": frozenset(),
    "atp": frozenset(),
}
"""Which of the settings that not everyone reads each algorithm reads; the others cannot change its numbers."""


OWN_RULE = frozenset(("apfl", "fedem", "fedrc", "pfedme"))
"""Methods whose clients train by a rule of their own; the others' by plain SGD."""


def make_algorithm(name: str, settings: Settings) -> Algorithm[Any]:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return (HARNESS if settings.flux_paper and name in HARNESS else ALGORITHMS)[name](settings)
