"""Models as points: inner products and distances between parameters, a slice of them at a time."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.engine import Stack

SLICE = 2**16
"""Parameters of every model held in double precision at once."""
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Statistics that BatchNorm gathers and no gradient trains: they are no part of a model's position."""


def inner_products(trained: Stack, start: Stack, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """⟨ΔW_i, ΔW_j⟩ of all pairs, where ΔW_i is trained model i less row `rows[i]` of `start`.

    Norms, cosines and distances of updates all follow from these, and memory does not grow with the model.
    """
    total = np.zeros((len(trained), len(trained)))
    for new, old in zip(_slices(trained), _slices(start, trained), strict=True):
        update = new - old[torch.as_tensor(rows, device=old.device)]
        total += (update @ update.T).cpu().numpy()
    return total


def squared_distances(models: Stack, centres: Stack) -> NDArray[np.float64]:
    """‖W_i − W̃_m‖² over all parameters at once (models × centres)."""
    total = np.zeros((len(models), len(centres)))
    for mine, theirs in zip(_slices(models), _slices(centres, models), strict=True):
        total += torch.stack([(mine - centre).square().sum(dim=1) for centre in theirs], dim=1).cpu().numpy()
    return total


def coordinates(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points in as many dimensions as there are points, with these inner products and so with the same distances."""
    values, vectors = np.linalg.eigh(products)
    found: NDArray[np.float64] = vectors * np.sqrt(np.maximum(values, 0))
    return found


def _slices(stack: Stack, like: Stack | None = None) -> Iterator[Tensor]:
    """The parameters some at a time, in the order of another stack's names where one is given."""
    for name in (stack if like is None else like).tensors:
        tensor = stack.tensors[name]
        if tensor.is_floating_point() and not name.endswith(BUFFERS):
            flat = tensor.reshape(len(tensor), -1)
            for begin in range(0, flat.shape[1], SLICE):
                yield flat[:, begin : begin + SLICE].double()
