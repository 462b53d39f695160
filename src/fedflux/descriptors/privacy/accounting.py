"""S4, what a release costs: noise and (ε, δ) accounting, both by OpenDP (extra `privacy`).

OpenDP draws from the operating system's generator, in exact arithmetic: its noise cannot be predicted from a run's
seed, nor read back from the last digits of a float. So two equal private runs differ.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

ADJACENCY = "replace-one"
SHARE = 0.2
"""Of a budget, in ρ of zero-concentrated privacy: what scaling the inputs may cost where it is asked of clients."""
SLACK = 1e-9
"""A scale this much larger than asked for is as good."""


@dataclass(frozen=True)
class Privacy:
    """What a run promises of its descriptors."""

    mechanism: Literal["gaussian", "paper"]
    epsilon: float
    """gaussian: for everything a client's descriptors say in the whole run; paper: for each coordinate."""
    delta: float = 1e-5
    releases: int = 1
    """How often each client describes the same records: the budget is shared out over so many."""
    unit: Literal["record", "group"] = "record"
    """Whom it protects: one record of a client, or all records of one group."""
    seed: int = 0
    """Of the choice of a group's record; no noise follows from it."""
    scaling: bool = False
    """Whether the means and deviations by which inputs are scaled are released out of the same budget."""

    def __post_init__(self) -> None:
        if not (isfinite(self.epsilon) and self.epsilon > 0):
            raise FedfluxError(f"--epsilon {self.epsilon}: give a value above 0")
        if not 0 < self.delta < 1:
            raise FedfluxError(f"--delta {self.delta} is outside 0 to 1")
        if self.releases < 1:
            raise FedfluxError(f"{self.releases} releases: give 1 or more")


def opendp() -> Any:
    """OpenDP's modules, imported where they are used."""
    try:
        from opendp import combinators, domains, measurements, metrics, mod
    except ImportError as error:
        raise FedfluxError("differential privacy needs OpenDP: pip install 'fedflux[privacy]'") from error
    mod.enable_features("contrib")
    return _Modules(combinators, domains, measurements, metrics, mod.OpenDPException)


@dataclass(frozen=True)
class _Modules:
    combinators: Any
    domains: Any
    measurements: Any
    metrics: Any
    error: Any

    def vectors(self, metric: Any) -> tuple[Any, Any]:
        return self.domains.vector_domain(self.domains.atom_domain(T=float, nan=False)), metric(T=float)

    def gaussian(self, scale: float) -> Any:
        return self.measurements.make_gaussian(*self.vectors(self.metrics.l2_distance), scale=scale)

    def laplace(self, scale: float) -> Any:
        return self.measurements.make_laplace(*self.vectors(self.metrics.l1_distance), scale=scale)


def gaussian_noise(values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """The values with Gaussian noise of this deviation on each of them."""
    return np.array(opendp().gaussian(scale)(values.ravel().tolist())).reshape(values.shape)


def laplace_noise(values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """The values with Laplace noise of this scale on each of them."""
    return np.array(opendp().laplace(scale)(values.ravel().tolist())).reshape(values.shape)


def spent(scale: float, sensitivity: float, delta: float, releases: int = 1, disjoint: bool = False) -> float:
    """ε at `delta` of Gaussian releases, each of this ℓ2 sensitivity.

    Releases of the same records compose: OpenDP's map gives each as ρ of zero-concentrated privacy, ρ adds up, and is
    turned into (ε, δ) at the end. A release of n times the records costs what one of √n times the sensitivity costs,
    which is how it is computed. Releases of `disjoint` records cost together what the costliest costs.
    """
    modules = opendp()
    times = 1 if disjoint else releases
    measurement = modules.combinators.make_zCDP_to_approxDP(modules.gaussian(scale))
    try:
        return float(measurement.map(sensitivity * sqrt(times)).epsilon(delta))
    except modules.error as error:  # hardly any noise: more ε than OpenDP's arithmetic holds
        if error.variant != "Overflow":
            raise
        return inf


@lru_cache(maxsize=64)
def release_sigma(epsilon: float, delta: float, sensitivity: float, releases: int = 1, disjoint: bool = False) -> float:
    """The deviation of the noise with which so many releases together spend at most `epsilon` at `delta`."""
    low = high = sensitivity / epsilon
    while spent(high, sensitivity, delta, releases, disjoint) > epsilon:
        low, high = high, 2 * high
    while spent(low, sensitivity, delta, releases, disjoint) <= epsilon:
        low /= 2
    while high > low * (1 + SLACK):
        middle = sqrt(low * high)
        if spent(middle, sensitivity, delta, releases, disjoint) <= epsilon:
            high = middle
        else:
            low = middle
    return high
