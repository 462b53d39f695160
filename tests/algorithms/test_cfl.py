"""CFL: when a cluster splits, into whom, and what becomes of those who were away."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_same, engine_of, play, small, together

from fedflux.algorithms.base import RoundMetrics
from fedflux.algorithms.baselines.cfl import Cfl, CflState, bipartition
from fedflux.algorithms.shared.membership import mean_losses
from fedflux.data import Federation
from fedflux.engine import Job, Key, SimulatedEngine, Stack


@pytest.fixture(scope="module")
def view() -> Federation:
    return small("px", level=6)


@pytest.fixture(scope="module")
def engine(view: Federation) -> SimulatedEngine:
    return engine_of(view)


def pulls(directions: list[list[float]]) -> np.ndarray:
    """Inner products of noisy updates in these directions."""
    updates = np.array(directions) @ np.random.default_rng(0).normal(size=(len(directions[0]), 500))
    updates += 0.1 * np.random.default_rng(1).normal(size=updates.shape)
    return updates @ updates.T


def test_opposite_updates_split_exactly() -> None:
    halves = bipartition(pulls([[1], [-1], [1], [-1], [-1]]))
    assert halves is not None
    assert [half.tolist() for half in halves] == [[0, 2], [1, 3, 4]]


def test_a_split_needs_halves_that_are_far_enough_apart() -> None:
    alike, apart = pulls([[1, 0.2], [1, -0.2], [1, 0.2], [1, -0.2]]), pulls([[1], [-1], [1], [-1]])
    assert bipartition(alike, gamma_max=0.5) is None
    assert bipartition(apart, gamma_max=0.5) is not None
    assert bipartition(np.ones((3, 3))) is None  # the same update from all


def split(state: CflState, view: Federation, ids: list[int], products: np.ndarray) -> CflState:
    node = state.assignment[ids]
    algorithm = Cfl(SETTINGS, eps1=np.inf, eps2=0.0)
    return algorithm._split(state, view.cohort(ids), node, np.ones(len(ids)), products, RoundMetrics())


def test_a_second_split_has_the_right_clients(view: Federation, engine: SimulatedEngine) -> None:
    state = replace(Cfl(SETTINGS).init(view, engine), round=3)
    state = split(state, view, list(range(6)), pulls([[1], [-1], [1], [-1], [-1], [-1]]))
    assert state.assignment.tolist() == [1, 2, 1, 2, 2, 2]
    # within {1, 3, 4, 5} clients 3 and 5 differ from 1 and 4; {0, 2} are too few to split
    state = split(state, view, list(range(6)), pulls([[1, 0], [0, 1], [1, 0], [0, -1], [0, 1], [0, -1]]))
    assert state.assignment.tolist() == [1, 3, 1, 4, 3, 4]
    assert state.children.tolist() == [[1, 2], [-1, -1], [3, 4], [-1, -1], [-1, -1]]
    assert len(state.models) == 5


def test_children_start_from_the_model_of_their_parent(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Cfl(SETTINGS, eps1=np.inf, eps2=0.0, warm_up=0)
    state, (metrics,) = play(algorithm, view, engine, 1)
    assert len(metrics.events) == 1
    assert_same(state.models.take([1, 2]), state.models.take([0, 0]))
    later, _ = play(algorithm, view, engine, 2, state=state)
    assert_same(later.models.take([0]), state.models.take([0]))  # an inner node stays as it was
    assert not torch.equal(later.models.tensors["classifier.weight"][1], state.models.tensors["classifier.weight"][1])


def test_thresholds(view: Federation, engine: SimulatedEngine) -> None:
    def parts(**options) -> bool:
        algorithm = Cfl(replace(SETTINGS, rounds=10), **options)
        state = replace(algorithm.init(view, engine), round=3, greatest=np.array([1.0]))
        return algorithm._due(state, 0, 0.3, 1.1, 5)

    assert parts()  # 0.3 < 1.1 / 2 and 1.1 > 1
    assert not parts(warm_up=3)
    assert not parts(scale="greatest")  # 0.3 > 1 / 10
    assert parts(eps1=0.4, eps2=1.0)
    assert not parts(eps1=0.4, eps2=1.6)
    assert not parts(eps1=0.0)


def test_clients_that_differ_part_and_alike_ones_do_not(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Cfl(replace(SETTINGS, training=replace(SETTINGS.training, epochs=2)), warm_up=1)
    state, _ = play(algorithm, view, engine, 6)
    assert len(np.unique(state.assignment)) > 1
    alike = small("none")
    state, _ = play(algorithm, alike, engine_of(alike), 6)
    assert together(state.assignment).all()


def test_an_absent_member_goes_to_the_child_of_least_loss(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Cfl(SETTINGS, eps1=np.inf, eps2=0.0, warm_up=0)
    state, _ = play(algorithm, view, engine, 1, lambda r: range(5))
    assert state.assignment[5] == 0
    never = Cfl(SETTINGS, eps1=0.0)
    state, _ = play(never, view, engine, 2, lambda r: range(5), state)
    losses = mean_losses(state.models, view.cohort([5]), engine)[5]
    later, (metrics,) = play(never, view, engine, 3, lambda r: [4, 5], state)
    assert later.assignment[5] == 1 + losses[1:].argmin()
    assert metrics.down[5] == 3 * metrics.down[4]
    done, costs = never.complete(state, view.cohort(range(6)), engine)
    assert done.assignment[5] == later.assignment[5]
    assert list(costs.down) == [5]


def test_the_mean_norm_is_that_of_the_aggregate(view: Federation, engine: SimulatedEngine) -> None:
    algorithm = Cfl(SETTINGS)
    state, _ = play(algorithm, view, engine, 1)
    moved = Stack({name: tensor - engine.initial().tensors[name] for name, tensor in state.models.tensors.items()})
    norm = np.sqrt(sum(float(tensor.double().square().sum()) for tensor in moved.tensors.values()))
    assert state.greatest[0] == pytest.approx(norm, rel=1e-5)


def test_who_returns_right_after_a_split_goes_with_those_it_is_like(view: Federation, engine: SimulatedEngine) -> None:
    """Both children are still copies of their parent, so that losses cannot tell them apart; updates can."""
    algorithm = Cfl(SETTINGS, eps1=np.inf, eps2=0.0, warm_up=0)
    never = Cfl(SETTINGS, eps1=0.0)
    members, sizes = view.cohort(range(6)), torch.as_tensor(view.cohort(range(6)).sizes("train"))
    for away in range(6):
        present = [k for k in range(6) if k != away]
        split, _ = algorithm.round(algorithm.init(view, engine), view.cohort(present, 1), engine)
        assert split.assignment[away] == 0
        placed, _ = never.complete(split, members, engine)
        assert placed.assignment[away] == 0  # nothing to tell the children apart by
        after, _ = never.round(split, view.cohort(range(6), 2), engine)
        jobs = [Job(k, (int(split.assignment[k]),)) for k in members]
        trained = engine.train(split.models, members, jobs, SETTINGS.training, Key(5, 2)).models
        moved = [t.flatten(1) - split.models.tensors[name][:1].flatten(1) for name, t in trained.tensors.items()]
        updates = torch.cat(moved, dim=1).double()
        shares = [sizes * torch.as_tensor(split.assignment == child) for child in (1, 2)]
        likeness = [torch.cosine_similarity(updates[away], share @ updates, dim=0) for share in shares]
        assert after.assignment[away] == 1 + int(likeness[1] > likeness[0])
        assert torch.equal(after.models.tensors["classifier.weight"][0], split.models.tensors["classifier.weight"][0])
