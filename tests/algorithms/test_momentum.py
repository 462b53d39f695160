"""`--server-momentum`: FedAvgM's rule, for every model that somebody trained and for nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_fedavg, assert_same, engine_of, play, saved, small
from tests.data.making import pictures

from fedflux.algorithms import FedAvg, Flux, Settings
from fedflux.algorithms.checks import check_resumes
from fedflux.algorithms.flux.dynamic import FluxDynamic
from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, Branches
from fedflux.algorithms.flux.soft import FluxSoft
from fedflux.algorithms.shared.momentum import carried_on
from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.engine import Stack, make_engine

HALF = replace(SETTINGS, server_momentum=0.5)
CLUSTERED = replace(HALF, cluster_round=2)


@pytest.fixture(scope="module")
def turned() -> Federation:
    return small("px", level=4, clients=6, fraction=1.0)


def stack(*rows: float, variance: float = 1.0) -> Stack:
    weights = torch.tensor(rows, dtype=torch.float64)[:, None].repeat(1, 3)
    return Stack({"weight": weights, "running_var": torch.full((len(rows), 3), variance), "steps": torch.arange(2)})


def test_it_is_the_textbooks_recurrence() -> None:
    theta, velocity = stack(1.0, 5.0), None
    by_hand, speed = np.array([1.0, 5.0]), np.zeros(2)
    for step in ([0.5, -1.0], [0.25, 0.0], [-0.75, 2.0]):
        averaged = Stack({**theta.tensors, "weight": theta.tensors["weight"] + torch.tensor(step)[:, None]})
        theta, velocity = carried_on(theta, averaged, velocity, 0.5, [0, 1], {"weight"})
        speed = 0.5 * speed + step
        by_hand = by_hand + speed
        np.testing.assert_allclose(theta.tensors["weight"][:, 0], by_hand)
        np.testing.assert_allclose(velocity.tensors["weight"][:, 0], speed)


def test_what_nobody_trained_and_what_layers_collect_has_no_momentum() -> None:
    before, averaged = stack(1.0, 5.0), stack(2.0, 5.0, variance=0.1)
    theta, velocity = carried_on(before, averaged, stack(1.0, 1.0), 0.5, [0], {"weight"})
    assert theta.tensors["weight"][:, 0].tolist() == [2.5, 5.0]
    assert velocity.tensors["weight"][:, 0].tolist() == [1.5, 1.0]  # the second goes on with its own when it is trained
    for name in ("running_var", "steps"):
        assert torch.equal(theta.tensors[name], averaged.tensors[name])
    assert velocity.tensors.keys() == {"weight"}
    assert averaged.tensors["weight"][0, 0] == 2.0  # nothing was changed in place


def test_new_clusters_move_as_the_models_that_they_come_from() -> None:
    velocity = Stack({"weight": torch.tensor([[1.0], [3.0], [7.0]])})
    before = Branches({OWN: velocity.take([0, 1]), GENERAL: velocity.take([2])}, np.zeros(2, dtype=np.int64))
    shares = np.array([[0.0, 4.0], [1.0, 1.0], [2.0, 0.0]])
    after, found = before.inherit(shares, velocity, frozenset())
    assert found is not None
    assert found.tensors["weight"].flatten().tolist() == [3.0, 2.0, 1.0, 7.0]  # the general model's stays the last
    assert_same(after.answering, found)  # here models are what they move by
    assert before.inherit(shares, None, frozenset())[1] is None


def test_fedavg_goes_on_with_half_of_what_a_round_moved(turned: Federation) -> None:
    engine = engine_of(turned)
    states = [FedAvg(HALF).init(turned, engine)]
    for r in range(1, 4):
        cohort = turned.cohort(range(6), r)
        states.append(FedAvg(HALF).round(states[-1], cohort, engine)[0])
        plain, _ = FedAvg(SETTINGS).round(states[-2], cohort, engine)
        for name, mean in plain.model.tensors.items():
            before = states[max(r - 2, 0)].model.tensors[name]
            expected = mean + 0.5 * (states[-2].model.tensors[name] - before)
            torch.testing.assert_close(states[-1].model.tensors[name], expected)
    assert states[-1].velocity is not None


def test_fedavg_stands_still_where_nobody_trains(turned: Federation) -> None:
    engine = engine_of(turned)
    state, _ = play(FedAvg(HALF), turned, engine, 2)
    empty = replace(turned, rows=[replace(rows, train=rows.train[:0]) for rows in turned.rows])
    after, _ = FedAvg(HALF).round(state, empty.cohort(range(6), 3), engine)
    assert_same(after.model, state.model)


def test_without_clusters_flux_is_fedavg_with_the_same_momentum(turned: Federation) -> None:
    assert_fedavg(Flux(replace(HALF, cluster_round=4)), turned, engine_of(turned))


def test_a_cluster_whose_members_stay_away_stands_still(turned: Federation) -> None:
    engine = engine_of(turned)
    state, _ = play(Flux(CLUSTERED), turned, engine, 3)
    present = int(state.assignment[0])
    members = np.flatnonzero(state.assignment == present).tolist()
    after, _ = play(Flux(CLUSTERED), turned, engine, 4, cohort=lambda r: members, state=state)
    others = [m for m in range(len(state.models)) if m != present]
    assert others
    assert_same(after.models.take(others), state.models.take(others))
    assert_same(after.velocity.take(others), state.velocity.take(others))
    moved = zip(after.velocity.row(present).values(), state.velocity.row(present).values(), strict=True)
    assert not any(torch.equal(now, before) for now, before in moved)


@pytest.mark.parametrize("both", [False, True])
def test_clusters_found_anew_keep_a_velocity_each(both: bool, turned: Federation) -> None:
    settings, engine = replace(CLUSTERED, rounds=6, sharing="general" if both else "none"), engine_of(turned)
    state, history = play(Flux(settings), turned, engine, 6, cohort=lambda r: range(min(2 + r, 6)))
    assert any("found anew" in event for metrics in history for event in metrics.events)
    assert len(state.velocity) == len(state.models) + both


def test_under_drift_models_now_past_and_general_have_one_each() -> None:
    view = partition(load("digits"), Partition("px", level=2, clients=6, seed=5, drift="after:3,5")).blind()
    settings, engine = replace(CLUSTERED, rounds=6), engine_of(view)
    whole, history = play(FluxDynamic(settings), view, engine, 6)
    assert any("go on as they were" in event for metrics in history for event in metrics.events)
    assert len(whole.velocity) == len(whole.models) + 1
    half, _ = play(FluxDynamic(settings), view, engine, 4)
    resumed, _ = play(FluxDynamic(settings), view, engine, 6, state=saved(half))
    assert_same(resumed.models, whole.models)
    assert_same(resumed.velocity, whole.velocity)


def test_stopped_runs_go_on_to_the_same_bits() -> None:
    def with_momentum(method: Any) -> Any:
        return lambda settings: method(replace(settings, server_momentum=0.5))

    check_resumes(with_momentum(FedAvg))
    check_resumes(lambda settings: Flux(replace(settings, server_momentum=0.5, sharing="general")))


def test_at_zero_nothing_is_kept(turned: Federation) -> None:
    engine = engine_of(turned)
    for method in (FedAvg, Flux, FluxSoft, FluxDynamic):
        state, _ = play(method(replace(SETTINGS, cluster_round=2)), turned, engine, 3)
        assert state.velocity is None
    assert Settings(rounds=1, training=SETTINGS.training, seed=0).server_momentum == 0


@pytest.mark.parametrize("kind", ["loop", "processes", "stacked"])
def test_engines_say_which_tensors_training_changes(kind: str) -> None:
    engine = make_engine(
        kind, "resnet9", partition(pictures(side=16, channels=3), Partition("none", clients=3)), seed=5
    )
    buffers = {name for name in engine.initial().tensors if name not in engine.trained_names}
    assert buffers
    assert {name.rsplit(".", 1)[1] for name in buffers} == {"running_mean", "running_var", "num_batches_tracked"}
