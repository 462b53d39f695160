"""What an attacker really learns: a lower confidence bound on ε from trials of a distinguishing attack.

The attacker knows two neighbouring datasets, sees one release and guesses which of them it is of. Under (ε, δ) the
attack's true positive rate is at most e^ε times its false positive rate, plus δ: rates seen bound ε from below.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

Array = NDArray[np.float64]


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
