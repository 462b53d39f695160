"""Is an unlabelled client like any cluster? How far its images lie from the looks that the cluster knows.

The misfit of n images is their mean squared distance to the class that each is taken for, label shares left free. Where
the client belongs it varies around μ with variance ω² + σ²/n: images differ (σ²), and so do clients of one cluster
(ω²), both learned from members' validation parts, which no model has trained on either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from fedflux.clustering.placement.mixtures import Array, ClassMixtures

CANDIDATES = 4
"""Clusters whose looks a client is held beside: the likeliest."""
LEAST = 3
"""Members with a validation part that it takes to say what is usual."""


@dataclass(frozen=True)
class Misfit:
    """Of one client's images."""

    mean: float
    variance: float
    """Between its images."""
    count: float
    """How many distinct images there are."""


def misfit_of(mixtures: ClassMixtures, images: Array, likely: Array, worth: float) -> Misfit:
    """The smallest misfit among the few clusters that are likeliest; `worth` is what copies leave of the images."""
    few = np.argsort(-likely, kind="stable")[:CANDIDATES]
    found = mixtures.misfit(images, few)
    best = found[found.mean(axis=1).argmin()]
    return Misfit(float(best.mean()), float(best.var()), worth)


@dataclass(frozen=True)
class UsualMisfit:
    """How large the misfit is of those that belong."""

    mean: float = 0.0
    within: float = 1.0
    """σ²."""
    between: float = 0.0
    """ω²."""
    members: float = 0.0
    """Those it was learned from; too few tell nothing, and nobody is called novel."""
    usual: float = 1.0
    """Images that a member showed, typically."""

    @property
    def calibrated(self) -> bool:
        """Whether it means anything."""
        return self.members >= LEAST

    @staticmethod
    def of(seen: Sequence[Misfit]) -> "UsualMisfit":
        """From the misfits of members' validation parts (ω² after DerSimonian and Laird)."""
        seen = [one for one in seen if one.count > 1]
        if len(seen) < LEAST:
            return UsualMisfit()
        mean, variance, count = (
            np.array([getattr(one, name) for one in seen]) for name in ("mean", "variance", "count")
        )
        within = float((count * variance).sum() / (count - 1).sum())
        weight = count / max(within, 1e-12)
        centre = float((weight * mean).sum() / weight.sum())
        excess = float((weight * (mean - centre) ** 2).sum()) - (len(seen) - 1)
        between = max(excess, 0.0) / max(weight.sum() - (weight**2).sum() / weight.sum(), 1e-12)
        return UsualMisfit(centre, within, float(between), float(len(seen)), float(1 / (1 / count).mean()))

    def likeness(self, misfit: Misfit) -> float:
        """p-value of a client that belongs being as far away; 1 where nothing is known to compare with."""
        if not self.calibrated:
            return 1.0
        centre = (self.between + self.within / self.usual) / self.members
        error = self.between + self.within / max(misfit.count, 1.0) + centre
        return float(stdtr(self.members - 1, (self.mean - misfit.mean) / np.sqrt(max(error, 1e-12))))


def usual_among(alone: NDArray[np.bool_], own: NDArray[np.int64], seen: Sequence[Misfit]) -> UsualMisfit:
    """What is usual, from members of clusters that have more than one: a member beside itself shows no difference."""
    return UsualMisfit.of([one for one, cluster in zip(seen, own, strict=True) if not alone[cluster]])
