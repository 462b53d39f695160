"""FEROMA: with equal weights it is FedAvg, with one client local; its weights are those of the formula."""

from dataclasses import replace

import numpy as np
import pytest
from tests.algorithms.making import SETTINGS, digits, loop, play, same

from fedflux.algorithms import FedAvg, Local, RoundMetrics
from fedflux.algorithms.baselines.feroma import Feroma, FeromaState
from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.engine import Kept, SimulatedEngine, Stack

SOON = replace(SETTINGS, cluster_round=1)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop(federation)


def mean(state: FeromaState) -> Stack:
    return state.models.average(np.array([state.sizes]))


def test_with_equal_weights_it_is_fedavg_bit_for_bit(federation: Federation, engine: SimulatedEngine) -> None:
    """What every client would begin the next round from is FedAvg's model."""
    for rounds in (1, 2, 4):
        state, _ = play(Feroma(SOON, weighting="equal"), federation, engine, rounds)
        expected, _ = play(FedAvg(SETTINGS), federation, engine, rounds)
        assert len(state.models) == 6
        assert same(mean(state), expected.model)


def test_with_one_client_it_is_local_training_bit_for_bit(federation: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(Feroma(SOON), federation, engine, 4, lambda r: [3])
    assert state.profiles is not None
    play(Local(SETTINGS), federation, engine, 4, lambda r: [3])
    assert same(state.models, engine.kept().models["personal"])


def test_it_is_fedavg_until_profiles_are_asked_for(federation: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(Feroma(replace(SETTINGS, cluster_round=3)), federation, engine, 2)
    expected, _ = play(FedAvg(SETTINGS), federation, engine, 2)
    assert same(state.models, expected.model)
    assert state.senders == ()


def test_the_weights_are_those_of_the_formula() -> None:
    algorithm, own = Feroma(SOON), np.array([0.0, 2.0])
    others = np.array([[0.0, 0.0], [3.0, 4.0], [np.nan, np.nan], [0.0, 1.0]])
    nearness = np.array([1 / 2, 1 / np.sqrt(13), 0, 1])
    shares = nearness / nearness.sum()
    np.testing.assert_allclose(algorithm._alike(own, others), shares, rtol=1e-6)
    np.testing.assert_allclose(algorithm._alike(others[3], others).argmax(), 3)
    fourth = replace(algorithm, power=4.0)._alike(own, others)
    np.testing.assert_allclose(fourth, shares**4 / (shares**4).sum(), rtol=1e-6)
    cut = replace(algorithm, least=0.2)._alike(own, others)
    np.testing.assert_allclose(cut, np.array([1, 0, 0, 2]) / 3, rtol=1e-6)
    np.testing.assert_array_equal(algorithm._alike(own, np.full((3, 2), np.nan)), np.ones(3))


def test_clients_hear_more_of_those_like_them() -> None:
    """Though nobody is told who is like whom; each client's two halves are no nearer than two like clients."""
    whole = partition(load("digits"), Partition("px", level=3, clients=6, seed=5))
    view, truth = whole.blind(), whole.truth
    assert truth is not None
    engine = loop(view)
    algorithm = Feroma(replace(SOON, rounds=6))
    state, _ = play(algorithm, view, engine, 4)
    assert state.profiles is not None
    _, told = algorithm._describe(state, view.cohort(range(6), 5), engine, RoundMetrics())
    weights = np.stack([algorithm._alike(told[k], state.profiles.vectors) for k in range(6)])
    alike = (truth[:, None] == truth[None]) & ~np.eye(6, dtype=bool)
    other = truth[:, None] != truth[None]
    assert weights[alike].min() > weights[other].max()
    assert np.diag(weights).max() < 3 * weights[alike].max()


def test_profiles_are_of_the_two_halves_in_turn(federation: Federation, engine: SimulatedEngine) -> None:
    """The same data described twice would be at no distance from itself."""
    algorithm = Feroma(SOON)
    two, _ = play(algorithm, federation, engine, 2)
    three, _ = play(algorithm, federation, engine, 1, state=two)
    four, _ = play(algorithm, federation, engine, 1, state=three)
    first, second, third = (one.profiles.vectors for one in (two, three, four))
    assert np.abs(first - second).max(axis=1).min() > 0
    np.testing.assert_array_equal(first, third)


def test_between_descriptions_clients_go_on_from_their_own(federation: Federation, engine: SimulatedEngine) -> None:
    never = Feroma(replace(SOON, redescribe=0))
    one, _ = play(never, federation, engine, 1)
    engine.restore(Kept())
    two, _ = play(never, federation, engine, 1, state=one)
    assert two.profiles is None
    alone, _ = play(Local(SETTINGS), federation, engine, 2)
    assert same(two.models, engine.kept().models["personal"])
    assert alone.round == 2


def test_who_is_away_keeps_its_model_and_an_unseen_one_gets_the_nearest(
    federation: Federation, engine: SimulatedEngine
) -> None:
    algorithm = Feroma(SOON)
    one, _ = play(algorithm, federation, engine, 2, lambda r: [0, 1, 2, 3])
    two, _ = play(algorithm, federation, engine, 1, lambda r: [1, 4], one)
    assert two.senders == (0, 1, 2, 3, 4)
    assert same(two.models.take([0, 2, 3]), one.models.take([0, 2, 3]))
    known = algorithm.known(two, federation.cohort([0, 5]), engine)
    assert same(known.stack.take([5]), mean(two))
    np.testing.assert_array_equal(known.weights, np.eye(6)[[0, 5]])
    unseen = algorithm.unseen(two, federation.cohort(range(6)).features("test"), engine)
    assert ((unseen.weights == 1).sum(axis=1) == 1).all()
    assert (unseen.weights[:, 5] == 0).all()
