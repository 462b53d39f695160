"""APFL: its two ends are FedAvg and local training, and α moves towards whichever model is better."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms.making import (
    SETTINGS,
    TRAINING,
    answering,
    answers,
    apart,
    digits,
    keep,
    kept,
    loop,
    loop_by_autograd,
    permuted,
    play,
    same,
)

from fedflux.algorithms import FedAvg, Local
from fedflux.algorithms.baselines.apfl import Apfl
from fedflux.data import Federation
from fedflux.engine import Kept, SimulatedEngine, Stack


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop_by_autograd(federation)


@pytest.mark.parametrize("output_mixing", [False, True])
def test_alpha_zero_is_fedavg_bit_for_bit(output_mixing: bool, federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = Apfl(SETTINGS, alpha=0.0, adaptive=False, output_mixing=output_mixing)
    state, _ = play(algorithm, federation, engine)
    expected, _ = play(FedAvg(SETTINGS), federation, engine)
    assert same(state.model, expected.model)
    two = federation.cohort([1, 4])
    own, shared = algorithm.known(state, two, engine), FedAvg(SETTINGS).known(expected, two, engine)
    for mine, theirs in zip(answers(engine, own, two), answers(engine, shared, two), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("output_mixing", [False, True])
def test_alpha_one_is_local_training(output_mixing: bool, federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = Apfl(SETTINGS, alpha=1.0, adaptive=False, output_mixing=output_mixing)
    state, _ = play(algorithm, federation, engine)
    own, everyone = kept(engine), federation.cohort(range(6))
    answered = answering(engine, algorithm.known(state, everyone, engine), everyone)
    play(Local(SETTINGS), federation, engine)
    assert same(own, kept(engine))
    assert same(answered, own)


def test_the_global_model_is_fedavgs_whatever_the_clients_mix(federation: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(Apfl(SETTINGS), federation, engine)
    expected, _ = play(FedAvg(SETTINGS), federation, engine)
    assert same(state.model, expected.model)
    assert np.unique(state.alpha).size == 6
    unseen = Apfl(SETTINGS).unseen(state, federation.cohort([0]).features("test"), engine)
    assert same(unseen.stack, expected.model)


@pytest.mark.parametrize("output_mixing", [False, True])
def test_alpha_rises_when_the_own_model_is_better(
    output_mixing: bool, federation: Federation, engine: SimulatedEngine
) -> None:
    play(Local(SETTINGS), federation, engine)
    trained = kept(engine)
    algorithm = Apfl(SETTINGS, output_mixing=output_mixing)
    begin = algorithm.init(federation, engine)
    alphas = {}
    for better, model in (("v", engine.initial()), ("w", trained.take([2]))):
        if better == "v":
            keep(engine, trained)
        else:
            engine.restore(Kept())
        state, _ = algorithm.round(replace(begin, model=model), federation.cohort([2]), engine)
        alphas[better] = state.alpha[2]
    assert alphas["v"] > 0.5 > alphas["w"]


def test_alphas_slope_is_the_derivative_of_the_mixed_loss(federation: Federation) -> None:
    """One batch that holds everything, one epoch: α moves by −η df/dα, here by finite differences."""
    engine = loop(federation)
    whole = replace(SETTINGS, training=replace(TRAINING, epochs=1, batch_size=1000, lr=1e-3))
    play(Local(SETTINGS), federation, engine)
    trained = kept(engine)
    algorithm = Apfl(whole, alpha=0.3)
    begin = algorithm.init(federation, engine)
    after, _ = algorithm.round(begin, federation.cohort([2]), engine)

    def loss(alpha: float) -> float:
        weights = np.array([[alpha, 1 - alpha]])
        mixed = Stack.together([trained.take([2]), begin.model]).average(weights)
        return float(engine.backend.losses(mixed, federation.cohort([2]), "train")[0].astype(np.float64).mean())

    slope = (loss(0.31) - loss(0.29)) / 0.02
    np.testing.assert_allclose((0.3 - after.alpha[2]) / 1e-3, slope, rtol=0.01)


def test_own_models_survive_rounds_in_which_others_train(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = Apfl(SETTINGS)
    one, _ = play(algorithm, federation, engine, rounds=2, members=lambda r: [0, 1, 2])
    own = kept(engine, [0, 1, 2])
    two, _ = play(algorithm, federation, engine, rounds=1, members=lambda r: [3, 4], state=one)
    assert same(kept(engine, [0, 1, 2]), own)
    np.testing.assert_array_equal(two.alpha[:3], one.alpha[:3])
    assert two.took_part.tolist() == [True] * 5 + [False]
    some = federation.cohort([0, 5])
    known = answering(engine, algorithm.known(two, some, engine), some)
    assert same(known.take([1]), two.model)  # who never took part has only w
    mixed = two.alpha[0] * own.tensors["classifier.weight"][0]
    mixed = mixed + (1 - two.alpha[0]) * two.model.tensors["classifier.weight"][0]
    torch.testing.assert_close(known.tensors["classifier.weight"][0], mixed.float())


def test_alpha_moves_once_a_round_and_stays_between_zero_and_one(federation: Federation) -> None:
    engine = loop(federation)
    algorithm = Apfl(replace(SETTINGS, training=replace(TRAINING, lr=0.5)), alpha=0.95)
    state, _ = play(algorithm, federation, engine, rounds=1)
    np.testing.assert_allclose(state.alpha, 0.95, rtol=1e-6)  # v is w at the first batch of all
    state, _ = play(algorithm, federation, engine, rounds=2, state=state)
    assert state.alpha.min() >= 0
    assert state.alpha.max() <= 1


def test_permuting_clients_permutes_their_models(federation: Federation, engine: SimulatedEngine) -> None:
    whole = replace(SETTINGS, training=replace(TRAINING, batch_size=1000))
    order = [3, 0, 5, 1, 4, 2]
    one, _ = play(Apfl(whole), federation, engine, rounds=2)
    own = kept(engine)
    two, _ = play(Apfl(whole), permuted(federation, order), engine, rounds=2)
    assert apart(kept(engine), own.take(order)) < 1e-5
    np.testing.assert_allclose(two.alpha, one.alpha[order], atol=1e-5)


def test_costs_count_both_trainings(federation: Federation, engine: SimulatedEngine) -> None:
    state, metrics = play(Apfl(SETTINGS), federation, engine, rounds=1)
    assert metrics.work == {"models_down": 6, "models_up": 6, "forward": 0, "training": 2 * 2 * 6}
    assert set(metrics.up.values()) == {state.model.model_bytes()}
