"""What a client answers with: a mixture of models, some of which it may keep to itself."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.engine.rules import Operations
from fedflux.engine.stack import Parameters, Stack
from fedflux.placement import Placement


class Adaptation(Protocol):
    """How a model is fitted to each batch of unlabelled images before it answers for that batch."""

    @property
    def batch_size(self) -> int:
        """Images answered at once, in the order in which they are asked."""

    def adapt(self, operations: Operations, params: Parameters, x: Tensor) -> Parameters:
        """The parameters for this batch, from those of the model as it was sent."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """Row k of `weights` (clients × models) mixes the probabilities of models for the k-th client asked.

    Columns are the models of the stack and then, by name, the models that a client keeps in its slots.
    """

    stack: Stack
    weights: NDArray[np.float64]
    adaptation: Adaptation | None = None
    """What is done to a model before it answers; None: nothing."""
    placement: Placement | None = None
    """Where the clients were placed, where models were chosen by that."""
    slots: tuple[str, ...] = ()
    blended: bool = False
    """Mix parameters to one model a client instead of probabilities."""
    layers: tuple[str, ...] = ()
    """The tensors that are personal where not the whole model is: slots hold these alone, and all others are those of
    the stack's only model."""

    @staticmethod
    def single(stack: Stack, chosen: NDArray[np.int64]) -> "Predictor":
        """One model a client."""
        weights = np.zeros((len(chosen), len(stack)))
        weights[np.arange(len(chosen)), chosen] = 1.0
        return Predictor(stack, weights)

    @staticmethod
    def shared(stack: Stack, weights: NDArray[np.float64], clients: int) -> "Predictor":
        """The same mixture for every client, weights normalised."""
        return Predictor(stack, np.tile(weights / weights.sum(), (clients, 1)))

    @staticmethod
    def kept(stack: Stack, slot: str, has_one: NDArray[np.bool_], layers: tuple[str, ...] = ()) -> "Predictor":
        """The model, or these layers, that each client keeps in a slot; the stack's only model for whoever has none."""
        weights = np.stack([~has_one, has_one], axis=1).astype(np.float64)
        return Predictor(stack, weights, slots=(slot,), layers=layers)
