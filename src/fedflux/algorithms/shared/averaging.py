"""From what clients trained to models, and from models to scores and answers: what most methods do in a round."""

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import RoundMetrics, Settings
from fedflux.data import Cohort
from fedflux.engine import Engine, Predictor, Stack, Trained


def aggregate(models: Stack, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64]) -> Stack:
    """θ_m ← Σ s θ / Σ s over the trained models of each cluster; a cluster nobody trained keeps its model."""
    weights = np.zeros((len(models), len(trained)))
    weights[cluster, np.arange(len(trained))] = sizes
    active = np.flatnonzero(weights.sum(axis=1))
    if not len(active):
        return models
    if len(active) == len(models):
        return trained.average(weights)
    averaged = trained.average(weights[active])
    return models.put(active, averaged)


def averaged(settings: Settings, models: Stack, trained: Trained, cohort: Cohort) -> Stack:
    """The models after a round in which every job trained one of them: a weighted mean, or a robust rule."""
    if not trained.jobs:
        return models
    cluster = rows_of(trained)
    rule = settings.average or aggregate
    return rule(models, trained.models, cluster, sizes_of(trained, cohort))


def rows_of(trained: Trained) -> NDArray[np.int64]:
    """The model that each job began from."""
    return np.array([job.models[0] for job in trained.jobs], dtype=np.int64)


def sizes_of(trained: Trained, cohort: Cohort) -> NDArray[np.float64]:
    """s: on how many examples each job was done."""
    return np.array([cohort.federation.size(client, "train") for client in trained.clients], dtype=np.float64)


def by_membership(models: Stack, assignment: NDArray[np.int64], clients: int) -> Predictor:
    """The test phase of methods that choose by labels: Σ_m (K_m/K) softmax(θ_m(x)), K_m the clients in cluster m."""
    placed = assignment[assignment >= 0]
    if not len(placed):
        return Predictor.shared(models, np.ones(len(models)), clients)
    return Predictor.shared(models, np.bincount(placed, minlength=len(models)).astype(np.float64), clients)


def validated(predictor: Predictor, cohort: Cohort, engine: Engine) -> dict[int, float]:
    """The accuracy of each member that answers on its validation part."""
    return engine.evaluate([predictor], cohort, "validation").by_client(cohort)


def count_round(metrics: RoundMetrics, cohort: Cohort, trained: Trained, model_bytes: int, epochs: int) -> None:
    """A round in which every member is sent one model and sends one back."""
    answered = cohort.only(trained.clients)
    metrics.send(cohort, down=model_bytes)
    metrics.send(answered, up=model_bytes)
    metrics.count(cohort, models_down=1)
    metrics.count(answered, models_up=1, training=epochs)
