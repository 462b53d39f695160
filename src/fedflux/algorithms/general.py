"""A general model beside the clusters': one more opinion, heard as far as members' validation parts say.

Where clusters conflict (P(Y|X)), the model of everyone is good for nobody. Where they are many, small and merely
differ (P(X|Y) at scale), it knows more than any of theirs. Descriptors cannot tell the two apart; a handful of
validation examples a client, pooled over a round's members, can.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Predictor, Stack

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts in the answer that the general model may have."""


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


def hear(predictor: Predictor, general: Stack | None, share: float | NDArray[np.float64]) -> Predictor:
    """(1 − s) of what clients are answered with and s of the general model, s one for all or one for each."""
    part = np.broadcast_to(np.asarray(share, dtype=np.float64), len(predictor.weights))
    if general is None or not part.any():
        return predictor
    weights = np.column_stack([predictor.weights * (1 - part)[:, None], part])
    return replace(predictor, stack=Stack.together([predictor.stack, general]), weights=weights)


def best_share(
    models: Stack, general: Stack, cluster: NDArray[np.int64], cohort: Cohort, engine: Engine
) -> tuple[float, dict[float, float]]:
    """The share that serves the members' validation parts best, the smallest of equals, and the accuracy of each."""
    held, rows = np.unique(cluster, return_inverse=True)
    own = Predictor.single(models.take(held), rows.reshape(-1))
    found = {share: engine.evaluate(hear(own, general, share), cohort, "validation") for share in SHARES}
    judged = ~np.isnan(found[0.0])
    if not judged.any():
        return 0.0, {}
    means = {share: float(scores[judged].mean()) for share, scores in found.items()}
    return max(means, key=lambda share: (means[share], -share)), means
