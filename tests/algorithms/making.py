"""Federations, engines and short histories for the tests of the methods."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedflux.algorithms import Algorithm, RoundMetrics, Settings
from fedflux.data import Cohort, Federation, Partition, Split, partition
from fedflux.data.sources import load
from fedflux.engine import (
    Kept,
    LoopEngine,
    Predictor,
    SimulatedEngine,
    Stack,
    Training,
    make_engine,
    one_thread,
)

TRAINING = Training(epochs=2, batch_size=16, lr=0.05, momentum=0.9)
SETTINGS = Settings(rounds=3, training=TRAINING, seed=5, clusters=3)


def digits(clients: int = 6, shift: str = "px") -> Federation:
    """A third of the digits over a few clients, as an ordinary algorithm sees them."""
    return partition(load("digits"), Partition(shift, level=3, clients=clients, seed=5, data_fraction=0.3)).blind()


def loop(federation: Federation) -> SimulatedEngine:
    """The reference engine with a small model."""
    return make_engine("loop", "mlp", federation, seed=5)


def loop_by_autograd(federation: Federation) -> SimulatedEngine:
    """The same, plain SGD too by autograd: a method's own rule then rounds as the default one does."""
    engine = loop(federation)
    assert isinstance(engine.backend, LoopEngine)
    engine.backend._chain = None
    return engine


def play(
    algorithm: Algorithm[Any],
    federation: Federation,
    engine: SimulatedEngine,
    rounds: int = 3,
    members: Callable[[int], Sequence[int]] | None = None,
    state: Any = None,
) -> tuple[Any, RoundMetrics]:
    """The state after some more rounds, and the metrics of the last; without a state, clients keep nothing at first."""
    if state is None:
        engine.restore(Kept())
        state = algorithm.init(federation, engine)
    with one_thread():
        for r in range(state.round + 1, state.round + 1 + rounds):
            chosen = range(len(federation)) if members is None else members(r)
            state, metrics = algorithm.round(state, federation.cohort(chosen, r), engine)
    return state, metrics


def kept(engine: SimulatedEngine, clients: Sequence[int] = range(6), slot: str = "personal") -> Stack:
    """The models that these clients keep in a slot."""
    held = engine.kept()
    return held.models[slot].take(np.searchsorted(held.clients[slot], list(clients)))


def keep(engine: SimulatedEngine, models: Stack, slot: str = "personal") -> None:
    """Client k keeps row k, and nothing else is kept."""
    engine.restore(Kept({slot: np.arange(len(models))}, {slot: models}))


def answers(
    engine: SimulatedEngine, predictor: Predictor, cohort: Cohort, split: Split = "test"
) -> list[NDArray[np.float32]]:
    """Class probabilities of what these clients hold, their own models among those that answer."""
    return engine.predict(engine.resolved(predictor, cohort.ids), cohort.features(split))


def answering(engine: SimulatedEngine, predictor: Predictor, cohort: Cohort) -> Stack:
    """The one model that each of these clients answers with."""
    found = engine.resolved(predictor, cohort.ids)
    assert (np.sort(found.weights, axis=1)[:, :-1] == 0).all()
    return found.stack.take(found.weights.argmax(axis=1))


def same(one: Stack, two: Stack) -> bool:
    """Bit for bit."""
    return one.tensors.keys() == two.tensors.keys() and all(
        torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items()
    )


def apart(one: Stack, two: Stack) -> float:
    """The largest difference of an element."""
    return max(float((t.double() - two.tensors[name].double()).abs().max()) for name, t in one.tensors.items())


def permuted(federation: Federation, order: Sequence[int]) -> Federation:
    """The same clients under other ids: client k is the old client order[k]."""
    whole = federation.patterns._patterns  # type: ignore[attr-defined]
    rows, patterns = [federation.rows[k] for k in order], [whole[k] for k in order]
    return replace(federation, rows=rows, patterns=patterns, _blind=False, _cache=type(federation._cache)()).blind()


class Normed(nn.Module):
    """A small model with one BatchNorm layer, first thing."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(input_shape[0])
        self.out = nn.Linear(int(np.prod(input_shape)), classes)

    def encode(self, x: Tensor) -> Tensor:
        return self.norm(x).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encode(x))
