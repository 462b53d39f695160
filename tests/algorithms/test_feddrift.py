"""FedDrift: who leaves, which models merge, and what that costs."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, TRAINING, assert_same, engine_of, play, small

from fedflux.algorithms.base import RoundMetrics
from fedflux.algorithms.baselines.feddrift import FedDrift, merged
from fedflux.data import Federation
from fedflux.data.cache import ByteCache
from fedflux.engine import SimulatedEngine

LONG = replace(SETTINGS, training=replace(TRAINING, epochs=3))


@pytest.fixture(scope="module")
def view() -> Federation:
    return small("none")


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


class Mixed(Federation):
    """Clients 3 and up hold swapped labels."""

    def materialise(self, client, split):
        held = super().materialise(client, split)
        return replace(held, y=(held.y + 1) % 10) if client >= 3 else held


def drifting(view: Federation) -> Federation:
    told = {field.name: getattr(view, field.name) for field in fields(view) if field.init}
    return Mixed(**{**told, "_cache": ByteCache(), "_derived": {}})


def test_it_begins_with_a_model_a_client_all_from_the_same_start(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(FedDrift(SETTINGS), view, engine, 1)
    assert state.assignment.tolist() == list(range(6))
    alone, _ = play(FedDrift(SETTINGS), view, engine, 1, lambda r: [2])
    assert_same(state.models.take([2]), alone.models)
    assert np.isfinite(state.accuracy).all()
    few, _ = play(FedDrift(SETTINGS, max_models=4), view, engine, 1)
    assert few.assignment.tolist() == [0, 1, 2, 3, 0, 1]


def test_clients_that_are_alike_merge(view: Federation, engine: SimulatedEngine) -> None:
    state, history = play(FedDrift(LONG, delta=0.3), view, engine, 3)
    assert len(np.unique(state.assignment)) == 1
    assert any("merge" in event for metrics in history for event in metrics.events)


def test_labels_swapped_at_half_the_clients_end_in_two_models(view: Federation, engine: SimulatedEngine) -> None:
    settings = replace(SETTINGS, training=replace(TRAINING, epochs=6))
    algorithm = FedDrift(settings, start="one", delta=0.3, past_data=False)
    state, _ = play(algorithm, view, engine, 2)
    assert state.assignment.tolist() == [0] * 6
    state, _ = play(algorithm, drifting(view), engine, 6, state=state)
    assert state.assignment[:3].tolist() == [0, 0, 0]
    assert len(np.unique(state.assignment[3:])) == 1
    assert state.assignment[3] != 0
    assert (state.accuracy > 0.9).all()


def test_merging_identical_models_changes_nothing(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(FedDrift(SETTINGS), view, engine, 1)
    same = replace(state, models=state.models.take([3] * 6), history=state.history * np.arange(1, 7)[:, None])
    found = merged(same, np.array([0, 0, 2, 0, 2, 5]))
    assert_same(found.models, state.models.take([3] * 3))
    assert found.assignment.tolist() == [0, 0, 1, 0, 1, 2]
    assert found.history.sum(axis=1).tolist() == [1 + 2 + 4, 3 + 5, 6]


def test_merged_models_are_weighted_by_what_trained_them(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(FedDrift(SETTINGS), view, engine, 1)
    history = state.history.copy()
    history[0, 0] = 3
    found = merged(replace(state, history=history), np.array([0, 0, 2, 3, 4, 5]))
    weight = state.models.tensors["classifier.weight"]
    torch.testing.assert_close(found.models.tensors["classifier.weight"][0], 0.75 * weight[0] + 0.25 * weight[1])
    assert_same(found.models.take([1, 4]), state.models.take([2, 5]))


def leave(algorithm: FedDrift, view: Federation, engine: SimulatedEngine, accuracy: list[float]):
    """The state when clients come back having once been so accurate."""
    state, _ = play(algorithm, view, engine, 1)
    state = replace(state, accuracy=np.array(accuracy), round=2)
    cohort = view.cohort(range(6))
    candidates = algorithm._candidates(state)
    rows = np.stack([np.full(6, 0.5) for _ in candidates])
    return algorithm._drift(state, candidates, rows, cohort)


def test_a_drop_beyond_delta_leads_away(view: Federation, engine: SimulatedEngine) -> None:
    drops = [0.5, 0.55, 0.57, 0.2, 0.5, 0.9]
    state, rows = leave(FedDrift(SETTINGS, start="one"), view, engine, drops)
    assert rows == [1, 2]
    assert state.assignment.tolist() == [0, 0, 1, 0, 0, 2]
    assert state.release.tolist() == [0, 0, 3, 0, 0, 3]
    assert_same(state.models.take([1, 2]), state.models.take([0, 0]))
    assert FedDrift(SETTINGS)._candidates(state).tolist() == [0]  # isolated models take nobody in
    assert FedDrift(SETTINGS)._candidates(replace(state, round=3)).tolist() == [0, 1, 2]
    assert (state.accuracy == 0.5).all()


def test_without_room_it_takes_the_oldest_idle_model_or_stays(view: Federation, engine: SimulatedEngine) -> None:
    state, rows = leave(FedDrift(SETTINGS, start="one", max_models=2), view, engine, [0.9, 0.9, 0.5, 0.5, 0.5, 0.5])
    assert rows == [1]
    assert state.assignment.tolist() == [1, 0, 0, 0, 0, 0]
    state, rows = leave(FedDrift(SETTINGS, max_models=6), view, engine, [0.5, 0.5, 0.9, 0.5, 0.5, 0.5])
    assert len(rows) == 1  # all equally good: the others join model 0, and one of 1 to 5 is taken
    assert state.assignment.tolist() == [0, 0, rows[0], 0, 0, 0]
    assert state.history[rows[0]].tolist() == [0, 0, 1, 0, 0, 0]


def test_a_model_is_trained_by_all_whose_data_it_was_given(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = FedDrift(SETTINGS, start="one", delta=float("inf"))
    state, _ = play(algorithm, view, engine, 1)
    history = np.array([[1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]])
    moved = np.array([0, 0, 0, 1, 1, 1])
    state = replace(state, models=state.models.take([0, 0, 0]), history=history, used=np.ones(3), assignment=moved)
    metrics = RoundMetrics()
    _, trained = algorithm._train(replace(state, round=2), view.cohort(range(6)), engine, metrics)
    assert trained == [0, 0, 1, 2, 3, 4, 5]
    assert metrics.work["models_up"] == 7  # client 0 trains both; nobody's model 2 is left alone
    assert metrics.up[0] == 2 * metrics.up[1]
    metrics = RoundMetrics()
    now = replace(algorithm, past_data=False)
    now._train(replace(state, round=2), view.cohort(range(6)), engine, metrics)
    assert metrics.work["models_up"] == 6


def test_all_models_are_measured_in_one_exchange(
    view: Federation, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = FedDrift(SETTINGS)
    state, _ = play(algorithm, view, engine, 1)
    calls: list[int] = []
    original = engine.evaluate

    def evaluate(predictors, cohort, split):
        calls.extend([len(predictors)] if split == "train" else [])
        return original(predictors, cohort, split)

    monkeypatch.setattr(engine, "evaluate", evaluate)
    play(algorithm, view, engine, 2, state=state)
    assert calls == [6]


def test_accuracies_are_measured_on_a_bounded_sample(
    view: Federation, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedflux.algorithms.baselines.feddrift.SAMPLE_BATCHES", 1)
    seen: list[int] = []
    original = engine.evaluate

    def evaluate(predictors, cohort, split):
        seen.extend(len(cohort.data(k, split)) for k in cohort if split == "train")
        return original(predictors, cohort, split)

    monkeypatch.setattr(engine, "evaluate", evaluate)
    play(FedDrift(SETTINGS), view, engine, 2)
    assert set(seen) == {16}


def test_a_model_that_somebody_would_fall_back_on_is_not_given_away(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = FedDrift(SETTINGS, start="one", max_models=2)
    state, _ = leave(algorithm, view, engine, [0.9, 0.5, 0.5, 0.5, 0.5, 0.5])
    nobody = np.zeros(6, dtype=np.int64)
    state = replace(state, accuracy=np.array([0.9, 0.5, 0.5, 0.5, 0.9, 0.9]), release=nobody, round=4)
    accuracies = np.array([[0.5, 0.5, 0.5, 0.5, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2, 0.5, 0.5]])
    after, rows = algorithm._drift(state, np.array([0, 1]), accuracies, view.cohort(range(6)))
    assert rows == []  # both models are somebody's best, so that nobody can leave
    assert after.assignment.tolist() == [0, 0, 0, 0, 1, 1]
    assert (after.release == 0).all()
