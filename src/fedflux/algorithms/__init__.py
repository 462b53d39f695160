"""Rules of a round: FLUX and its kin, the baselines one file each, all found by name."""

from fedflux.algorithms import baselines, flux  # noqa: F401
from fedflux.algorithms.base import Algorithm, Described, RoundMetrics, Settings
from fedflux.algorithms.baselines import (  # noqa: F401
    apfl,
    atp,
    cfl,
    ditto,
    fedbn,
    feddrift,
    fedem,
    fedper,
    fedrc,
    fedrep,
    feroma,
    fesem,
    haccs,
    ifca,
    pacfl,
    paper,
    pfedme,
)  # fmt: skip
from fedflux.algorithms.baselines.fedavg import FedAvg
from fedflux.algorithms.baselines.local import Local
from fedflux.algorithms.flux.describe import DescriptorSettings
from fedflux.algorithms.flux.dynamic import FluxDynamic
from fedflux.algorithms.flux.plain import Flux
from fedflux.algorithms.flux.soft import FluxSoft
from fedflux.algorithms.registry import (
    ALGORITHMS,
    PAPER_BASELINES,
    READS,
    algorithm,
    check_task,
    find_algorithm,
    make_algorithm,
)

__all__ = [
    "ALGORITHMS",
    "PAPER_BASELINES",
    "READS",
    "Algorithm",
    "Described",
    "DescriptorSettings",
    "FedAvg",
    "Flux",
    "FluxDynamic",
    "FluxSoft",
    "Local",
    "RoundMetrics",
    "Settings",
    "algorithm",
    "check_task",
    "find_algorithm",
    "make_algorithm",
]

for name in (  # as people read them: the two extremes, FLUX and its kin, then the others by what they cluster by
    *("local", "fedavg", "oracle", "flux", "flux-prior", "flux-dynamic", "flux-soft"),
    *("ifca", "fesem", "cfl", "haccs", "pacfl", "feddrift", "fedem", "fedrc", "feroma"),
    *("apfl", "ditto", "pfedme", "fedper", "fedrep", "fedbn", "atp"),
):
    ALGORITHMS[name] = ALGORITHMS.pop(name)
