"""pFedMe: the proximal point in closed form, its limit, and whose models are answered with."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.making import SETTINGS, TRAINING, answering, apart, digits, kept, loop, permuted, play, same
from torch import Tensor

from fedflux.algorithms import Algorithm, FedAvg
from fedflux.algorithms.baselines.pfedme import Envelope, PFedMe
from fedflux.data import Federation
from fedflux.engine import LoopEngine, SimulatedEngine
from fedflux.engine.rules import Batch, Loss
from fedflux.engine.stack import Parameters
from fedflux.engine.training import Sgd
from fedflux.models import build_model


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop(federation)


@dataclass(frozen=True)
class Quadratic:
    """F(θ) = ‖θ − a‖²/2 in the place of a model."""

    a: Tensor

    def example_losses(self, logits: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def apply(self, params: Parameters, x: Tensor) -> Tensor:
        raise AssertionError

    def trained(self, params: Parameters) -> Parameters:
        return params

    def gradient(self, loss: Loss, at: Parameters) -> Parameters:
        return {name: tensor - self.a for name, tensor in at.items()}

    def statistics(self, params: Parameters, x: Tensor) -> Parameters:
        return {}

    def add(self, left: Parameters, right: Parameters, factor: float) -> Parameters:
        return {name: tensor + factor * right[name] for name, tensor in left.items()}


def test_the_inner_steps_find_the_proximal_point() -> None:
    a, w = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 3.0]).double()
    rule = Envelope(Sgd(0.01, 0.9), strength=4.0, steps=200, personal_lr=0.1, decay=0.0)
    operations, params = Quadratic(a), ({"w": w}, {"w": w})
    batch = Batch(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    (after, theta), _ = rule.step(operations, params, rule.start(operations, params), batch, {}, torch.tensor(0))
    expected = (a + 4 * w) / 5
    torch.testing.assert_close(theta["w"], expected)
    torch.testing.assert_close(after["w"], w - 0.01 * 4 * (w - expected))
    decayed = replace(rule, decay=0.5)
    (_, theta), _ = decayed.step(operations, params, rule.start(operations, params), batch, {}, torch.tensor(0))
    torch.testing.assert_close(theta["w"], (a + 4 * w) / 5.5)


def test_a_strong_pull_is_fedavg(federation: Federation) -> None:
    model = build_model("mlp", federation.input_shape, federation.classes, seed=5).double()
    engine = SimulatedEngine(LoopEngine(model, pixels=federation.dataset.scaling.pixels))
    expected, _ = play(FedAvg(SETTINGS), federation, engine)
    far = []
    for strength in (1e4, 1e6):
        tight = PFedMe(SETTINGS, strength=strength, personal_lr=1 / strength, decay=0.0)
        state, _ = play(tight, federation, engine)
        far.append(apart(state.model, expected.model))
    assert far[1] < 1e-4
    assert far[1] < far[0] / 10


def test_clients_answer_with_their_own_model(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm: Algorithm[Any] = PFedMe(SETTINGS)
    state, _ = play(algorithm, federation, engine, members=lambda r: [0, 1, 2] if r < 3 else [2, 3])
    some = federation.cohort([1, 3, 5])
    known = algorithm.known(state, some, engine)
    assert known is not None
    assert state.took_part.tolist() == [True, True, True, True, False, False]
    own = kept(engine, [1, 3])
    assert same(answering(engine, known, some), own.together([own, state.model]))
    assert apart(own.take([1]), state.model) > 1e-4
    assert algorithm.unseen(state, federation.cohort([0]).features("test"), engine) is None


def test_beta_steps_past_the_mean(federation: Federation, engine: SimulatedEngine) -> None:
    one, _ = play(PFedMe(SETTINGS), federation, engine, rounds=1)
    two, _ = play(PFedMe(SETTINGS, beta=2.0), federation, engine, rounds=1)
    for name, tensor in one.model.tensors.items():
        torch.testing.assert_close(two.model.tensors[name], 2 * tensor - engine.initial().tensors[name])


def test_permuting_clients_permutes_their_models(federation: Federation, engine: SimulatedEngine) -> None:
    whole = replace(SETTINGS, training=replace(TRAINING, batch_size=1000))
    order = [3, 0, 5, 1, 4, 2]
    play(PFedMe(whole), federation, engine, rounds=2)
    own = kept(engine)
    play(PFedMe(whole), permuted(federation, order), engine, rounds=2)
    assert apart(kept(engine), own.take(order)) < 1e-5


def test_costs_count_the_inner_steps(federation: Federation, engine: SimulatedEngine) -> None:
    _, metrics = play(PFedMe(SETTINGS), federation, engine, rounds=1)
    assert metrics.work == {"models_down": 6, "models_up": 6, "forward": 0, "training": 5 * 2 * 6}
    assert np.isfinite(list(metrics.validation.values())).all()
