"""What every clustered method keeps to: FedAvg where there is one cluster, absent clients, resuming, permutations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import (
    SETTINGS,
    TRAINING,
    assert_fedavg,
    assert_same,
    engine_of,
    permuted,
    play,
    saved,
    small,
    together,
)

from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.feddrift import FedDrift
from fedflux.algorithms.baselines.fesem import Fesem
from fedflux.algorithms.baselines.haccs import Haccs
from fedflux.algorithms.baselines.ifca import Ifca
from fedflux.algorithms.baselines.pacfl import Pacfl
from fedflux.data import Federation
from fedflux.engine import SimulatedEngine

Make = Callable[..., Any]
ONE = replace(SETTINGS, clusters=1)
METHODS: dict[str, Make] = {
    "ifca": Ifca,
    "fesem": Fesem,
    "fesem random": lambda settings: Fesem(settings, start="random"),
    "fesem loss": lambda settings: Fesem(settings, start="loss"),
    "cfl": lambda settings: Cfl(settings, warm_up=1),
    "haccs": Haccs,
    "haccs py": lambda settings: Haccs(settings, histogram="py"),
    "pacfl": Pacfl,
    "feddrift": FedDrift,
}


@pytest.fixture(scope="module")
def view() -> Federation:
    return small()


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


@pytest.mark.parametrize(
    "algorithm",
    [
        Ifca(ONE),
        Fesem(ONE),
        Fesem(ONE, start="loss"),
        Fesem(ONE, start="random"),
        Cfl(SETTINGS, eps1=0.0),
        FedDrift(SETTINGS, start="one", delta=float("inf")),
        Pacfl(SETTINGS, beta=90.0),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_with_one_cluster_it_is_fedavg_bit_for_bit(algorithm: Any, view: Federation, engine: SimulatedEngine) -> None:
    assert_fedavg(algorithm, view, engine)


@pytest.mark.parametrize("name", METHODS)
def test_it_goes_on_from_a_saved_state_as_if_nothing_had_been(
    name: str, view: Federation, engine: SimulatedEngine
) -> None:
    algorithm = METHODS[name](SETTINGS)
    share = {1: [0, 1, 2, 3], 2: [1, 2, 3, 4, 5], 3: [0, 2, 4], 4: range(6)}
    whole, _ = play(algorithm, view, engine, 4, share.__getitem__)
    half, _ = play(algorithm, view, engine, 2, share.__getitem__)
    found, _ = play(algorithm, view, engine, 4, share.__getitem__, saved(half))
    assert_same(found.models, whole.models)
    np.testing.assert_array_equal(algorithm.assignment(found), algorithm.assignment(whole))


@pytest.mark.parametrize("name", METHODS)
def test_absent_clients_wait_and_are_answered_in_the_end(name: str, view: Federation, engine: SimulatedEngine) -> None:
    algorithm = METHODS[name](SETTINGS)
    state, _ = play(algorithm, view, engine, 3, lambda r: [0, 1, 2, 3] if r < 3 else [1, 4])
    labels = algorithm.assignment(state)
    assert labels.dtype == np.int64
    assert (labels[:5] >= 0).all()
    assert labels[5] == (0 if name == "cfl" else -1)
    everyone = view.cohort(range(6))
    before = algorithm.known(state, everyone, engine)
    np.testing.assert_allclose(before.weights.sum(axis=1), 1)
    state, costs = algorithm.complete(state, everyone, engine)
    assert (algorithm.assignment(state) >= 0).all()
    assert set(costs.up) | set(costs.down) <= {5} | ({0, 2, 3} if name == "cfl" else set())
    known = algorithm.known(state, everyone, engine)
    assert ((known.weights == 1).sum(axis=1) == 1).all()
    scores = engine.evaluate([known], everyone, "test").values
    assert np.isfinite(scores).all()
    assert state.models.finite().all()


@pytest.mark.parametrize("name", METHODS)
def test_a_cohort_of_one(name: str, view: Federation, engine: SimulatedEngine) -> None:
    algorithm = METHODS[name](SETTINGS)
    state, history = play(algorithm, view, engine, 4, lambda r: [r])
    assert state.models.finite().all()
    assert [list(metrics.validation) for metrics in history] == [[1], [2], [3], [4]]
    predictor = algorithm.unseen(state, view.cohort([0, 5]).features("test"), engine)
    np.testing.assert_allclose(predictor.weights.sum(axis=1), 1)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fesem random"])
def test_permuting_clients_permutes_the_clusters(name: str) -> None:
    """In one batch a client, so that the order in which it goes through its data does not count."""
    view = small("py", level=6)  # clusters clear enough for k-means to have one best answer
    engine = engine_of(view)
    settings = replace(SETTINGS, training=replace(TRAINING, batch_size=512, epochs=4, lr=0.2))
    algorithm, order = METHODS[name](settings), [3, 0, 5, 1, 4, 2]
    plain, _ = play(algorithm, view, engine)
    other = permuted(view, order).blind()
    state, _ = play(algorithm, other, engine)
    before, after = algorithm.assignment(plain)[order], algorithm.assignment(state)
    np.testing.assert_array_equal(together(after), together(before))
    for k, original in enumerate(order):
        for tensor, expected in zip(state.models.tensors.values(), plain.models.tensors.values(), strict=True):
            mine, theirs = tensor[after[k]], expected[algorithm.assignment(plain)[original]]
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "pacfl"])
def test_the_test_phase_mixes_models_by_their_clients(name: str, view: Federation, engine: SimulatedEngine) -> None:
    algorithm = METHODS[name](SETTINGS)
    state, _ = play(algorithm, view, engine, 2)
    predictor = algorithm.unseen(state, view.cohort(range(6)).features("test"), engine)
    expected = np.bincount(algorithm.assignment(state), minlength=len(state.models)) / 6
    np.testing.assert_allclose(predictor.weights, np.tile(expected, (6, 1)))
