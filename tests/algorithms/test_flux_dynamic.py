"""FLUX-dynamic: drift is found, clusters follow, past ones are remembered, whoever comes or goes."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.algorithms.playing import TRAINING, assert_same, engine_of, play, together
from tests.runs.making import read_rounds

import fedflux
from fedflux.algorithms import Settings
from fedflux.algorithms.base import RoundMetrics
from fedflux.algorithms.baselines.fedavg import FedAvg
from fedflux.algorithms.flux.describe import describe
from fedflux.algorithms.flux.dynamic import MEMORY, DynamicState, FluxDynamic
from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.descriptors.queries import AskDescriptor
from fedflux.engine import SimulatedEngine, make_engine
from fedflux.errors import FedfluxError
from fedflux.runs.config import make_config
from fedflux.runs.evaluation import told_of_clusters
from fedflux.runs.identity import determines
from fedflux.savable import put_together, take_apart

ROUNDS = 6
SETTINGS = Settings(rounds=ROUNDS, training=TRAINING, seed=5, cluster_round=2)


def drifting(drift: str | None, level: int = 2) -> Federation:
    """Of these clients several share a look, and all hold enough for a chunk to show it."""
    return partition(load("digits"), Partition("px", level=level, clients=6, seed=5, drift=drift))


def events(history: list[Any], word: str) -> list[str]:
    return [event for metrics in history for event in metrics.events if word in event]


def played(drift: str | None, level: int = 2, **more: Any) -> tuple[Federation, DynamicState, list[Any]]:
    federation = drifting(drift, level)
    view = federation.blind()
    state, history = play(FluxDynamic(replace(SETTINGS, **more)), view, engine_of(view), ROUNDS)
    return federation, state, history


def test_the_drift_is_found_in_the_first_round_after_it_at_those_who_changed() -> None:
    federation, state, history = played("after:3")
    before, after = federation.at(3).truth, federation.at(4).truth
    assert before is not None
    assert after is not None
    changed = np.flatnonzero(before != after).tolist()
    assert 0 < len(changed) < 6
    assert events(history, "drift")[0] == f"round 4: drift at {len(changed)} of 6 clients: {str(changed)[1:-1]}"
    assert not np.array_equal(together(before), together(after))
    np.testing.assert_array_equal(together(state.assignment), together(after))  # who is with whom is the truth of now


def test_without_drift_nothing_is_done_again() -> None:
    _, state, history = played(None, false_alarms=1e-6)
    assert events(history, "drift") == []
    assert len(events(history, "clusters")) == 1
    assert state.clusters is not None
    assert len(state.models) == len(state.clusters.centroids) == len(state.used)


def test_what_was_told_first_and_since_is_kept_of_everyone() -> None:
    """`first` and `recent` add up to the description that clusters are found from; version 0.1 keeps neither."""
    _, state, _ = played(None, false_alarms=1e-9)
    assert state.history is not None
    kept = state.history.first["count"].astype(int) + state.history.recent["count"].astype(int)
    np.testing.assert_array_equal(kept, state.descriptors["count"])
    assert (state.history.recent["count"].sum(axis=1) > 0).any()
    _, older, _ = played(None, false_alarms=1e-9, drift_test="chunk")
    assert older.history is None


def test_those_that_drifted_begin_a_new_history() -> None:
    federation, state, _ = played("after:5")
    changed = np.flatnonzero(federation.at(5).truth != federation.at(6).truth)
    assert state.history is not None
    rows = [state.described.index(client) for client in changed]
    assert len(rows) > 0
    np.testing.assert_array_equal(state.history.first["count"][rows], state.descriptors["count"][rows])
    assert (state.history.recent["count"][rows] == 0).all()


def test_patterns_that_come_back_find_their_models() -> None:
    federation = drifting("after:3,5").blind()
    stages = federation._epochs
    assert stages is not None
    back = replace(stages, drawn=(stages.drawn[0], stages.drawn[1], stages.drawn[0]))
    federation = replace(federation, _epochs=back, _derived={})
    algorithm, engine = FluxDynamic(SETTINGS), engine_of(federation)
    state, _ = play(algorithm, federation, engine, 5)
    again, history = play(algorithm, federation, engine, 6, state=state)
    assert events(history, "drift")
    assert "0 from the nearest" in events(history, "go on")[0]
    first, _ = play(algorithm, federation, engine, 3)
    assert [again.assignment[k] == again.assignment[0] for k in range(6)] == [
        first.assignment[k] == first.assignment[0] for k in range(6)
    ]


def test_a_cluster_that_did_not_change_goes_on_exactly_from_its_model() -> None:
    federation = drifting("after:3")
    truth = [federation.at(r).truth for r in (3, 4)]
    assert truth[0] is not None
    assert truth[1] is not None
    view = federation.blind()
    algorithm, engine = FluxDynamic(SETTINGS), engine_of(view)
    state, _ = play(algorithm, view, engine, 3)
    moved, _ = play(algorithm, view, engine, 3)
    after = algorithm._follow(replace(moved, round=4), view.cohort(range(6), 4), engine, RoundMetrics())
    stayed = next(k for k in range(6) if truth[0][k] == truth[1][k])
    row, old = int(after.assignment[stayed]), int(state.assignment[stayed])
    for name, tensor in after.models.tensors.items():
        assert torch.equal(tensor[row], state.models.tensors[name][old])


def test_the_general_model_is_fedavgs() -> None:
    federation = drifting("after:3").blind()
    state, _ = play(FluxDynamic(SETTINGS), federation, engine_of(federation), 5)
    expected, _ = play(FedAvg(SETTINGS), federation, engine_of(federation), 5)
    for name, tensor in expected.model.tensors.items():
        torch.testing.assert_close(state.general.tensors[name], tensor)


def test_unseen_clients_are_answered_by_two_models_and_strangers_more_by_the_general_one() -> None:
    _, state, _ = played("after:3")
    algorithm = FluxDynamic(SETTINGS)
    view = drifting("after:3").blind()
    engine = engine_of(view)
    everyone = view.cohort(range(6), 6)
    known, _ = algorithm.complete(state, everyone, engine)
    own = algorithm.unseen(known, everyone.features("test"), engine)
    assert ((own.weights[:, :-1] == 0.5).sum(axis=1) == 1).all()
    assert (own.weights[:, -1] == 0.5).all()
    strange = [replace(one, x=255 - one.x) for one in everyone.features("test")]
    other = algorithm.unseen(known, strange, engine)
    assert other.placement is not None
    assert other.placement.novel.sum() >= 5
    assert other.weights[:, -1].tolist() == pytest.approx([0.6 if novel else 0.5 for novel in other.placement.novel])
    np.testing.assert_allclose(other.weights.sum(axis=1), 1)


def test_clients_that_come_later_join_and_those_that_stay_away_leave() -> None:
    federation = drifting(None).blind()
    cohorts = {1: range(4), 2: range(4), 3: range(6), 4: range(6), 5: [0, 1, 2, 3, 5], 6: [0, 1, 2, 3, 5]}
    state, history = play(FluxDynamic(SETTINGS), federation, engine_of(federation), 6, lambda r: list(cohorts[r]))
    assert events(history, "joined") == ["round 3: 2 clients (4, 5) joined"]
    assert events(history, "left") == ["round 5: 1 client (4) left"]
    chance = FluxDynamic(make_config({"participation": 0.9, "rounds": 6, "cluster_round": 2}).settings())
    _, drawn = play(chance, federation, engine_of(federation), 6, lambda r: list(cohorts[r]))
    assert events(drawn, "joined")
    assert events(drawn, "left") == []  # who is not drawn has not left
    assert (state.assignment >= 0).all()
    assert sorted(state.described) == list(range(6))


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflux.algorithms.flux.dynamic.MEMORY", 1)
    _, state, _ = played("after:2,3,4,5", level=8)
    now = len(np.unique(state.assignment))
    assert now < len(state.models) <= now + 1
    assert MEMORY == 32


def test_why_clusters_differ_is_told_of_those_that_somebody_is_in() -> None:
    _, state, _ = played("after:2,3,4,5", level=8)
    now = np.unique(state.assignment).tolist()
    assert state.clusters is not None
    assert 2 <= len(now) < len(state.clusters.pool)
    algorithm, config = FluxDynamic(SETTINGS), make_config({"algorithm": "flux-dynamic"})
    # clusters keep their numbers, whichever are nobody's
    for held in (now, [len(state.clusters.pool) - 1 - m for m in reversed(now)]):
        labels = np.array(held)[np.searchsorted(now, state.assignment)]
        told = told_of_clusters(config, algorithm, replace(state, assignment=labels), {})["why"]
        assert told is not None
        assert [pair["clusters"] for pair in told] == list(combinations(held, 2))
        assert f"clusters {held[0]} and {held[1]}" in told[0]["words"]


def note_descriptions(monkeypatch: pytest.MonkeyPatch, note: Any) -> None:
    """Whoever is asked for a descriptor is noted first, with the data that it is asked about."""
    real = SimulatedEngine.ask

    def ask(self: Any, query: Any, clients: Any, models: Any = None) -> Any:
        if isinstance(query, AskDescriptor):
            note(clients)
        return real(self, query, clients, models)

    monkeypatch.setattr(SimulatedEngine, "ask", ask)


def test_descriptions_are_of_disjoint_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    note_descriptions(monkeypatch, lambda cohort: asked.append(cohort.federation.part))
    played(None, false_alarms=1e-6)
    assert asked == [(0, 2, 6), (2, 3, 6), (3, 4, 6), (4, 5, 6), (5, 6, 6)]
    asked.clear()
    played(None, false_alarms=1e-6, redescribe=2)
    assert asked == [(0, 2, 6), (2, 4, 6), (4, 6, 6)]


@pytest.mark.parametrize("often", [1, 2, 3])
def test_a_newcomer_tells_no_example_twice(monkeypatch: pytest.MonkeyPatch, often: int) -> None:
    told: dict[int, list[int]] = {client: [] for client in range(6)}

    def noted(cohort: Any) -> None:
        for client in cohort:
            told[client] += cohort.data(client, "train").rows.tolist()

    note_descriptions(monkeypatch, noted)
    view = drifting(None).blind()
    algorithm = FluxDynamic(replace(SETTINGS, false_alarms=1e-9, redescribe=often))
    state, history = play(algorithm, view, engine_of(view), 6, lambda r: range(4 if r < 3 else 5 if r < 5 else 6))
    assert not events(history, "drift")
    assert [len(rows) for rows in told.values()] == [len(set(rows)) for rows in told.values()]
    told_up_to = {1: (6,) * 6, 2: (6, 6, 6, 6, 6, 5), 3: (5,) * 4 + (3, 5)}
    assert state.told == told_up_to[often]


def test_beyond_the_clusterers_limit_those_that_drifted_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = drifting("after:3")
    view = federation.blind()
    engine = engine_of(view)
    algorithm = FluxDynamic(replace(SETTINGS, clusterer=replace(SETTINGS.clusterer, name="agglomerative")))
    before, _ = play(algorithm, view, engine, 3)
    monkeypatch.setattr("fedflux.clustering.clusterers.EXACT", 5)
    after, history = play(algorithm, view, engine, 4, state=before)
    moved = np.flatnonzero(federation.at(3).truth != federation.at(4).truth)
    assert events(history, f"drift at {len(moved)} of 6")
    assert len(after.models) == len(before.models)
    now = describe(after.extractor, algorithm._told_by(4, view.cohort(moved, 4)), engine)
    assert now is not None
    np.testing.assert_array_equal(now.clients, moved)
    np.testing.assert_array_equal(after.assignment[moved], after.clusters.likeliest(now.descriptors))
    assert (after.assignment != before.assignment).any()
    stayed = np.setdiff1d(np.arange(6), moved)
    np.testing.assert_array_equal(after.assignment[stayed], before.assignment[stayed])


@pytest.mark.parametrize("kind", ["processes", "stacked"])
def test_other_engines_see_the_same_drift(kind: str) -> None:
    federation = drifting("after:3").blind()
    found = []
    for name in ("loop", kind):
        engine = make_engine(name, "mlp", federation, seed=5, device="cpu")
        state, history = play(FluxDynamic(SETTINGS), federation, engine, 4)
        found.append((state, [metrics.events for metrics in history]))
    assert found[0][1] == found[1][1]
    np.testing.assert_array_equal(found[0][0].assignment, found[1][0].assignment)
    if kind == "processes":
        assert_same(found[1][0].models, found[0][0].models)


def test_saved_in_the_middle_of_a_drift_it_goes_on_to_the_same_bits() -> None:
    view = drifting("after:3,5").blind()
    algorithm, engine = FluxDynamic(SETTINGS), engine_of(view)
    whole, _ = play(algorithm, view, engine, 6)
    half, _ = play(algorithm, view, engine, 4)
    tensors, outline = take_apart(half)
    loaded = put_together(DynamicState, tensors, outline)
    fresh = drifting("after:3,5").blind()
    resumed, _ = play(algorithm, fresh, engine_of(fresh), 6, state=loaded)
    assert_same(resumed.models, whole.models)
    assert resumed.used == whole.used


def test_a_run_with_a_test_drift_is_scored_before_and_after_it(tmp_path: Any) -> None:
    told: dict[str, Any] = {"shift": "px", "level": 2, "clients": 6, "rounds": 4, "cluster_round": 2}
    told |= {"device": "cpu", "seed": 5}
    still = fedflux.run(**told, algorithm="fedavg", drift="after:3", out=tmp_path / "still")
    moving = fedflux.run(**told, algorithm="fedavg", drift="after:3+test", out=tmp_path / "moving")
    assert still["known_per_client"] == moving["known_per_client"] == still["test_per_client"]
    assert moving["test_per_client"] != moving["known_per_client"]
    dynamic = fedflux.run(**told, algorithm="flux-dynamic", drift="after:3+test", out=tmp_path / "dynamic")
    assert dynamic["truth"] == still["truth"]
    assert still["test_truth"] is None
    expected = drifting("after:3+test").at_test(4).truth
    assert expected is not None
    assert dynamic["test_truth"] == expected.tolist() != dynamic["truth"]
    general = load_file(tmp_path / "dynamic" / "general.safetensors")
    models = load_file(tmp_path / "dynamic" / "models.safetensors")
    assert {name: tensor[0].shape for name, tensor in models.items()} == {n: t[0].shape for n, t in general.items()}
    assert {len(tensor) for tensor in general.values()} == {1}
    assert not (tmp_path / "moving" / "general.safetensors").exists()
    assert [e for line in read_rounds(tmp_path / "dynamic") for e in line["events"] if "drift at" in e]


def test_drift_enters_the_identity_only_when_it_is_told() -> None:
    plain = make_config({"algorithm": "fedavg"})
    assert "drift" not in determines(plain)
    assert determines(make_config({"algorithm": "fedavg", "drift": "test"}))["drift"] == "test"
    ways = [determines(make_config({"drift": spec})) for spec in ("after:02,4+test", "test+after:2,4")]
    assert ways[0] == ways[1]
    assert ways[0]["drift"] == "after:2,4+test"
    assert "false_alarms" not in determines(plain)
    assert determines(make_config({"algorithm": "flux-dynamic", "false_alarms": 0.05}))["false_alarms"] == 0.05
    level = make_config({"algorithm": "flux-dynamic", "novelty_level": 0.2})
    assert determines(level)["novelty_level"] == 0.2
    with pytest.raises(FedfluxError, match="flux-dynamic takes no --clusters"):
        make_config({"algorithm": "flux-dynamic", "clusters": 3})
