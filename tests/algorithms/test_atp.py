"""ATP: the rates' derivative, BatchNorm's statistics, and predictions that adapt to their own batch only."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.making import SETTINGS, Normed, digits, loop, play, same
from torch.nn.functional import cross_entropy

from fedflux.algorithms import Algorithm, FedAvg
from fedflux.algorithms.baselines.atp import Atp, BatchAdaptation, RateRule, adapted, directions
from fedflux.data import Features, Federation
from fedflux.engine import LoopEngine, Predictor, SimulatedEngine, Stack
from fedflux.engine.batched.stacked import stacked_engine
from fedflux.engine.rules import Batch

FEW: Algorithm[Any] = Atp(SETTINGS, rate_rounds=3)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop(federation)


def normed() -> tuple[LoopEngine, Batch]:
    torch.manual_seed(1)
    model = Normed((2, 3, 3), 4).double().eval()
    assert model.norm.running_mean is not None
    model.norm.running_mean.add_(0.2)
    return LoopEngine(model), Batch(torch.randn(12, 2, 3, 3).double() * 2 + 1, torch.arange(12) % 4, torch.arange(12))


def test_the_rates_follow_the_derivative_of_the_labelled_loss() -> None:
    """dCE/dα[l] = −⟨g[l], h[l]⟩, against finite differences, running statistics included."""
    engine, batch = normed()
    w = engine.initial().row(0)
    rates = {name: torch.full_like(t, 0.1) if t.is_floating_point() else torch.zeros_like(t) for name, t in w.items()}
    h = directions(engine, w, batch.x)
    assert {"norm.running_mean", "norm.running_var", "norm.weight", "out.bias"} <= h.keys()
    (same_w, after), _ = RateRule(1.0).step(engine, (w, rates), {}, batch, {}, torch.tensor(0))
    assert all(torch.equal(same_w[name], tensor) for name, tensor in w.items())

    def loss(name: str, rate: float) -> float:
        moved = adapted(w, {**rates, name: torch.full_like(w[name], rate)}, h)
        return float(cross_entropy(engine.apply(moved, batch.x), batch.y))

    for name in h:
        slope = (loss(name, 0.1 + 1e-5) - loss(name, 0.1 - 1e-5)) / 2e-5
        found = (after[name] - rates[name]).flatten() * np.sqrt(w[name].numel())
        np.testing.assert_allclose(found, -slope, rtol=1e-5, atol=1e-9)


def test_no_rates_no_adaptation_and_full_rates_are_the_batchs_statistics() -> None:
    engine, batch = normed()
    w = engine.initial().row(0)
    h = directions(engine, w, batch.x)
    none = {name: torch.zeros(()) for name in w}
    unmoved = adapted(w, none, h)
    assert all(torch.equal(unmoved[name], tensor) for name, tensor in w.items())
    full = {**none, "norm.running_mean": torch.ones(()), "norm.running_var": torch.ones(())}
    moved = adapted(w, full, h)
    torch.testing.assert_close(moved["norm.running_mean"], batch.x.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(moved["norm.running_var"], batch.x.var(dim=(0, 2, 3)))
    beyond = adapted(w, {**full, "norm.running_var": torch.tensor(-9.0)}, h)
    assert beyond["norm.running_var"].min() >= 0
    assert not any("forward" in vars(module) for module in engine._model.modules())


def test_adapting_answers_batch_by_batch(federation: Federation, engine: SimulatedEngine) -> None:
    adaptation = BatchAdaptation({name: torch.tensor(0.5) for name in engine.initial().tensors}, 4)
    predictor = Predictor(engine.initial(), np.ones((1, 1)), adaptation=adaptation)
    x = federation.cohort([0]).features("test")[0].x[:10]
    (whole,) = engine.predict(predictor, [Features(x)])
    for begin in (0, 4, 8):
        (part,) = engine.predict(predictor, [Features(x[begin : begin + 4])])
        np.testing.assert_array_equal(whole[begin : begin + 4], part)
    (alone,) = engine.predict(replace(predictor, adaptation=None), [Features(x)])
    assert np.abs(whole - alone).max() > 1e-4
    assert engine.predict(predictor, [Features(x[:0])])[0].shape == (0, 10)


def test_engines_adapt_alike() -> None:
    engine, batch = normed()
    rates = {name: torch.tensor(0.3).double() for name in engine.initial().tensors}
    predictor = Predictor(engine.initial(), np.ones((2, 1)), adaptation=BatchAdaptation(rates, 5))
    features = [Features(batch.x), Features(batch.x[:1])]
    other = stacked_engine(engine._model, "cpu", "fp32-strict")
    for mine, theirs in zip(engine.predict(predictor, features), other.predict(predictor, features), strict=True):
        assert np.isfinite(mine).all()
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_all_rounds_are_fedavgs_and_rates_come_after_the_last(federation: Federation, engine: SimulatedEngine) -> None:
    before, _ = play(FEW, federation, engine, rounds=2)
    assert all((rate == 0).all() for rate in before.rates.tensors.values())
    state, metrics = play(FEW, federation, engine, rounds=1, state=before)
    expected, usual = play(FedAvg(SETTINGS), federation, engine)
    assert same(state.model, expected.model)
    assert any((rate != 0).any() for rate in state.rates.tensors.values())
    names, size = len(state.rates.tensors), state.model.model_bytes()
    assert metrics.up[0] - usual.up[0] == 3 * 4 * names
    assert metrics.down[0] - usual.down[0] == size + 3 * 4 * names
    assert metrics.work["training"] > usual.work["training"]
    assert FEW.known(state, federation.cohort([0]), engine) is None
    unseen = FEW.unseen(state, federation.cohort([0]).features("test"), engine)
    assert unseen is not None
    assert unseen.adaptation is not None
    assert same(unseen.stack, expected.model)


def test_rates_are_learned_on_validation_data_in_evaluation_mode(federation: Federation) -> None:
    """By hand: each client carries the rates through its validation part, and the mean is plain."""
    torch.manual_seed(2)
    model = Normed(federation.input_shape, 10)
    engine = SimulatedEngine(LoopEngine(model, pixels=federation.dataset.scaling.pixels))
    one = replace(SETTINGS, rounds=1, training=replace(SETTINGS.training, batch_size=1000))
    state, _ = play(Atp(one, rate_rounds=1), federation, engine, rounds=1)
    other = LoopEngine(model.eval(), pixels=federation.dataset.scaling.pixels)
    found = []
    for client in range(6):
        data = federation.materialise(client, "validation")
        batch = Batch(other._images(data.x), data.y, torch.arange(len(data)))
        w = state.model.row(0)
        (_, after), _ = RateRule(0.1).step(
            other, (w, {name: torch.zeros_like(t) for name, t in w.items()}), {}, batch, {}, torch.tensor(0)
        )
        found.append(after)
    mean = Stack.join(found).average(np.ones((1, 6)))
    for name, rate in state.rates.tensors.items():
        np.testing.assert_allclose(rate, mean.tensors[name].flatten(1)[:, 0], rtol=1e-3, atol=1e-6)


def test_without_validation_data_there_are_no_rates(federation: Federation, engine: SimulatedEngine) -> None:
    bare = replace(federation, rows=[replace(r, validation=r.validation[:0]) for r in federation.rows])
    bare = replace(bare, _cache=type(federation._cache)())
    state, metrics = play(FEW, bare, engine)
    assert "nobody has validation data" in metrics.events[0]
    assert all((rate == 0).all() for rate in state.rates.tensors.values())
