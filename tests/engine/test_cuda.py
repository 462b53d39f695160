"""Recorded steps on a real GPU against the loop there; on machines without one there is nothing to test."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.test_stacked import SHAPES, TRAINING, apart, everyone, make_federation
from tests.engine.test_training import KINDS

from fedflux.data import Federation
from fedflux.descriptors.bounds import LatentRange, client_bounds, merge_bounds
from fedflux.descriptors.moments import MomentStatistic
from fedflux.descriptors.projector import fit_projector
from fedflux.engine import Job, Key, LoopEngine, Stack
from fedflux.engine.batched.stacked import stacked_engine
from fedflux.models import build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Torch's switches are properties, which monkeypatch would delete instead of restoring."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = False, False, True
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def engines(model: str, dtype: torch.dtype) -> tuple[Federation, LoopEngine, LoopEngine]:
    """Seven uneven clients, the loop, and the engine under test."""
    shape = SHAPES[model]
    loop, other = (
        make(build_model(model, shape, 5, seed=1).to(dtype), "cuda", "fp32-strict")
        for make in (LoopEngine, stacked_engine)
    )
    return make_federation(shape, (23, 8, 17, 9, 31, 17, 40)), loop, other


@pytest.mark.parametrize("name", [None, *KINDS])
@pytest.mark.parametrize("model", SHAPES)
def test_float64_agrees_to_rounding_over_rounds_and_cohorts(model: str, name: str | None) -> None:
    federation, loop, other = engines(model, torch.float64)
    training = TRAINING if name is None else KINDS[name]
    for round, ids in enumerate([range(7), (0, 1, 2), (6, 4, 3), range(7)]):
        cohort = federation.cohort(ids)
        jobs = [Job(client) for client in ids]
        one, two = (engine.train(loop.initial(), cohort, jobs, training, Key(5, round)) for engine in (loop, other))
        assert apart(one, two) < 1e-8
    assert apart(one, loop.initial()) > 1e-3


@pytest.mark.parametrize("model", SHAPES)
def test_single_precision_stays_near_over_two_rounds(model: str) -> None:
    federation, loop, other = engines(model, torch.float32)
    cohort = federation.cohort(range(7))
    ends: list[Stack] = []
    for engine in (loop, other):
        stack = engine.initial()
        for round in (1, 2):
            trained = engine.train(stack, cohort, everyone(federation), TRAINING, Key(5, round))
            stack = trained.average(np.ones((1, 7)))
        ends.append(stack)
    assert apart(*ends) < 1e-3


@pytest.mark.parametrize("model", ["lenet5", "mlp"])  # BatchNorm's statistics differ from run to run in half precision
def test_half_precision_learns_what_the_loop_does(model: str) -> None:
    shape = SHAPES[model]
    federation = make_federation(shape, (23, 8, 17, 9, 31, 17, 40))
    cohort = federation.cohort(range(7))
    ends = []
    for make in (LoopEngine, stacked_engine):
        engine = make(build_model(model, shape, 5, seed=1), "cuda", "bf16")
        ends.append(engine.train(engine.initial(), cohort, everyone(federation), TRAINING, Key(5, 1)))
    moved = apart(ends[0], engine.initial().take([0] * 7))
    assert apart(*ends) < 0.3 * moved


def test_copies_are_counted_alike() -> None:
    federation, loop, other = engines("lenet5", torch.float64)
    twice = replace(federation, duplicate=3)
    cohort = twice.cohort(range(7))
    one, two = (engine.train(loop.initial(), cohort, everyone(twice), TRAINING, Key(5, 1)) for engine in (loop, other))
    assert apart(one, two) < 1e-8


@pytest.mark.parametrize("labelled", [True, False])
def test_moments_of_many_clients_at_once_are_those_of_each(labelled: bool) -> None:
    federation, loop, other = engines("lenet5", torch.float64)
    cohort = federation.cohort(range(7))
    held = cohort.held("train") if labelled else cohort.features("train")
    ranges = loop.reduce(loop.initial(), held, LatentRange())
    projector = fit_projector(merge_bounds([client_bounds(one) for one in ranges]))
    statistic = MomentStatistic(projector, 5 if labelled else None)
    one, two = (engine.reduce(loop.initial(), held, statistic) for engine in (loop, other))
    for alone, together in zip(one, two, strict=True):
        torch.testing.assert_close(together.table, alone.table.cpu(), rtol=1e-9, atol=1e-9)
