"""Clustered methods on a small federation: what their tests share."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedflux.algorithms import Settings
from fedflux.algorithms.baselines.fedavg import FedAvg
from fedflux.data import Federation, Partition, partition
from fedflux.data.cache import ByteCache
from fedflux.data.sources import load
from fedflux.engine import Kept, SimulatedEngine, Stack, Training, make_engine
from fedflux.savable import put_together, take_apart

TRAINING = Training(epochs=1, batch_size=16, lr=0.05, momentum=0.9)
SETTINGS = Settings(rounds=4, training=TRAINING, seed=5, clusters=3)


def small(shift: str = "px", level: int = 3, clients: int = 6, fraction: float = 0.3) -> Federation:
    return partition(
        load("digits"), Partition(shift, level=level, clients=clients, seed=5, data_fraction=fraction)
    ).blind()


def engine_of(federation: Federation) -> SimulatedEngine:
    return make_engine("loop", "mlp", federation, seed=5)


def play(
    algorithm: Any,
    view: Federation,
    engine: SimulatedEngine,
    rounds: int = 3,
    cohort: Callable[[int], Sequence[int]] | None = None,
    state: Any = None,
) -> tuple[Any, list[Any]]:
    """The state after these rounds and their metrics; given a state, the rounds after it."""
    if state is None:
        engine.restore(Kept())
        state = algorithm.init(view, engine)
    history = []
    for r in range(state.round + 1, rounds + 1):
        members = range(len(view)) if cohort is None else cohort(r)
        state, metrics = algorithm.round(state, view.cohort(list(members), r), engine)
        history.append(metrics)
    return state, history


def assert_fedavg(algorithm: Any, view: Federation, engine: SimulatedEngine, row: int = 0) -> None:
    """The method's one model is FedAvg's after three rounds, bit for bit."""
    state, _ = play(algorithm, view, engine)
    expected, _ = play(FedAvg(algorithm.settings), view, engine)
    for name, tensor in expected.model.tensors.items():
        assert torch.equal(state.models.tensors[name][row], tensor[0])


def assert_same(found: Stack, expected: Stack) -> None:
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor)


def saved(state: Any) -> Any:
    """The state after a way to disk and back."""
    return put_together(type(state), *take_apart(state))


def permuted(view: Federation, order: Sequence[int]) -> Federation:
    """Client k of the result is client `order[k]`."""
    patterns = [view.patterns.reveal(k) for k in order]  # type: ignore[attr-defined]
    return replace(view, rows=[view.rows[k] for k in order], patterns=patterns, _cache=ByteCache(), _derived={})


def together(labels: np.ndarray) -> np.ndarray:
    """Which pairs share a cluster: the same whatever the clusters are called."""
    return labels[:, None] == labels
