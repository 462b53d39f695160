"""Copies as a count against copies as data: the same models bit for bit, the same losses, bounds and descriptors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.making import Collect, Normed
from tests.engine.test_stacked import SHAPES as LARGER
from tests.engine.test_stacked import Coupled, apart, everyone, make_federation

from fedflux.algorithms.flux.describe import DescriptorSettings, describe_all
from fedflux.data import Features, Federation
from fedflux.engine import (
    Backend,
    Job,
    Key,
    LoopEngine,
    Predictor,
    ProcessesEngine,
    Recipe,
    SimulatedEngine,
    Stack,
    Training,
)
from fedflux.engine.batched.stacked import stacked_engine
from fedflux.models import build_model

COPIES = 3
SHAPES = {**LARGER, "normed": (1, 6, 6)}
TRAINING = Training(epochs=2, batch_size=8, lr=0.02, momentum=0.9)
ENGINES = [("loop", "mlp"), ("loop", "normed"), ("stacked", "mlp"), ("stacked", "lenet5"), ("stacked", "normed")]


def pair(model: str) -> tuple[Federation, Federation]:
    """A federation with a count of copies, and one whose rows are repeated."""
    counted = replace(make_federation(SHAPES[model]), duplicate=COPIES)
    rows = [replace(one, train=np.tile(one.train, COPIES)) for one in counted.rows]
    made = replace(make_federation(SHAPES[model]), rows=rows)
    for k in range(len(made)):
        assert made.materialise(k, "train").x.equal(counted.materialise(k, "train").repeated().x)
    return counted, made


def engine_of(name: str, model: str) -> Backend:
    make = LoopEngine if name == "loop" else stacked_engine
    torch.manual_seed(1)
    built = Normed(SHAPES[model], 5) if model == "normed" else build_model(model, SHAPES[model], 5, seed=1)
    return make(built, "cpu", "fp32-strict")


def same(one: Stack, two: Stack) -> bool:
    return all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())


@pytest.mark.parametrize(("name", "model"), ENGINES)
def test_training_is_the_same_bit_for_bit(name: str, model: str) -> None:
    ends = []
    for federation in pair(model):
        engine = engine_of(name, model)
        stack = engine.initial()
        for round, ids in ((1, range(4)), (2, (0, 2))):  # all clients, then others in other places
            cohort = federation.cohort(ids, round)
            trained = engine.train(stack, cohort, [Job(k) for k in cohort], TRAINING, Key(5, round))
            stack = trained.average(cohort.sizes("train")[None])
        ends.append(stack)
    assert same(*ends)
    assert apart(ends[0], engine.initial()) > 1e-3  # something was learned


@pytest.mark.parametrize("name", ["loop", "stacked"])
def test_rules_are_told_positions_among_all_copies(name: str) -> None:
    ends = []
    for federation in pair("mlp"):
        engine = engine_of(name, "mlp")
        rng = torch.Generator().manual_seed(1)
        extras = [
            {"weights": torch.rand(federation.size(k, "train"), generator=rng), "pull": torch.tensor(0.1 * (k + 1))}
            for k in range(4)
        ]
        jobs = [Job(k, (0, 1)) for k in range(4)]
        start = engine.initial().take([0, 0])
        ends.append(engine.train(start, federation.cohort(range(4)), jobs, TRAINING, Key(3, 1), Coupled(0.05), extras))
    assert same(*ends)


@pytest.mark.parametrize(("name", "model"), ENGINES)
def test_losses_predictions_and_scores_are_those_of_all_copies(name: str, model: str) -> None:
    found = []
    for federation in pair(model):
        engine, cohort = engine_of(name, model), federation.cohort(range(4))
        predictor = Predictor.shared(engine.initial(), np.ones(1), 4)
        scores = engine.evaluate([predictor], cohort, "train")[0]
        predicted = engine.predict(predictor, cohort.features("train"))
        found.append((engine.losses(engine.initial(), cohort, "train"), predicted, scores))
    for mine, theirs in zip(*([*losses, *predicted] for losses, predicted, _ in found), strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[0][2], found[1][2])


@pytest.mark.parametrize(("name", "model"), ENGINES)
@pytest.mark.parametrize("full", [False, True])
def test_descriptors_are_those_of_all_copies(name: str, model: str, full: bool) -> None:
    made = []
    for federation in pair(model):
        engine, cohort = SimulatedEngine(engine_of(name, model)), federation.cohort(range(4))
        found = describe_all(engine.initial(), cohort, cohort, engine, DescriptorSettings(full_covariance=full))
        assert found is not None
        assert found[0].question.bounds is not None
        made.append((found[0].question.bounds, found[1].descriptors))
    (one, mine), (two, theirs) = made
    np.testing.assert_allclose(one.low, two.low, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(one.high, two.high, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(mine.count, theirs.count)
    assert mine.count.sum(axis=0)[0] == COPIES * sum(len(rows.train) for rows in pair(model)[0].rows)
    np.testing.assert_allclose(mine.effective, theirs.effective)
    np.testing.assert_array_equal(mine.validation_count, theirs.validation_count)
    for field in ("mean", "spread", "validation_mean"):
        np.testing.assert_allclose(getattr(mine, field), getattr(theirs, field), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["loop", "stacked"])
def test_a_statistic_meets_every_example_once(name: str) -> None:
    counted, _ = pair("mlp")
    data = [counted.materialise(k, "train") for k in range(4)]
    engine = engine_of(name, "mlp")
    for one, (latents, labels) in zip(data, engine.reduce(engine.initial(), data, Collect()), strict=True):
        assert len(latents) == len(one.x) == len(one) // COPIES
        assert labels is not None
        assert labels.equal(one.y)


def test_worker_processes_count_copies_too() -> None:
    counted, made = pair("mlp")
    with ProcessesEngine(Recipe("mlp", SHAPES["mlp"], 5, 1), workers=2) as engine:
        ends = [
            engine.train(engine.initial(), f.cohort(range(4)), everyone(f), TRAINING, Key(5, 1))
            for f in (counted, made)
        ]
        features = [Features(counted.materialise(k, "train").x, copies=2) for k in range(4)]
        predicted = engine.predict(Predictor.shared(engine.initial(), np.ones(1), 4), features)
    assert same(*ends)
    assert [len(one) for one in predicted] == [2 * len(one.x) for one in features]
