"""FLUX-soft is FLUX where clusters are sharp, FedAvg where all are alike, and something between elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_same, engine_of, permuted, play, saved, small, together

from fedflux.algorithms import ALGORITHMS, FedAvg, Flux, RoundMetrics
from fedflux.algorithms.checks import check_clients_are_interchangeable, check_resumes
from fedflux.algorithms.flux.soft import FluxSoft, SoftState, lend
from fedflux.clustering import Clusterer
from fedflux.data import Federation
from fedflux.descriptors.wire import client_bytes, from_arrays
from fedflux.engine import SimulatedEngine, Stack

CLUSTERED = replace(SETTINGS, cluster_round=2)


@pytest.fixture(scope="module")
def sharp() -> Federation:
    """Digits turned and coloured, a hundred to a client."""
    return small("px", level=4, clients=6, fraction=1.0)


@pytest.fixture(scope="module")
def close() -> Federation:
    """Clients that hold unlike shares of the labels, and the same images for each: close, but not alike."""
    return small("dirichlet", level=4, clients=6, fraction=1.0)


def off_diagonal(shares: Any) -> Any:
    return shares[~np.eye(len(shares), dtype=bool)]


def test_with_sharp_clusters_it_is_flux_to_the_bit(sharp: Federation) -> None:
    engine = engine_of(sharp)
    found, _ = play(FluxSoft(CLUSTERED), sharp, engine, 4)
    expected, _ = play(Flux(CLUSTERED), sharp, engine, 4)
    assert len(found.models) > 1
    assert (found.sharing == np.eye(len(found.models))).all()
    assert_same(found.models, expected.models)
    np.testing.assert_array_equal(found.assignment, expected.assignment)
    features = sharp.cohort(range(6)).features("test")
    answers = [
        algorithm.unseen(state, features, engine).weights
        for algorithm, state in ((FluxSoft(CLUSTERED), found), (Flux(CLUSTERED), expected))
    ]
    np.testing.assert_array_equal(answers[0], answers[1])


def test_where_all_are_alike_it_is_fedavg_to_the_bit() -> None:
    alike = small("none", clients=6)
    engine = engine_of(alike)
    found, _ = play(FluxSoft(CLUSTERED), alike, engine, 4)
    expected, _ = play(FedAvg(CLUSTERED), alike, engine, 4)
    assert found.cluster_round == 2
    assert len(found.models) == 1
    assert_same(found.models, expected.model)


def test_alike_clients_in_clusters_of_their_own_end_as_fedavg() -> None:
    """Told to part what is alike, every model is the average of all clients' nevertheless."""
    alike = small("none", clients=6)
    engine = engine_of(alike)
    parted = replace(CLUSTERED, clusterer=Clusterer("kmeans", clusters=6))
    found, _ = play(FluxSoft(parted), alike, engine, 4)
    expected, _ = play(FedAvg(CLUSTERED), alike, engine, 4)
    assert len(found.models) == 6
    assert (found.sharing == 1).all()
    for name, tensor in expected.model.tensors.items():
        torch.testing.assert_close(found.models.tensors[name], tensor.repeat(6, *[1] * (tensor.ndim - 1)))


def test_close_clusters_lend_and_differ_from_flux(close: Federation) -> None:
    engine = engine_of(close)
    found, _ = play(FluxSoft(CLUSTERED), close, engine, 4)
    hard, _ = play(Flux(CLUSTERED), close, engine, 4)
    lent = off_diagonal(found.sharing)
    assert ((lent > 0) & (lent < 1)).any()
    np.testing.assert_array_equal(found.assignment, hard.assignment)
    assert any(not torch.equal(t, hard.models.tensors[name]) for name, t in found.models.tensors.items())


def test_conflicting_labels_are_kept_apart() -> None:
    conflict = small("pygx", level=6, clients=6, fraction=1.0)
    state, _ = play(FluxSoft(CLUSTERED), conflict, engine_of(conflict), 3)
    assert len(state.models) > 1
    assert (off_diagonal(state.sharing) == 0).all()


def test_lending_is_the_weighted_mean_over_everyone() -> None:
    generator = torch.Generator().manual_seed(0)
    models, trained = (Stack({"w": torch.randn(n, 3, generator=generator)}) for n in (3, 4))
    cluster, sizes = np.array([0, 0, 2, 2]), np.array([10.0, 30.0, 20.0, 40.0])
    shares = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, 0.7], [0.0, 0.3, 1.0]])
    found = lend(models, trained, cluster, sizes, shares).tensors["w"]
    w = trained.tensors["w"]
    expected = (10 * w[0] + 30 * w[1] + 0.2 * 20 * w[2] + 0.2 * 40 * w[3]) / (40 + 12)
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], models.tensors["w"][1])  # nobody of its own trained it: it does not borrow
    torch.testing.assert_close(found[2], (20 * w[2] + 40 * w[3]) / 60)


