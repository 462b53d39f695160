"""A general model beside the clusters': one more opinion, heard as far as members' validation parts say.

Where clusters conflict (P(Y|X)), the model of everyone is good for nobody. Where they are many, small and merely
differ (P(X|Y) at scale), it knows more than any of theirs. Descriptors cannot tell the two apart; a handful of
validation examples a client, pooled over members and rounds, can.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Predictor, Stack

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Parts in the answer that the general model may have."""
MEMORY = 0.5
"""What an earlier round's votes count for: models go on learning."""


def jobs_beside(cohort: Cohort, cluster: NDArray[np.int64], clusters: int) -> list[Job]:
    """Every member trains its cluster's model, then the general one, which comes last in the stack of both."""
    return [*jobs_of(cohort, cluster), *(Job(client, (clusters,)) for client in cohort)]


def jobs_of(cohort: Cohort, cluster: NDArray[np.int64]) -> list[Job]:
    """Every member trains its cluster's model."""
    return [Job(client, (int(m),)) for client, m in zip(cohort, cluster, strict=True)]


def apart(trained: Stack, sizes: NDArray[np.float64]) -> tuple[Stack, Stack]:
    """What members made of their clusters' models, and the average of what they made of the general one."""
    count = len(sizes)
    return trained.take(np.arange(count)), trained.take(np.arange(count, 2 * count)).average(sizes[None])


@lru_cache(maxsize=1)
def beside(models: Stack, general: Stack) -> Stack:
    """Both in one stack, made once for all that ask for them one after another."""
    return Stack.together([models, general])


def hear(predictor: Predictor, general: Stack | None, share: float | NDArray[np.float64]) -> Predictor:
    """(1 − s) of what clients are answered with and s of the general model, s one for all or one for each."""
    part = np.broadcast_to(np.asarray(share, dtype=np.float64), len(predictor.weights))
    if general is None or not part.any():
        return predictor
    weights = np.column_stack([predictor.weights * (1 - part)[:, None], part])
    return replace(predictor, stack=beside(predictor.stack, general), weights=weights)


def votes(own: Predictor, general: Stack, cohort: Cohort, engine: Engine) -> NDArray[np.float64]:
    """(shares,): the members' validation accuracies with each share, added up; zeros where nobody holds such a part."""
    found = [engine.evaluate(hear(own, general, share), cohort, "validation") for share in SHARES]
    return np.asarray(np.nansum(found, axis=1))


def elected(ballot: Sequence[float]) -> float:
    """The share that served best, the smallest of equals."""
    return SHARES[int(np.argmax(ballot))] if len(ballot) else 0.0
