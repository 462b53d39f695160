"""Server momentum (FedAvgM): models on the server go on in the direction in which rounds have moved them.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.
With few clients of a cluster in a round, or few examples a client, what one round learns is small and noisy; what
several rounds agree on is neither.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fedflux.engine import Stack


def carried_on(
    before: Stack,
    averaged: Stack,
    velocity: Stack | None,
    beta: float,
    trained: Sequence[int] | NDArray[np.int64],
    names: Collection[str],
) -> tuple[Stack, Stack]:
    """v ← β v + (θ̄ − θ), θ ← θ + v for the rows that were trained, and the new v; None stands for v = 0.

    `averaged` holds θ̄, what clients made of `before`, whose other rows stay as they are: a model that nobody trained
    does not move. Only tensors of these names have momentum: statistics that a layer collects, such as BatchNorm's, are
    averaged, since a variance that goes on falling would end below zero.
    """
    rows = list(trained)
    moved, speed = dict(averaged.tensors), {}
    for name in [name for name in before.tensors if name in names]:
        start, mean = before.tensors[name], averaged.tensors[name]
        past = mean.new_zeros(mean.shape) if velocity is None else velocity.tensors[name]
        moved[name] = mean.clone()
        moved[name][rows] += beta * past[rows]
        speed[name] = past.clone()
        speed[name][rows] = moved[name][rows] - start[rows]
    return Stack(moved), Stack(speed)
