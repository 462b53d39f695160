"""FedEM and FedRC: responsibilities, what they reduce to, and clients that come late or never."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.making import SETTINGS, TRAINING, digits, loop, loop_by_autograd, permuted, play, same

from fedflux.algorithms import FedAvg
from fedflux.algorithms.base import grown
from fedflux.algorithms.baselines.fedem import FedEM
from fedflux.algorithms.baselines.fedrc import FedRC
from fedflux.algorithms.check_engines import WrappedEngine
from fedflux.algorithms.shared.mixture import (
    AskWeights,
    Evidence,
    Floats,
    Responsibilities,
    responsibilities,
    settled,
)
from fedflux.data import Federation
from fedflux.data.holding import About, ClientHolding
from fedflux.engine import SimulatedEngine
from fedflux.errors import FedfluxError

ONE = replace(SETTINGS, clusters=1)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop_by_autograd(federation)


def evidence(algorithm: Any, state: Any, federation: Federation, engine: SimulatedEngine, client: int) -> Floats:
    """What the samples of a client say of the models, as it computes that itself."""
    cohort = federation.cohort([client])
    question = algorithm._evidence(state)
    (losses,) = engine.backend.losses(state.models, cohort, question.split)
    return question.of(ClientHolding(cohort, client), losses)


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
def test_one_model_is_fedavg_bit_for_bit(method: Any, federation: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(method(ONE), federation, engine)
    expected, _ = play(FedAvg(ONE), federation, engine)
    assert same(state.models, expected.model)
    np.testing.assert_array_equal(state.pi, np.ones((6, 1)))


def test_the_weights_are_the_mean_responsibilities(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = FedEM(SETTINGS)
    begin, _ = play(algorithm, federation, engine, rounds=1)
    after, _ = play(algorithm, federation, engine, rounds=1, state=begin)
    losses = engine.backend.losses(begin.models, federation.cohort([2]), "train")[0].astype(np.float64)
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


def test_marginals_are_the_responsible_shares_of_the_labels(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = FedRC(SETTINGS)
    begin = algorithm.init(federation, engine)
    after, _ = play(algorithm, federation, engine, rounds=1)
    sums = np.zeros((3, 10))
    for client, losses in enumerate(engine.backend.losses(begin.models, federation.cohort(range(6)), "train")):
        q = np.exp(-losses.astype(np.float64))
        q /= q.sum(axis=0)
        for label in range(10):
            sums[:, label] += q[:, federation.materialise(client, "train").y.numpy() == label].sum(axis=1)
    np.testing.assert_allclose(after.marginals, sums / sums.sum(axis=1, keepdims=True))
    found = evidence(algorithm, after, federation, engine, 1)
    likelihood = evidence(FedEM(SETTINGS), after, federation, engine, 1)
    y = federation.materialise(1, "train").y.numpy()
    np.testing.assert_allclose(found, likelihood - np.log(after.marginals)[:, y].T)


@pytest.mark.parametrize("method", [FedEM, FedRC])
def test_who_never_took_part_is_placed_at_the_end(method: Any, federation: Federation, engine: SimulatedEngine) -> None:
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
    np.testing.assert_allclose(state.pi[5], settled(evidence(algorithm, state, federation, engine, 5)))
    assert algorithm.assignment(state).min() >= 0
    again = algorithm.unseen(state, everyone.features("test"), engine)
    np.testing.assert_array_equal(unseen.weights, again.weights)  # it is no training client


def test_costs_are_those_of_m_models(federation: Federation, engine: SimulatedEngine) -> None:
    state, metrics = play(FedEM(SETTINGS), federation, engine, rounds=1)
    assert set(metrics.up.values()) == set(metrics.down.values()) == {3 * state.models.model_bytes()}
    assert metrics.work == {"models_down": 18, "models_up": 18, "forward": 18, "training": 3 * 2 * 6}
    state, metrics = play(FedRC(SETTINGS), federation, engine, rounds=1)
    assert set(metrics.up.values()) == {3 * state.models.model_bytes() + 4 * 3 * 10}


def test_permuting_clients_permutes_their_weights(federation: Federation, engine: SimulatedEngine) -> None:
    whole = replace(SETTINGS, training=replace(TRAINING, batch_size=1000))
    order = [3, 0, 5, 1, 4, 2]
    for method in (FedEM, FedRC):
        one, _ = play(method(whole), federation, engine, rounds=2)
        two, _ = play(method(whole), permuted(federation, order), engine, rounds=2)
        np.testing.assert_allclose(two.pi, one.pi[order], atol=1e-5)


def test_the_number_of_models_must_be_told(federation: Federation, engine: SimulatedEngine) -> None:
    for method, name in ((FedEM, "fedem"), (FedRC, "fedrc")):
        with pytest.raises(FedfluxError, match=f"{name} must be told the number of clusters"):
            method(replace(SETTINGS, clusters=None)).init(federation, engine)


def test_a_client_tells_sums_of_its_responsibilities_and_nothing_else(
    federation: Federation, engine: SimulatedEngine
) -> None:
    cohort, models = federation.cohort([2]), engine.initial(3)
    held = ClientHolding(cohort, 2)
    (losses,) = engine.backend.losses(models, cohort, "train")
    pi = {"pi": torch.tensor([0.2, 0.5, 0.3]).double()}
    extras, told = Responsibilities(Evidence(3), labels=10).prepare(held, losses, pi)
    q = responsibilities(-losses.T.astype(np.float64), pi["pi"].numpy())
    np.testing.assert_array_equal(np.stack([one["weights"] for one in extras], axis=1), q.astype(np.float32))
    assert set(told) == {"pi", "sums"}
    np.testing.assert_array_equal(told["pi"], q.mean(axis=0))
    y = federation.materialise(2, "train").y.numpy()
    sums = told["sums"].astype(np.float64)
    np.testing.assert_allclose(sums, [[q[y == u, m].sum() for u in range(10)] for m in range(3)])
    assert set(Responsibilities(Evidence(3)).prepare(held, losses, pi)[1]) == {"pi"}


def test_evidence_of_another_part_is_repeated_and_may_be_missing(federation: Federation) -> None:
    held = ClientHolding(federation.cohort([2]), 2)
    losses = np.arange(14, dtype=np.float32).reshape(2, 7)
    found = Evidence(2, split="validation").of(held, losses)
    assert len(found) == held.size("train") > 14
    np.testing.assert_array_equal(found[:14], -np.tile(losses.T, (2, 1)))
    none = Evidence(2, split="validation").of(held, losses[:, :0])
    assert none.shape == found.shape
    assert not none.any()


def test_a_client_without_examples_stays_with_its_weights(federation: Federation) -> None:
    rows = [replace(one, train=one.train[:0]) for one in federation.rows]
    empty = ClientHolding(replace(federation, rows=rows, _cache=type(federation._cache)()).cohort([2]), 2)
    pi = torch.tensor([0.25, 0.75]).double()
    extras, told = Responsibilities(Evidence(2), labels=10).prepare(empty, np.zeros((2, 0), np.float32), {"pi": pi})
    np.testing.assert_array_equal(told["pi"], pi)
    assert not told["sums"].any()
    assert [len(one["weights"]) for one in extras] == [0, 0]
    np.testing.assert_array_equal(settled(np.zeros((0, 4))), np.full(4, 0.25))


def test_wrong_responsibilities_are_refused_in_words() -> None:
    about = About({"train": 10, "validation": 2, "test": 2}, classes=3)
    right: dict[str, Any] = {"pi": np.array([0.25, 0.75]), "sums": np.full((2, 3), 10 / 6)}
    preparation, question = Responsibilities(Evidence(2), labels=3), AskWeights(Evidence(2))
    assert preparation.fault(right, about) is None
    assert question.fault({"pi": right["pi"]}, about) is None
    bad = {
        "has a wrong shape": {**right, "pi": np.ones(3) / 3},
        "does not have the arrays asked for": {"pi": right["pi"]},
        "NaN or infinite numbers in sums": {**right, "sums": right["sums"] * np.inf},
        "no weights that sum to one": {**right, "pi": np.array([-0.5, 1.5])},
        "more samples than it holds": {**right, "sums": 2 * right["sums"]},
    }
    for words, arrays in bad.items():
        assert words in (preparation.fault(arrays, about) or ""), words
    assert "sum to one" in (question.fault({"pi": np.array([0.5, 0.6])}, about) or "")
    assert Responsibilities(Evidence(2)).fault({"pi": right["pi"]}, about) is None


@pytest.mark.parametrize("method", [FedEM, FedRC])
def test_those_who_answer_are_enough(method: Any, federation: Federation, engine: SimulatedEngine) -> None:
    """A round in which two answers are lost is one with the other four."""

    class Deaf(WrappedEngine):
        def train(self, start, cohort, jobs, *more):
            heard = [job for job in jobs if job.client not in (1, 4)]
            trained = self.inner.train(start, cohort.only({0, 2, 3, 5}), heard, *more)
            return replace(trained, missing={1: "late", 4: "late"})

    algorithm = method(SETTINGS)
    state, metrics = algorithm.round(algorithm.init(federation, engine), federation.cohort(range(6), 1), Deaf(engine))
    expected, fewer = play(algorithm, federation, engine, rounds=1, members=lambda r: [0, 2, 3, 5])
    assert same(state.models, expected.models)
    np.testing.assert_array_equal(state.pi, expected.pi)
    assert state.took_part.tolist() == [True, False, True, True, False, True]
    assert metrics.up == {**fewer.up, 1: 0, 4: 0}
    assert set(metrics.down.values()) == set(fewer.down.values())
    assert metrics.events == [f"round 1: client {k} did not answer: late" for k in (1, 4)]


def test_clients_that_come_later_begin_with_uniform_weights(federation: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(FedEM(SETTINGS), federation, engine, rounds=1, members=lambda r: [0, 1])
    more = grown(state, 9)
    np.testing.assert_array_equal(more.weights[2:], np.full((7, 3), 1 / 3))
    np.testing.assert_array_equal(more.weights[:2], state.pi[:2])
    assert FedEM(SETTINGS).assignment(more)[6:].tolist() == [-1, -1, -1]
