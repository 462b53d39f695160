"""How much clients of one cluster differ by nature: random effects, estimated from the clients themselves.

Real clients are no draws from identical distributions. The class mean of client k in a cluster is μ_u + b_ku + noise,
where b_ku is a random effect of τ within-class deviations in every coordinate (means.py). Label shares have
the variance p(1 − p)(1/n + ρ²) (labels.py). Spreads within classes scatter, too (spreads.py).
"""

from dataclasses import dataclass, field, replace

import numpy as np

from fedflux.clustering.evidence.pool import Array, Index, Pool
from fedflux.clustering.variation.labels import labels_of
from fedflux.clustering.variation.means import random_effects
from fedflux.clustering.variation.spreads import LEAST_CLIENTS, LEAST_RESIDUALS, spreads_of

EFFECT_FLOOR = 0.02
"""Where nothing can be estimated, differences of this many deviations are trifles, however many samples prove them."""
MOST = 0.25
"""The largest natural variation, in deviations: two clients that differ by more, 1.1 deviations in each class of ten
coordinates, differ by a shift. Clients that are all different and clients that vary by nature look the same but for
the size of it, so the line must be drawn somewhere.
"""
MOST_OF_LABELS = 0.03
"""The same of label shares, in units of √(p(1 − p)): a share of a tenth varies by a hundredth. Shares that differ by
more are what P(Y) means; a label in ten that two clients of five lack is 0.11.
"""


@dataclass(frozen=True, eq=False)
class Variation:
    """What clients of one cluster differ by besides their sampling noise, and how well that is known."""

    estimated: bool = False
    along: float = 0.0
    """α: the variance of class means along the class's own scatter, in within-class variances."""
    apart: float = 0.0
    """β: that independent by coordinate, in squared deviations."""
    whitened: float = 0.0
    """Both together, per whitened coordinate."""
    most: float = 0.0
    """τ if all classes were asked, where only those are that scatter least."""
    labels: float = 0.0
    """ρ: of label shares, in units of √(p(1 − p))."""
    floor: float = EFFECT_FLOOR
    """Differences of so many deviations that are trifles, where nothing was estimated."""
    freedom: float = np.inf
    """Degrees of freedom behind τ."""
    directions: float = 1.0
    """Share of the latent directions that the class means scatter in as their covariances say. Below one where rounding
    hides the narrowest directions."""
    spreads: Array = field(default_factory=lambda: np.zeros(0))
    """(U,): ψ_u, the variance of a class's log variance, times its degrees of freedom; empty if not compared."""
    spread_freedom: Array = field(default_factory=lambda: np.zeros(0))
    """(U,): degrees of freedom behind that."""

    @property
    def means(self) -> float:
        """τ: by how many within-class deviations class means vary in every coordinate."""
        return float(np.sqrt(self.along + self.apart))

    def within(self, wider: "Variation") -> "Variation":
        """The same, but no more than what was estimated of wider clusters."""
        most = min(self.most, wider.most)
        return replace(self.capped(most), most=most, labels=min(self.labels, wider.labels))

    def capped(self, most: float) -> "Variation":
        """The same, with class means that vary by no more than so many deviations."""
        factor = min(1.0, (most / max(self.means, 1e-12)) ** 2)
        return replace(self, along=factor * self.along, apart=factor * self.apart, whitened=factor * self.whitened)


UNKNOWN = Variation()
"""Nothing was estimated: sampling noise alone, and a fixed floor."""


def estimate(pool: Pool, labels: Index) -> Variation:
    """The variation of single clients (the groups of `pool`) within clusters; UNKNOWN where there is too little to
    tell it from, or privacy's noise is larger than what could be seen.
    """
    clusters = int(labels.max()) + 1
    if len(pool) < LEAST_CLIENTS or len(pool) - clusters < LEAST_RESIDUALS or not _plain(pool):
        return UNKNOWN
    effects = random_effects(pool, labels, clusters)
    if effects is None:
        return UNKNOWN
    spreads, spread_freedom = spreads_of(pool, labels, clusters)
    found = Variation(
        estimated=True,
        along=effects.along,
        apart=effects.apart,
        whitened=effects.whitened,
        most=min(effects.most, MOST),
        labels=min(labels_of(pool, labels, clusters), MOST_OF_LABELS),
        floor=0.0,
        freedom=effects.freedom,
        directions=effects.directions,
        spreads=spreads,
        spread_freedom=spread_freedom,
    )
    return found.capped(MOST)


def _plain(pool: Pool) -> bool:
    return not (pool.noise.any() or pool.label_noise.any())
