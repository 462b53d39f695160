"""IFCA: least loss, M models down and one up, models that nobody chooses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, TRAINING, engine_of, play, small

from fedflux.algorithms import make_algorithm
from fedflux.algorithms.baselines.ifca import Ifca
from fedflux.data import Federation
from fedflux.engine import SimulatedEngine
from fedflux.errors import FedfluxError


@pytest.fixture(scope="module")
def view() -> Federation:
    return small()


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


def test_members_choose_by_the_loss_of_the_models_as_sent(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(Ifca(SETTINGS), view, engine, 1)
    losses = engine.backend.losses(engine.initial(3), view.cohort(range(6)), "train")
    np.testing.assert_array_equal(state.assignment, [one.mean(axis=1).argmin() for one in losses])


def test_equal_models_go_to_the_lowest_index_and_the_others_stay(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Ifca(SETTINGS)
    same = engine.initial().take([0, 0, 0])
    start = replace(algorithm.init(view, engine), models=same)
    state, _ = play(algorithm, view, engine, 1, state=start)
    assert state.assignment.tolist() == [0] * 6
    for name, tensor in state.models.tensors.items():
        assert not torch.equal(tensor[0], same.tensors[name][0])
        assert torch.equal(tensor[1:], same.tensors[name][1:])


def test_costs(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Ifca(replace(SETTINGS, training=replace(TRAINING, epochs=2)))
    state, (metrics,) = play(algorithm, view, engine, 1, lambda r: [0, 3])
    size = state.models.model_bytes()
    assert metrics.up == {0: size, 3: size}
    assert metrics.down == {0: 3 * size, 3: 3 * size}
    assert metrics.work == {"models_down": 6, "models_up": 2, "forward": 6, "training": 4}
    _, costs = algorithm.complete(state, view.cohort(range(6)), engine)
    assert costs.work == {"models_down": 12, "models_up": 0, "forward": 12, "training": 0}


def test_restarts_look_for_models_that_attract_clients(view: Federation, engine: SimulatedEngine) -> None:
    plain, _ = play(Ifca(replace(SETTINGS, clusters=2)), view, engine, 1)
    state, (metrics,) = play(Ifca(replace(SETTINGS, clusters=2), restarts=5, share=0.3), view, engine, 1)
    least = [np.bincount(s.assignment, minlength=2).min() for s in (plain, state)]
    assert least[1] >= max(least[0], 2)
    assert metrics.work["models_down"] > 2 * 6


def test_it_must_be_told_how_many(view: Federation, engine: SimulatedEngine) -> None:
    for name in ("ifca", "fesem"):
        with pytest.raises(FedfluxError, match="--clusters M"):
            make_algorithm(name, replace(SETTINGS, clusters=None)).init(view, engine)
