"""What an attacker really learns: a lower confidence bound on ε from trials of a distinguishing attack.

The attacker knows two neighbouring datasets, sees one release and guesses which of them it is of. Under (ε, δ) the
attack's true positive rate is at most e^ε times its false positive rate, plus δ: rates seen bound ε from below.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta

from fedflux.data.holding import LooseHolding
from fedflux.data.labelled import Features, Split
from fedflux.descriptors.privacy import accounting, units
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.privacy.mechanism import sigma_of
from fedflux.descriptors.privacy.release import ReleaseStatistic
from fedflux.descriptors.projector import Projector

Array = NDArray[np.float64]

CLASSES, LENGTH = 2, 2
"""Of the data that a group is attacked in; more of either would not move it farther."""


def epsilon_lower_bound(without: Array, having: Array, delta: float, confidence: float = 0.99) -> float:
    """The ε that the attack proves at this confidence; 0 where it proves nothing.

    `without` and `having` are the attacker's scores of releases of the two datasets, high ones for the second. The
    threshold is chosen on the first half of the trials and counted on the second, so that choosing it proves nothing.
    Both directions of the guess are tried; each rate's bound holds at a quarter of what confidence leaves.
    """
    doubt = (1 - confidence) / 4
    bounds = [0.0]
    for low, high in ((without, having), (-having, -without)):
        half = len(low) // 2, len(high) // 2
        candidates = np.quantile(low[: half[0]], np.linspace(0.5, 1.0, 101))
        chosen = max(candidates, key=lambda cut: _proved(low[: half[0]], high[: half[1]], cut, delta, doubt))
        bounds.append(_proved(low[half[0] :], high[half[1] :], float(chosen), delta, doubt))
    return max(bounds)


def _proved(low: Array, high: Array, threshold: float, delta: float, doubt: float) -> float:
    """log of the least true positive rate, less δ, over the greatest false positive rate (Clopper and Pearson)."""
    false, true = int((low > threshold).sum()), int((high > threshold).sum())
    most = beta.ppf(1 - doubt, false + 1, len(low) - false) if false < len(low) else 1.0
    least = beta.ppf(doubt, true, len(high) - true + 1) if true else 0.0
    return float(np.log(max(least - delta, 1e-12) / most))


@dataclass(frozen=True, eq=False)
class _Records(LooseHolding):
    """A client whose records lie in groups."""

    group: NDArray[np.int64] | None = None

    def rows(self, split: Split) -> NDArray[np.int64]:
        """No record is a copy of another."""
        return np.arange(len(self.features))

    def groups(self, split: Split) -> NDArray[np.int64] | None:
        """As they were given."""
        return self.group


def attack_on_group(
    epsilon: float, unit: Literal["record", "group"], records: int = 15, trials: int = 6000, delta: float = 1e-5
) -> float:
    """The ε that likelihood ratios prove of a release when a whole group of so many records is exchanged.

    The release is made as for a client with this privacy unit. Every record of the group is exchanged for its
    opposite, which moves the sums as far as records can.
    """
    privacy = Privacy("gaussian", epsilon, delta, unit=unit)
    exact = [_release_of_group(sign, records, privacy) for sign in (1.0, -1.0)]
    direction, sigma = exact[1] - exact[0], sigma_of(privacy)
    scores = [accounting.gaussian_noise(np.tile(one, (trials, 1)), sigma) @ direction for one in exact]
    return epsilon_lower_bound(scores[0], scores[1], delta)


def _release_of_group(sign: float, records: int, privacy: Privacy) -> Array:
    """Sums of 40 groups of one record, and of one group of many that all point the same way, before noise."""
    others = np.random.default_rng(0).normal(size=(40, LENGTH))
    z = np.concatenate([others, np.tile([sign, 0.0], (records, 1))])
    y = np.concatenate([np.arange(40) % CLASSES, np.zeros(records, dtype=np.int64)])
    group = np.concatenate([np.arange(40), np.full(records, 40)])
    held = _Records(Features(torch.tensor(z)), 0, CLASSES, group)
    chosen = units.chosen("train", privacy)(held)
    kept = np.arange(len(z)) if chosen is None else chosen
    statistic = ReleaseStatistic(Projector(np.zeros(LENGTH), np.eye(LENGTH)), CLASSES)
    return statistic.add(None, torch.tensor(z[kept]), torch.tensor(y[kept])).vector(labelled=True)
