"""Which examples each client meets at each step: the same draws for every engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.engine.base import Key
from fedflux.streams import stream


def epoch_orders(key: Key, client: int, size: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    """A fresh order of the client's examples for every epoch, from (seed, round, client) alone."""
    order = stream(key.seed, "batches", key.round, client)
    for _ in range(epochs):
        yield order.permutation(size)


@dataclass(frozen=True, eq=False)
class Schedule:
    """One epoch of K clients side by side: S steps, B examples a step; short clients are filled up with position 0."""

    positions: Tensor
    """(S, K, B): positions in each client's training part."""
    real: Tensor
    """(S, K, B): False where an example only fills up."""
    whole: NDArray[np.bool_]
    """(S,): whether every client has a full batch, so that no mask is needed."""

    def __len__(self) -> int:
        return len(self.whole)


def schedules(
    key: Key, clients: Sequence[int], sizes: Sequence[int], epochs: int, batch_size: int, device: str
) -> Iterator[Schedule]:
    """The epochs of a round, one after another."""
    orders = [epoch_orders(key, client, size, epochs) for client, size in zip(clients, sizes, strict=True)]
    steps = max(-(-size // batch_size) for size in sizes)
    real = np.arange(steps * batch_size)[None] < np.array(sizes)[:, None]
    shaped = real.reshape(len(sizes), steps, batch_size).transpose(1, 0, 2)
    whole = np.asarray(shaped.reshape(steps, -1).all(axis=1))
    on_device = torch.from_numpy(np.ascontiguousarray(shaped)).to(device)
    for _ in range(epochs):
        flat = np.zeros((len(sizes), steps * batch_size), dtype=np.int64)
        for row, order in enumerate(orders):
            flat[row, : sizes[row]] = next(order)
        positions = np.ascontiguousarray(flat.reshape(len(sizes), steps, batch_size).transpose(1, 0, 2))
        yield Schedule(torch.from_numpy(positions).to(device), on_device, whole)
