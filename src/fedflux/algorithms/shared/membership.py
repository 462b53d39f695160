"""Where clients are put by how well models fit their training data, and what they answer with once they are put."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED
from fedflux.algorithms.shared.averaging import by_membership
from fedflux.data import Cohort, Split
from fedflux.data.holding import About, Holding, Pass, Seen
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.queries import AskedAlone
from fedflux.engine import Engine, Predictor, Stack
from fedflux.operations import Arrays, operation


@operation("mean-losses")
@dataclass(frozen=True)
class AskMeanLosses(AskedAlone):
    """F_i(θ_m): the mean loss of every model that was sent, on a client's training data."""

    models: int
    losses: ClassVar[Split | None] = "train"

    def passes(self) -> Sequence[Pass]:
        """No latents."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, NDArray[np.generic]]:
        """One number a model; a client without data has none to lose."""
        assert seen.losses is not None
        return {"mean": seen.losses.sum(axis=1, dtype=np.float64) / max(seen.losses.shape[1], 1)}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Losses of other models, not finite, or below zero."""
        fault = shape_fault(answer, {"mean": (self.models,)}, "its losses") or finite_fault(answer, "its losses")
        return fault or ("its losses are below zero" if (answer["mean"].astype(np.float64) < 0).any() else None)


def mean_losses(models: Stack, cohort: Cohort, engine: Engine) -> dict[int, NDArray[np.float64]]:
    """F_i(θ_m) on the training data, by client, of those that answer."""
    answers = engine.ask(AskMeanLosses(len(models)), cohort, models)
    return {client: one["mean"].astype(np.float64) for client, one in zip(answers.clients, answers.arrays, strict=True)}


def with_placed(
    assignment: NDArray[np.int64], clients: Collection[int] | Cohort, placed: NDArray[np.int64] | Sequence[int]
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
