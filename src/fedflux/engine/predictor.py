"""What a client answers with: a mixture of models' class probabilities."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.engine.rules import Operations
from fedflux.engine.stack import Parameters, Stack


class Adaptation(Protocol):
    """How a model is fitted to each batch of unlabelled images before it answers for that batch."""

    @property
    def batch_size(self) -> int:
        """Images answered at once, in the order in which they are asked."""

    def adapt(self, operations: Operations, params: Parameters, x: Tensor) -> Parameters:
        """The parameters for this batch, from those of the model as it was sent."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is said of clients that a model was chosen for by a distance, one entry a client."""

    chosen: NDArray[np.int64]
    """The model whose data are nearest, whether or not it answers."""
    novel: NDArray[np.bool_]
    """Whether the client's data are like no model's."""
    score: NDArray[np.float64]
    """p-value of its data being like some model's."""
    confidence: NDArray[np.float64]
    """Probability of the chosen model, given that one of them is right."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """Row k of `weights` (clients × models) mixes the probabilities of the stack's models for the k-th client asked."""

    stack: Stack
    weights: NDArray[np.float64]
    distances: NDArray[np.float64] | None = None
    """How far each client is from each model's data (clients × models), where the choice was made by a distance; models
    that are nobody's in particular come last and have no column."""
    adaptation: Adaptation | None = None
    """What is done to a model before it answers; None: nothing."""
    verdict: Verdict | None = None
    """Who is new, and how sure the choices are, where a method can tell."""

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
