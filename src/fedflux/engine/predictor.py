"""What a client answers with: a mixture of models' class probabilities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.engine.stack import Stack


@dataclass(frozen=True, eq=False)
class Predictor:
    """Row k of `weights` (clients × models) mixes the probabilities of the stack's models for the k-th client asked."""

    stack: Stack
    weights: NDArray[np.float64]
    distances: NDArray[np.float64] | None = None
    """How far each client is from each model's data (clients × models), where the choice was made by a distance."""

    @staticmethod
    def single(stack: Stack, chosen: NDArray[np.int64], distances: NDArray[np.float64] | None = None) -> "Predictor":
        """One model a client."""
        weights = np.zeros((len(chosen), len(stack)))
        weights[np.arange(len(chosen)), chosen] = 1.0
        return Predictor(stack, weights, distances)

    @staticmethod
    def shared(stack: Stack, weights: NDArray[np.float64], clients: int) -> "Predictor":
        """The same mixture for every client, weights normalised."""
        return Predictor(stack, np.tile(weights / weights.sum(), (clients, 1)))
