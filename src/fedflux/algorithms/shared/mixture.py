"""What FedEM and FedRC share: samples that belong to several models at once, each with a responsibility."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.algorithms.base import aggregate
from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Key, Stack, Training
from fedflux.engine.rules import Batch, Extras, LossRule, Operations
from fedflux.engine.stack import Parameters

Floats = NDArray[np.float64]
SETTLED = 1e-6
"""The weights of a newcomer are settled once no step moves one of them further than this."""
MOST_STEPS = 1000


def responsibilities(evidence: Floats, pi: Floats) -> Floats:
    """E-step: q(m) ∝ π(m) exp(evidence(m)) for every sample (samples × models), rows summing to one."""
    with np.errstate(divide="ignore"):
        scores = evidence + np.log(pi)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), dtype=np.float64)


def settled(evidence: Floats) -> Floats:
    """The weights π of a client under fixed models: π ← mean q, from uniform ones, until they stay."""
    pi = np.full(evidence.shape[1], 1 / evidence.shape[1])
    for _ in range(MOST_STEPS):
        before, pi = pi, responsibilities(evidence, pi).mean(axis=0)
        if np.abs(pi - before).max() < SETTLED:
            break
    return pi


@dataclass(frozen=True)
class WeightedLoss(LossRule):
    """Descend (1/|B|) Σ_j q_j f_j; q is the extra `weights`, by position in the client's training part."""

    def losses(self, operations: Operations, params: Parameters, batch: Batch, extras: Extras) -> Tensor:
        """q_j f_j."""
        return extras["weights"][batch.positions] * super().losses(operations, params, batch, extras)


def train_mixture(
    models: Stack, cohort: Cohort, engine: Engine, training: Training, key: Key, q: Sequence[Floats], pi: Floats
) -> Stack:
    """M-step of the models: every member trains each of them on its share q, and θ_m ← Σ_i n_i θ_im / Σ_i n_i.

    Clients weigh by their size, not by π; only one with π_i(m) = 0, which cannot have moved θ_m, is left out.
    """
    every = range(len(models))
    jobs = [Job(client, (m,)) for client in cohort for m in every]
    weights = [{"weights": torch.from_numpy(one[:, m].astype(np.float32))} for one in q for m in every]
    rule = WeightedLoss(training.optimiser)
    trained = engine.train(models, cohort, jobs, training, key, rule, weights)
    sizes = np.repeat(cohort.sizes("train"), len(models)) * (pi.ravel() > 0)
    return aggregate(models, trained, np.tile(np.arange(len(models)), len(cohort)), sizes)
