"""Where the battery of checks plays: a small federation with two looks, a few rounds, and what comes of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedflux.algorithms.base import Algorithm, RoundMetrics, Settings
from fedflux.data import Cohort, Dataset, Examples, Federation, Partition, partition
from fedflux.engine import Engine, Kept, SimulatedEngine, Training, make_engine
from fedflux.models.protocol import EncoderHead
from fedflux.savable import put_together, take_apart

Make = Callable[[Settings], Algorithm[Any]]
CLIENTS, LATER, ROUNDS, CLASSES, SIDE = 6, 2, 4, 3, 4
PER_CLIENT, TEST = 38, 13
"""Examples a client: 31 to train on, 7 to validate and 13 to test with, which nothing else there is as many as."""
NORMALISED = "fedflux.algorithms.check_stage:Normalised"
SETTINGS = Settings(rounds=ROUNDS, training=Training(1, 8, 0.05, 0.9), seed=3, clusters=2, cluster_round=2)


def small_federation(clients: Sequence[int] = range(CLIENTS)) -> Federation:
    """Clients of two looks (bright in the left or the right half, by class), in the order asked for."""
    generator = np.random.default_rng(0)
    everyone = CLIENTS + LATER
    parts = []
    for count in (PER_CLIENT, TEST):
        x = generator.normal(0, 0.6, (everyone, count, 1, SIDE, SIDE))
        y = np.tile(np.arange(count) % CLASSES, (everyone, 1))
        for client in range(everyone):
            for k, label in enumerate(y[client]):
                x[client, k, 0, label, : 2 if client % 2 else None] += 2.0
                x[client, k, 0, 3] += 2.0 * (client % 2)
        who = np.repeat(np.arange(everyone), count)
        parts.append(Examples(x.reshape(-1, 1, SIDE, SIDE).astype(np.float32), y.reshape(-1), who))
    names, truth = tuple(f"client {k}" for k in range(everyone)), np.arange(everyone) % 2
    made = partition(Dataset("npz", parts[0], parts[1], CLASSES, names, truth), Partition("none", level=1, seed=3))
    chosen = list(clients)
    rows = tuple(made.rows[k] for k in chosen)
    return replace(made, rows=rows, names=tuple(names[k] for k in chosen), _truth=truth[chosen])


@dataclass(frozen=True, eq=False)
class Step:
    """The state before the first round or after one, what that round told, and what clients keep by then."""

    state: Any
    metrics: RoundMetrics | None
    kept: Kept


@dataclass(frozen=True, eq=False)
class Play:
    """Some rounds of an algorithm, with the engine that they were played on."""

    algorithm: Algorithm[Any]
    view: Federation
    engine: SimulatedEngine
    steps: list[Step]

    @property
    def end(self) -> Any:
        """The state after the last round."""
        return self.steps[-1].state

    @property
    def everyone(self) -> Cohort:
        """All clients, after the last round."""
        return self.view.cohort(range(len(self.view)))


def stage(
    make: Make, settings: Settings = SETTINGS, clients: Sequence[int] = range(CLIENTS)
) -> tuple[Algorithm[Any], Federation, SimulatedEngine]:
    """The algorithm, what it may see, and an engine."""
    algorithm = make(settings)
    federation = small_federation(clients)
    view = federation if algorithm.uses_truth else federation.blind()
    return algorithm, view, fresh_engine(view, algorithm)


def fresh_engine(view: Federation, algorithm: Algorithm[Any] | None = None) -> SimulatedEngine:
    """The reference engine, with nothing in its clients' slots and a model that the algorithm can train."""
    model = "mlp" if algorithm is None or not getattr(algorithm, "needs_batch_norm", False) else NORMALISED
    return make_engine("loop", model, view, seed=3, device="cpu")


class Normalised(EncoderHead):
    """A small model with BatchNorm."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 128), nn.BatchNorm1d(128), nn.ReLU())
        self.classifier = nn.Linear(128, classes)


def everyone(round: int) -> Sequence[int]:
    """All clients in every round."""
    return range(CLIENTS)


def only_one(round: int) -> Sequence[int]:
    """The same client in every round."""
    return [2]


def all_but_last(round: int) -> Sequence[int]:
    """All but one client in every round."""
    return range(CLIENTS - 1)


def cohorts(view: Federation, chosen: Callable[[int], Sequence[int]] = everyone) -> Iterator[Cohort]:
    """The members of every round."""
    return (view.cohort(chosen(r), r) for r in range(1, ROUNDS + 1))


def play(
    make: Make,
    chosen: Callable[[int], Sequence[int]] = everyone,
    settings: Settings = SETTINGS,
    clients: Sequence[int] = range(CLIENTS),
    through: Callable[[Engine], Engine] = lambda engine: engine,
) -> Play:
    """All rounds, step by step; `through` puts something between the algorithm and the engine."""
    algorithm, view, engine = stage(make, settings, clients)
    between = through(engine)
    steps = [Step(algorithm.init(view, between), None, engine.kept())]
    for cohort in cohorts(view, chosen):
        state, metrics = algorithm.round(steps[-1].state, cohort, between)
        steps.append(Step(state, metrics, engine.kept()))
    return Play(algorithm, view, engine, steps)


def saved(value: Any) -> Any:
    """A state, or what clients keep, after a way to disk and back."""
    tensors, outline = take_apart(value)
    return put_together(type(value), tensors, outline)


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same, bit for bit."""
    return same_parts(take_apart(one), take_apart(other))


def same_parts(one: tuple[dict[str, torch.Tensor], Any], other: tuple[dict[str, torch.Tensor], Any]) -> bool:
    """The same of states that were taken apart."""
    tensors, others = one[0], other[0]
    if tensors.keys() != others.keys() or one[1] != other[1]:
        return False
    return all(_equal(tensors[name].numpy(), others[name].numpy()) for name in tensors)


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
