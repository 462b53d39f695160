"""FedEM and FedRC: responsibilities, what they reduce to, and clients that come late or never."""

from dataclasses import replace

import numpy as np
import pytest
from tests.algorithms.making import SETTINGS, TRAINING, digits, loop, loop_by_autograd, permuted, play, same

from fedflux.algorithms import FedAvg
from fedflux.algorithms.baselines.fedem import FedEM
from fedflux.algorithms.baselines.fedrc import FedRC
from fedflux.algorithms.shared.mixture import responsibilities, settled
from fedflux.data import Federation
from fedflux.engine import Engine
from fedflux.errors import FedfluxError

ONE = replace(SETTINGS, clusters=1)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> Engine:
    return loop_by_autograd(federation)


def test_responsibilities_are_bayes_rule() -> None:
    rng = np.random.default_rng(0)
    losses, pi = rng.exponential(2, (50, 3)), np.array([0.2, 0.5, 0.3])
    q = responsibilities(-losses, pi)
    joint = pi * np.exp(-losses)
    np.testing.assert_allclose(q, joint / joint.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(q.sum(axis=1), 1)
    far = responsibilities(np.array([[-2000.0, -1000.0]]), np.array([0.5, 0.5]))
    np.testing.assert_array_equal(far, [[0, 1]])
    np.testing.assert_array_equal(responsibilities(-losses, np.array([0, 1.0, 0]))[:, 1], 1)


def test_identical_models_leave_the_weights_as_they_are() -> None:
    pi = np.array([0.2, 0.5, 0.3])
    losses = np.tile(np.random.default_rng(0).exponential(2, (50, 1)), 3)
    np.testing.assert_allclose(responsibilities(-losses, pi).mean(axis=0), pi)


def test_settled_weights_are_the_most_likely_ones() -> None:
    rng = np.random.default_rng(1)
    truth = np.array([0.7, 0.3])
    drawn = rng.choice(2, 4000, p=truth)
    evidence = np.where(np.arange(2) == drawn[:, None], -0.1, -3.0)
    found = settled(evidence)
    np.testing.assert_allclose(found, truth, atol=0.03)
    likelihood = [np.log(np.exp(evidence) @ [p, 1 - p]).mean() for p in (found[0] - 0.01, found[0], found[0] + 0.01)]
    assert max(likelihood) == likelihood[1]


@pytest.mark.parametrize("method", [FedEM, FedRC])
def test_one_model_is_fedavg_bit_for_bit(method: type[FedEM], federation: Federation, engine: Engine) -> None:
    state, _ = play(method(ONE), federation, engine)
    expected, _ = play(FedAvg(ONE), federation, engine)
    assert same(state.models, expected.model)
    np.testing.assert_array_equal(state.pi, np.ones((6, 1)))


def test_the_weights_are_the_mean_responsibilities(federation: Federation, engine: Engine) -> None:
    algorithm = FedEM(SETTINGS)
    begin, _ = play(algorithm, federation, engine, rounds=1)
    after, _ = play(algorithm, federation, engine, rounds=1, state=begin)
    losses = engine.losses(begin.models, federation.cohort([2]), "train")[0].astype(np.float64)
    joint = begin.pi[2][:, None] * np.exp(-losses)
    np.testing.assert_allclose(after.pi[2], (joint / joint.sum(axis=0)).mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(after.pi.sum(axis=1), 1)


def test_fedrc_begins_as_fedem_and_then_parts_from_it() -> None:
    skewed = digits(shift="py")
    engine = loop(skewed)
    one, _ = play(FedEM(SETTINGS), skewed, engine, rounds=1)
    two, _ = play(FedRC(SETTINGS), skewed, engine, rounds=1)
    np.testing.assert_allclose(one.pi, two.pi, rtol=1e-12)
    for name, tensor in one.models.tensors.items():
        np.testing.assert_allclose(tensor, two.models.tensors[name], atol=1e-6)
    np.testing.assert_allclose(two.marginals.sum(axis=1), 1)
    one, _ = play(FedEM(SETTINGS), skewed, engine, rounds=1, state=one)
    two, _ = play(FedRC(SETTINGS), skewed, engine, rounds=1, state=two)
    assert np.abs(one.pi - two.pi).max() > 1e-6


def test_marginals_are_the_responsible_shares_of_the_labels(federation: Federation, engine: Engine) -> None:
    algorithm = FedRC(SETTINGS)
    begin = algorithm.init(federation, engine)
    after, _ = play(algorithm, federation, engine, rounds=1)
    sums = np.zeros((3, 10))
    for client, losses in enumerate(engine.losses(begin.models, federation.cohort(range(6)), "train")):
        q = np.exp(-losses.astype(np.float64))
        q /= q.sum(axis=0)
        for label in range(10):
            sums[:, label] += q[:, federation.materialise(client, "train").y.numpy() == label].sum(axis=1)
    np.testing.assert_allclose(after.marginals, sums / sums.sum(axis=1, keepdims=True))
    evidence = algorithm._evidence(after, federation.cohort([1]), engine)[0]
    likelihood = FedEM(SETTINGS)._evidence(after, federation.cohort([1]), engine)[0]
    y = federation.materialise(1, "train").y.numpy()
    np.testing.assert_allclose(evidence, likelihood - np.log(after.marginals)[:, y].T)


@pytest.mark.parametrize("method", [FedEM, FedRC])
def test_who_never_took_part_is_placed_at_the_end(method: type[FedEM], federation: Federation, engine: Engine) -> None:
    algorithm = method(SETTINGS)
    state, _ = play(algorithm, federation, engine, members=lambda r: [0, 1, 2, 3] if r < 3 else [4])
    np.testing.assert_array_equal(algorithm.assignment(state)[:5], state.pi[:5].argmax(axis=1))
    assert algorithm.assignment(state)[5] == -1
    everyone = federation.cohort(range(6))
    unseen = algorithm.unseen(state, everyone.features("test"), engine)
    np.testing.assert_allclose(unseen.weights, np.tile(state.pi[:5].mean(axis=0), (6, 1)))
    state, costs = algorithm.complete(state, everyone, engine)
    assert list(costs.down) == [5]
    assert costs.up[5] == 0
    assert costs.work["forward"] == 3
    np.testing.assert_allclose(state.pi[5], settled(algorithm._evidence(state, federation.cohort([5]), engine)[0]))
    assert algorithm.assignment(state).min() >= 0
    again = algorithm.unseen(state, everyone.features("test"), engine)
    np.testing.assert_array_equal(unseen.weights, again.weights)  # it is no training client


def test_costs_are_those_of_m_models(federation: Federation, engine: Engine) -> None:
    state, metrics = play(FedEM(SETTINGS), federation, engine, rounds=1)
    assert set(metrics.up.values()) == set(metrics.down.values()) == {3 * state.models.model_bytes()}
    assert metrics.work == {"models_down": 18, "models_up": 18, "forward": 18, "training": 3 * 2 * 6}
    state, metrics = play(FedRC(SETTINGS), federation, engine, rounds=1)
    assert set(metrics.up.values()) == {3 * state.models.model_bytes() + 4 * 3 * 10}


def test_permuting_clients_permutes_their_weights(federation: Federation, engine: Engine) -> None:
    whole = replace(SETTINGS, training=replace(TRAINING, batch_size=1000))
    order = [3, 0, 5, 1, 4, 2]
    for method in (FedEM, FedRC):
        one, _ = play(method(whole), federation, engine, rounds=2)
        two, _ = play(method(whole), permuted(federation, order), engine, rounds=2)
        np.testing.assert_allclose(two.pi, one.pi[order], atol=1e-5)


def test_the_number_of_models_must_be_told(federation: Federation, engine: Engine) -> None:
    for method, name in ((FedEM, "fedem"), (FedRC, "fedrc")):
        with pytest.raises(FedfluxError, match=f"{name} must be told the number of clusters"):
            method(replace(SETTINGS, clusters=None)).init(federation, engine)
