"""Where clients are put by how well models fit their training data, and what they answer with once they are put."""

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import by_membership
from fedflux.data import Cohort
from fedflux.engine import Engine, Predictor, Stack

UNPLACED = -1


def mean_losses(models: Stack, cohort: Cohort, engine: Engine) -> NDArray[np.float64]:
    """F_i(θ_m) on the training data (members × models); a member without data has none to lose."""
    rows: list[NDArray[np.float64]] = []
    for part in cohort.parts("train"):
        losses = engine.losses(models, part, "train")
        rows += [one.sum(axis=1, dtype=np.float64) / max(one.shape[1], 1) for one in losses]
    return np.stack(rows)


def with_placed(
    assignment: NDArray[np.int64], clients: Cohort | list[int], placed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The assignment with these clients put anew."""
    changed = assignment.copy()
    changed[list(clients)] = placed
    return changed


def unplaced(assignment: NDArray[np.int64], cohort: Cohort) -> list[int]:
    """The members that have no cluster yet."""
    return [client for client in cohort if assignment[client] == UNPLACED]


def own_model(models: Stack, assignment: NDArray[np.int64], clients: Cohort) -> Predictor:
    """Known association: the model of the client's cluster; whoever has none yet gets the mixture of the test phase."""
    mine = assignment[list(clients.ids)]
    weights = by_membership(models, assignment, len(clients)).weights
    weights[mine >= 0] = np.eye(len(models))[mine[mine >= 0]]
    return Predictor(models, weights)