def test_it_goes_on_from_a_saved_state(close: Federation) -> None:
    engine = engine_of(close)
    algorithm = FluxSoft(CLUSTERED, redescribe=1)
    share = {1: [0, 1, 2, 3], 2: [1, 2, 3, 4], 3: [0, 2, 4], 4: range(6)}
    whole, _ = play(algorithm, close, engine, 4, share.__getitem__)
    half, _ = play(algorithm, close, engine, 3, share.__getitem__)
    found, _ = play(algorithm, close, engine, 4, share.__getitem__, saved(half))
    assert isinstance(found, SoftState)
    assert_same(found.models, whole.models)
    np.testing.assert_array_equal(found.sharing, whole.sharing)


def test_newcomers_are_placed_and_share(close: Federation) -> None:
    engine = engine_of(close)
    state, _ = play(FluxSoft(CLUSTERED), close, engine, 4, lambda r: range(3) if r < 4 else range(6))
    assert (state.assignment >= 0).all()
    assert len(state.sharing) == len(state.models) == state.assignment.max() + 1


def test_describing_anew_changes_nothing_where_nothing_changed(close: Federation) -> None:
    engine = engine_of(close)
    once, plain = play(FluxSoft(CLUSTERED), close, engine, 4)
    again, told = play(FluxSoft(CLUSTERED, redescribe=1), close, engine, 4)
    assert_same(again.models, once.models)
    np.testing.assert_array_equal(again.sharing, once.sharing)
    each = client_bytes(from_arrays(once.descriptors))
    extra = [{k: a.up[k] - b.up[k] for k in a.up} for a, b in zip(told, plain, strict=True)]
    assert [set(one.values()) for one in extra] == [{0}, {0}, {each}, {each}]
    assert [one.work.get("forward", 0) for one in told] == [0, 6, 6, 6]


def test_it_describes_anew_every_so_many_rounds(close: Federation) -> None:
    _, told = play(FluxSoft(CLUSTERED, redescribe=2), close, engine_of(close), 5)
    assert [one.work.get("forward", 0) for one in told] == [0, 6, 0, 6, 0]


def drifting(
    algorithm: Any, before: Federation, after: Federation, engine: SimulatedEngine
) -> tuple[Any, list[RoundMetrics]]:
    """Three rounds of the one, two of the other."""
    state, _ = play(algorithm, before, engine, 3)
    return play(algorithm, after, engine, 5, state=state)


@pytest.mark.parametrize("redescribe", [0, 1])
def test_models_follow_clients_that_change_places(sharp: Federation, redescribe: int) -> None:
    order: Sequence[int] = [3, 1, 5, 0, 4, 2]
    moved, engine = permuted(sharp, order), engine_of(sharp)
    algorithm = FluxSoft(replace(CLUSTERED, sharing="none"), redescribe=redescribe)
    before, _ = play(algorithm, sharp, engine, 3)
    after, _ = drifting(algorithm, sharp, moved, engine)
    expected = before.assignment[order] if redescribe else before.assignment
    assert (together(before.assignment[order]) != together(before.assignment)).any()
    np.testing.assert_array_equal(together(after.assignment), together(expected))
    static, _ = play(algorithm, sharp, engine, 5)
    scores, usual = (
        engine.evaluate([algorithm.known(state, everyone, engine)], everyone, "test").values
        for state, everyone in ((after, moved.cohort(range(6))), (static, sharp.cohort(range(6))))
    )
    assert (scores.mean() > usual.mean() - 0.05) == bool(redescribe)


@pytest.mark.parametrize("check", [check_resumes, check_clients_are_interchangeable], ids=lambda check: check.__name__)
def test_the_battery_holds_when_it_describes_anew(check: Any) -> None:
    check(lambda settings: FluxSoft(settings, redescribe=1))


def test_it_is_always_calibrated_and_told_nothing() -> None:
    told = replace(SETTINGS, clusterer=Clusterer("kmeans", clusters=3), true_count=True)
    algorithm = ALGORITHMS["flux-soft"].make(told)
    assert isinstance(algorithm, FluxSoft)
    assert algorithm.settings.clusterer.name == "calibrated"
    assert not algorithm.uses_truth
