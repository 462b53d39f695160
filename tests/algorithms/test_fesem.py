"""FeSEM: nearest centres in parameter space, and the geometry behind them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_same, engine_of, play, small

from fedflux.algorithms.baselines.fesem import Fesem
from fedflux.algorithms.shared.geometry import coordinates, inner_products, squared_distances
from fedflux.data import Federation
from fedflux.data.truth import revealed
from fedflux.engine import Job, Key, SimulatedEngine, Stack


@pytest.fixture(scope="module")
def view() -> Federation:
    return small()


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


def models(count: int, seed: int) -> Stack:
    generator = torch.Generator().manual_seed(seed)
    drawn = {
        "weight": torch.randn(count, 300, 301, generator=generator),
        "bias": torch.randn(count, 5, generator=generator),
    }
    buffers = {
        "norm.running_mean": torch.randn(count, 5, generator=generator),
        "norm.num_batches_tracked": drawn["bias"].long(),
    }
    return Stack({**drawn, **buffers})


def flat(stack: Stack) -> np.ndarray:
    return torch.cat([stack.tensors["weight"].flatten(1), stack.tensors["bias"]], dim=1).double().numpy()


def test_distances_and_products_are_those_of_the_flattened_parameters() -> None:
    mine, centres = models(4, 0), models(3, 1)
    expected = ((flat(mine)[:, None] - flat(centres)[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(mine, centres), expected, rtol=1e-12)
    rows = np.array([2, 0, 0, 1])
    updates = flat(mine) - flat(centres)[rows]
    products = inner_products(mine, centres, rows)
    np.testing.assert_allclose(products, updates @ updates.T, rtol=1e-12)
    points = coordinates(products)
    np.testing.assert_allclose(points @ points.T, products, rtol=1e-9, atol=1e-6)


def test_the_first_centres_are_k_means_of_one_round_from_the_common_model(
    view: Federation, engine: SimulatedEngine
) -> None:
    state, _ = play(Fesem(SETTINGS), view, engine, 1)
    cohort = view.cohort(range(6))
    jobs = [Job(k) for k in range(6)]
    trained = engine.train(engine.initial(), cohort, jobs, SETTINGS.training, Key(5, 1)).models
    centres = trained.average((np.arange(3)[:, None] == state.assignment) * cohort.sizes("train"))
    assert_same(state.models, centres)
    np.testing.assert_array_equal(squared_distances(trained, centres).argmin(axis=1), state.assignment)


def test_clients_with_the_same_data_look_find_each_other() -> None:
    federation = small("px", level=3, fraction=1.0)
    looks = [revealed(federation.patterns, k).look for k in range(6)]
    settings = replace(SETTINGS, clusters=len(set(looks)), training=replace(SETTINGS.training, epochs=2))
    state, _ = play(Fesem(settings), federation, engine_of(federation), 3)
    assert 1 < len(set(looks)) < 6
    for a, b in product(range(6), repeat=2):
        assert (looks[a] == looks[b]) == (state.assignment[a] == state.assignment[b])


def test_a_client_that_moves_is_averaged_into_its_new_centre(view: Federation, engine: SimulatedEngine) -> None:
    algorithm, cohort = Fesem(replace(SETTINGS, clusters=2)), view.cohort(range(6))
    begun = algorithm.init(view, engine)
    away = Stack({name: tensor + 10 for name, tensor in engine.initial().tensors.items()})  # training leads back
    start = replace(begun, round=1, models=begun.models.put([1], away), assignment=np.array([0, 0, 0, 0, 0, 1]))
    state, _ = play(algorithm, view, engine, 2, state=start)
    jobs = [Job(k, (int(m),)) for k, m in enumerate(start.assignment)]
    trained = engine.train(start.models, cohort, jobs, SETTINGS.training, Key(5, 2)).models
    nearest = squared_distances(trained, start.models).argmin(axis=1)
    np.testing.assert_array_equal(state.assignment, nearest)
    assert nearest.tolist() == [0] * 6
    assert_same(state.models.take([0]), trained.average(cohort.sizes("train")[None]))
    assert_same(state.models.take([1]), away)  # nobody's now: it stays


def test_fewer_members_than_centres(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(Fesem(SETTINGS), view, engine, 1, lambda r: [2, 4])
    assert sorted(state.assignment[[2, 4]]) == [0, 1]
    assert_same(state.models.take([2]), engine.initial())


def test_one_model_each_way(view: Federation, engine: SimulatedEngine) -> None:
    state, history = play(Fesem(SETTINGS), view, engine, 2)
    size = state.models.model_bytes()
    for metrics in history:
        assert set(metrics.up.values()) == set(metrics.down.values()) == {size}
        assert metrics.work == {"models_down": 6, "models_up": 6, "forward": 0, "training": 6}
