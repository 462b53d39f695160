"""A general model beside the clusters': one more opinion, heard as far as members' validation parts say.

Where clusters conflict (P(Y|X)), the model of everyone is good for nobody. Where they are many, small and merely
differ (P(X|Y) at scale), it knows more than any of theirs. Descriptors cannot tell the two apart; a handful of
validation examples a client, pooled over members and rounds, can.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Predictor, Stack

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Parts in the answer that the general model may have."""
MEMORY = 0.5
"""What an earlier round's votes count for: models go on learning."""


def jobs_of(cohort: Cohort, cluster: NDArray[np.int64], general: int | None = None) -> list[Job]:
    """Every member trains its cluster's model, and then the general one, where there is one at this row."""
    own = [Job(client, (int(m),)) for client, m in zip(cohort, cluster, strict=True)]
    return own if general is None else [*own, *(Job(client, (general,)) for client in cohort)]


def hear(predictor: Predictor, answering: Stack, share: float | NDArray[np.float64]) -> Predictor:
    """(1 − s) of what clients are answered with and s of the general model, s one for all or one for each.

    `answering` holds the predictor's models and behind them the general one; without that there is nothing to hear.
    """
    part = np.broadcast_to(np.asarray(share, dtype=np.float64), len(predictor.weights))
    if len(answering) == len(predictor.stack) or not part.any():
        return predictor
    weights = np.column_stack([predictor.weights * (1 - part)[:, None], part])
    return replace(predictor, stack=answering, weights=weights)


def votes(own: Predictor, answering: Stack, cohort: Cohort, engine: Engine) -> NDArray[np.float64]:
    """(shares,): the members' validation accuracies with each share, added up; zeros where nobody holds such a part."""
    found = engine.evaluate([hear(own, answering, share) for share in SHARES], cohort, "validation")
    return np.asarray(np.nansum(found.values, axis=1))


def elected(ballot: Sequence[float]) -> float:
    """The share that served best, the smallest of equals."""
    return SHARES[int(np.argmax(ballot))] if len(ballot) else 0.0
