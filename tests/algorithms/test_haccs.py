"""HACCS: histograms, their distances, their noise, and the clusters made of them."""

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, engine_of, play, small

from fedflux.algorithms.baselines.haccs import (
    BINS,
    AskHistograms,
    Haccs,
    label_counts,
    nearest,
    noisy,
    optics,
    pixel_counts,
    row_distances,
)
from fedflux.algorithms.check_engines import WrappedEngine
from fedflux.data import Federation, Labelled
from fedflux.data.holding import About
from fedflux.engine import SimulatedEngine


@pytest.fixture(scope="module")
def view() -> Federation:
    return small("py", level=6, fraction=1.0)


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


def test_counts() -> None:
    x = torch.tensor([[0, 255], [128, 12], [13, 0]], dtype=torch.uint8).reshape(3, 1, 1, 2)
    data = Labelled(x, torch.tensor([2, 0, 0]), np.arange(3))
    assert label_counts(data, 3).tolist() == [2, 0, 1]
    counts = pixel_counts(data, 3)
    assert counts.shape == (3, BINS)
    assert np.flatnonzero(counts[0]).tolist() == [0, 1, 10]
    assert counts[0, :2].tolist() == [2, 1]
    assert counts[1].sum() == 0
    assert np.flatnonzero(counts[2]).tolist() == [0, BINS - 1]
    floats = Labelled(x.float() / 255, data.y, data.rows)
    np.testing.assert_array_equal(pixel_counts(floats, 3), counts)


def test_disjoint_labels_are_as_far_apart_as_can_be() -> None:
    p, q = np.array([[0.5, 0.5, 0, 0]]), np.array([[0, 0, 0, 1.0]])
    assert row_distances(p, q, "hellinger")[0, 0] == pytest.approx(1)
    assert row_distances(p[:, 1:] * 2, q[:, 1:], "euclidean")[0, 0] == pytest.approx(np.sqrt(2))
    assert row_distances(p, p, "hellinger")[0, 0] == 0


def test_identical_histograms_make_one_cluster() -> None:
    assert optics(np.zeros((5, 5))).tolist() == [0] * 5
    assert optics(np.zeros((5, 5)), 0.25).tolist() == [0] * 5
    assert optics(np.zeros((1, 1))).tolist() == [0]


def test_noise_becomes_clusters_of_one() -> None:
    points = np.array([0, 0.01, 0.02, 5, 5.01, 9, 20.0])
    labels = optics(np.abs(points[:, None] - points), 0.25)
    assert labels.tolist() == [0, 0, 0, 1, 1, 2, 3]


def test_newcomers_join_the_nearest_cluster() -> None:
    distances = np.array([[0.1, 0.9, 0.2], [0.5, 0.1, 0.5]])
    assert nearest(distances, np.array([4, 1, 4])).tolist() == [4, 1]


def test_laplace_noise() -> None:
    counts = np.array([[0.0, 3, 100, 0], [1, 0, 0.5, 7]])
    np.testing.assert_allclose(noisy(counts, 1e12, np.random.default_rng(0)), counts, atol=1e-9)
    drawn = np.stack([noisy(counts, 0.1, np.random.default_rng(k)) for k in range(200)])
    assert (drawn[:, counts == 0] == 0).all()
    assert (drawn >= 0).all()
    assert (drawn[:, 0, 1] == 1).any()  # below zero: min(count, 1)
    assert (drawn[:, 1, 2] == 0.5).any()
    assert drawn[:, 0, 2].std() == pytest.approx(np.sqrt(2) * 10, rel=0.3)


def test_label_shift_is_found_and_the_summary_travels_once(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Haccs(SETTINGS, histogram="py")
    state, history = play(algorithm, view, engine, 3, lambda r: range(5) if r < 3 else range(6))
    kept = [tuple(np.unique(view.cohort([k]).data(k, "train").y)) for k in range(5)]
    alike = np.array([[a == b for b in kept] for a in kept])
    np.testing.assert_array_equal(state.assignment[:5, None] == state.assignment[:5], alike)
    size = state.models.model_bytes()
    assert history[0].up == dict.fromkeys(range(5), size + 4 * 10)
    assert history[1].up == dict.fromkeys(range(5), size)
    assert history[2].up[5] == size + 4 * 10
    assert len(np.unique(state.assignment)) == len(state.models)


def test_bytes_of_the_pixel_histograms(view: Federation, engine: SimulatedEngine) -> None:
    state, (metrics,) = play(Haccs(SETTINGS), view, engine, 1)
    assert set(metrics.up.values()) == {state.models.model_bytes() + 4 * 10 * BINS}


def test_noise_is_the_clients_own(view: Federation, engine: SimulatedEngine) -> None:
    whole, _ = play(Haccs(SETTINGS, epsilon=0.1), view, engine, 1)
    later, _ = play(Haccs(SETTINGS, epsilon=0.1), view, engine, 2, lambda r: [0, 1, 2] if r == 1 else [3, 4, 5])
    np.testing.assert_array_equal(later.summaries, whole.summaries)


def test_an_answer_is_frequencies_and_nothing_else(view: Federation, engine: SimulatedEngine) -> None:
    about = About({"train": 100, "validation": 20, "test": 20}, classes=10)
    for kind, shape in (("pxgy", (10, BINS)), ("py", (1, 10))):
        question = AskHistograms(kind, 10, seed=5)  # type: ignore[arg-type]
        (answer,) = engine.ask(question, view.cohort([2])).arrays
        assert answer["frequencies"].shape == question.shape == shape
        assert answer["frequencies"].dtype == np.float32
        assert question.fault(answer, about) is None
        told = np.asarray(answer["frequencies"], dtype=np.float64)
        bad = {
            "has a wrong shape": {"frequencies": told[:, :-1]},
            "does not have the arrays asked for": {"frequencies": told, "more": told},
            "NaN or infinite": {"frequencies": told * np.nan},
            "no frequencies": {"frequencies": 2 * told},
            "histograms are no": {"frequencies": np.where(told == told.max(), -told, told)},
        }
        for words, arrays in bad.items():
            assert words in (question.fault(arrays, about) or "")


def test_who_tells_no_histogram_waits_and_is_asked_again(view: Federation, engine: SimulatedEngine) -> None:
    class Shy(WrappedEngine):
        def ask(self, query, clients, models=None):
            return self.inner.ask(query, clients.only([0, 1, 2, 3]), models)

    algorithm = Haccs(SETTINGS, histogram="py")
    state, metrics = algorithm.round(algorithm.init(view, engine), view.cohort(range(6), 1), Shy(engine))
    assert state.assignment[4:].tolist() == [-1, -1]
    assert metrics.up == {k: metrics.up[0] if k < 4 else 0 for k in range(6)}
    assert set(metrics.validation) == set(range(6))
    later, _ = play(algorithm, view, engine, 2, state=state)
    assert (later.assignment >= 0).all()
    np.testing.assert_array_equal(later.assignment[:4], state.assignment[:4])
