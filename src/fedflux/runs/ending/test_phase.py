"""Where unlabelled clients have no test phase: features cannot show P(Y|X)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Federation
from fedflux.data.shifts.patterns import shift_parts
from fedflux.runs.config import RunConfig

CONCEPT = "P(Y|X)"


@dataclass(frozen=True, eq=False)
class NoTestPhase:
    """Why some clients, or all, are not asked as unlabelled ones."""

    words: str
    clients: NDArray[np.bool_]
    """Whom it concerns."""


def no_test_phase(
    config: RunConfig, federation: Federation, assignment: NDArray[np.int64], why: Sequence[Mapping[str, Any]] | None
) -> NoTestPhase | None:
    """None where everybody has a test phase.

    Of a simulated shift it is known what differs. Of clients that the data brings, only what sets the found clusters
    apart can tell: a cluster that differs from another in P(Y|X) has a twin, and which of the two an unlabelled client
    belongs to is a guess. Clients of the other clusters keep their own scores. A mean over them would leave out those
    that are hardest to place and stand beside a mean over everybody, so there is none.
    """
    everybody = np.ones(len(assignment), dtype=np.bool_)
    if not shows_in_features(config):
        return NoTestPhase(f"features cannot show {CONCEPT}, which is what shifts", everybody)
    if config.shift != "none" and federation.dataset.client_names is None:
        return None
    pairs = [pair["clusters"] for pair in why or () if CONCEPT in str(pair["shift"]).split(" + ")]
    if not pairs:
        return None
    concerned = np.isin(assignment, np.unique(pairs))
    which = f"clusters {pairs[0][0]} and {pairs[0][1]}" if len(pairs) == 1 else f"{len(pairs)} pairs of clusters"
    words = f"features cannot show {CONCEPT}, in which {which} differ"
    if not concerned.all():
        words += f": {concerned.sum()} of {len(assignment)} clients have none, and the others no mean"
    return NoTestPhase(words, concerned)


def shows_in_features(config: RunConfig) -> bool:
    """Whether the shift that is simulated can be told without labels at all."""
    return "pygx" not in shift_parts(config.shift)
