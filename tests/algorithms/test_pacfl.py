"""PACFL: singular vectors, principal angles, the tree, and the clusters of MNIST's patterns."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from sklearn.metrics import rand_score
from tests.algorithms.playing import SETTINGS, engine_of, play, small

from fedflux.algorithms.baselines.pacfl import AskSubspace, Pacfl, leading, principal_angles
from fedflux.data import Federation, Partition, partition
from fedflux.data.holding import About
from fedflux.data.sources import load
from fedflux.engine import SimulatedEngine, make_engine


@pytest.fixture(scope="module")
def view() -> Federation:
    return small("px", level=6, fraction=1.0)


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


@pytest.mark.parametrize("shape", [(300, 90), (80, 200), (20, 90)])
def test_the_leading_vectors_span_what_a_whole_decomposition_says(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    x = (generator.normal(size=shape) * np.linspace(5, 1, shape[1]) + 1).astype(np.float32)
    found, whole = leading(x, 3), np.linalg.svd(x.astype(np.float64), full_matrices=False)[2][:3]
    assert np.degrees(subspace_angles(found.T.astype(np.float64), whole.T)).max() < 0.1
    np.testing.assert_allclose(np.asarray(found @ found.T), np.eye(3), atol=1e-5)


def test_fewer_examples_than_vectors_leave_the_last_ones_zero() -> None:
    x = np.array([[3.0, 4.0, 0.0]], dtype=np.float32)
    found = leading(x, 2)
    np.testing.assert_allclose(np.abs(found), np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]]), atol=1e-6)
    for shape in ((4, 3), (80, 90)):
        assert not leading(np.zeros(shape, dtype=np.float32), 2).any()


def test_angles_are_those_of_scipy_and_missing_vectors_do_not_count() -> None:
    generator = np.random.default_rng(1)
    one, two = (np.linalg.qr(generator.normal(size=(20, 3)))[0] for _ in range(2))
    expected = np.sort(np.degrees(subspace_angles(one, two)))
    mine, theirs = (np.stack([basis.T]).astype(np.float32) for basis in (one, two))
    assert principal_angles(mine, theirs, "smallest")[0, 0] == pytest.approx(expected[0], abs=1e-2)
    assert principal_angles(mine, theirs, "mean")[0, 0] == pytest.approx(expected.mean(), abs=1e-2)
    short = theirs.copy()
    short[0, 1:] = 0
    alone = np.sort(np.degrees(subspace_angles(one, two[:, :1])))
    assert principal_angles(mine, short, "mean")[0, 0] == pytest.approx(alone[0], abs=1e-2)
    assert principal_angles(mine, np.zeros_like(short), "mean")[0, 0] == 90


def test_the_tree_is_cut_at_beta() -> None:
    apart = np.array([[0, 2, 30], [2, 0, 32], [30, 32, 0]], dtype=np.float64)
    cut = {beta: Pacfl(SETTINGS, beta=beta).clustered(apart).tolist() for beta in (1.0, 10.0, 90.0)}
    assert cut == {1.0: [0, 1, 2], 10.0: [0, 0, 1], 90.0: [0, 0, 0]}
    assert Pacfl(SETTINGS).clustered(np.zeros((1, 1))).tolist() == [0]


def test_a_newcomer_joins_the_nearest_subspace_with_labels_or_without(
    view: Federation, engine: SimulatedEngine
) -> None:
    algorithm = Pacfl(SETTINGS, beta=40.0)
    state, _ = play(algorithm, view, engine, 1, lambda r: [0, 1, 2, 3, 4])
    assert len(state.models) > 1
    late, _ = algorithm.complete(state, view.cohort(range(6)), engine)
    between = principal_angles(late.summaries[5:], late.summaries[:5], "mean")[0]
    assert late.assignment[5] == state.assignment[between.argmin()]
    predictor = algorithm.unseen(state, view.cohort([0, 5]).features("test"), engine)
    np.testing.assert_array_equal(predictor.weights.argmax(axis=1), late.assignment[[0, 5]])


def test_what_is_no_basis_is_refused() -> None:
    ask, about = AskSubspace(3, 2), About({"train": 10, "validation": 0, "test": 0}, 2)
    good = np.array([[1, 0, 0], [0, 0.6, 0.8]], dtype=np.float32)
    assert ask.fault({"basis": good}, about) is None
    assert ask.fault({"basis": np.stack([good[0], np.zeros(3, dtype=np.float32)])}, about) is None
    for bad in (good * 2, good[[0, 0]], good[:1], np.full_like(good, np.nan)):
        assert "its subspace" in str(ask.fault({"basis": bad}, about))


@pytest.mark.skipif("FEDFLUX_DATA" not in os.environ, reason="needs MNIST: name its folder by FEDFLUX_DATA")
@pytest.mark.slow
@pytest.mark.parametrize("shift", ["px", "py"])
@pytest.mark.parametrize("seed", [50, 51, 52])
def test_it_finds_the_patterns_of_mnist(shift: str, seed: int) -> None:
    data = load("mnist", Path(os.environ["FEDFLUX_DATA"]))
    federation = partition(data, Partition(shift, level=5, clients=10, seed=seed))
    engine = make_engine("loop", "lenet5", federation, seed=seed)
    algorithm, cohort = Pacfl(SETTINGS), federation.blind().cohort(range(10))
    answers = engine.ask(algorithm.question(federation), cohort)
    found = algorithm.clustered(algorithm.distances(answers.stacked("basis"), answers.stacked("basis")))
    assert federation.truth is not None
    score = rand_score(federation.truth, found)
    print(f"{shift} seed {seed}: {score:.3f} of pairs")
    assert score >= 0.9
