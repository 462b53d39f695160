"""Ditto: its ends are local training and FedAvg, its step is that of the formula, and w is FedAvg's."""

from dataclasses import replace

import numpy as np
import pytest
from tests.algorithms.making import (
    SETTINGS,
    TRAINING,
    answering,
    apart,
    digits,
    kept,
    loop,
    loop_by_autograd,
    play,
    same,
)

from fedflux.algorithms import FedAvg, Local
from fedflux.algorithms.baselines.ditto import Ditto
from fedflux.data import Federation
from fedflux.engine import SimulatedEngine


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop_by_autograd(federation)


def test_without_a_pull_it_is_local_training_bit_for_bit(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = Ditto(SETTINGS, strength=0.0)
    state, _ = play(algorithm, federation, engine)
    own, everyone = kept(engine), federation.cohort(range(6))
    assert same(answering(engine, algorithm.known(state, everyone, engine), everyone), own)
    play(Local(SETTINGS), federation, engine)
    assert same(own, kept(engine))


def test_the_global_model_is_fedavgs_bit_for_bit(federation: Federation) -> None:
    """On the engine as it is: w is trained by plain SGD."""
    engine = loop(federation)
    state, metrics = play(Ditto(SETTINGS), federation, engine)
    expected, _ = play(FedAvg(SETTINGS), federation, engine)
    assert same(state.model, expected.model)
    assert same(Ditto(SETTINGS).unseen(state, federation.cohort([0]).features("test"), engine).stack, expected.model)
    assert metrics.work == {"models_down": 6, "models_up": 6, "forward": 0, "training": 2 * 2 * 6}


def test_a_step_is_that_of_the_formula(federation: Federation, engine: SimulatedEngine) -> None:
    """One batch of everything: v ← v − η (∇f(v) + λ (v − w)), the gradient taken from a step without the pull."""
    whole = replace(SETTINGS, training=replace(TRAINING, epochs=1, batch_size=1000))
    start, _ = play(Ditto(whole, strength=0.0), federation, engine, 1)
    v, held = kept(engine), engine.kept()
    play(Ditto(whole, strength=0.0), federation, engine, 1, state=start)
    free = kept(engine)
    engine.restore(held)
    play(Ditto(whole, strength=2.0), federation, engine, 1, state=start)
    for name, tensor in kept(engine).tensors.items():
        expected = free.tensors[name] - TRAINING.lr * 2.0 * (v.tensors[name] - start.model.tensors[name])
        np.testing.assert_allclose(tensor, expected, atol=1e-6)


def test_the_stronger_the_pull_the_nearer_to_the_global_model(federation: Federation, engine: SimulatedEngine) -> None:
    far = []
    for strength in (0.0, 0.1, 1.0):
        state, _ = play(Ditto(SETTINGS, strength=strength), federation, engine)
        far.append(apart(kept(engine), state.model.take([0] * 6)))
    assert far[0] > far[1] > far[2]


def test_a_client_that_never_came_answers_with_the_global_model(
    federation: Federation, engine: SimulatedEngine
) -> None:
    algorithm = Ditto(SETTINGS)
    state, _ = play(algorithm, federation, engine, 2, lambda r: [0, 1])
    both = federation.cohort([0, 5])
    found = answering(engine, algorithm.known(state, both, engine), both)
    assert same(found.take([1]), state.model)
    assert not same(found.take([0]), state.model)
