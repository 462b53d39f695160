"""Recorded steps on a real GPU against the loop there; on machines without one there is nothing to test."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.test_stacked import SHAPES, TRAINING, apart, everyone, make_federation

from fedflux.data import Federation
from fedflux.engine import Job, Key, LoopEngine, Stack
from fedflux.engine.stacked import stacked_engine
from fedflux.models import build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def engines(model: str, dtype: torch.dtype) -> tuple[Federation, LoopEngine, LoopEngine]:
    """Seven uneven clients, the loop, and the engine under test."""
    shape = SHAPES[model]
    loop, other = (
        make(build_model(model, shape, 5, seed=1).to(dtype), "cuda", "fp32-strict")
        for make in (LoopEngine, stacked_engine)
    )
    return make_federation(shape, (23, 8, 17, 9, 31, 17, 40)), loop, other


@pytest.mark.parametrize("model", SHAPES)
def test_float64_agrees_to_rounding_over_rounds_and_cohorts(model: str) -> None:
    federation, loop, other = engines(model, torch.float64)
    for round, ids in enumerate([range(7), (0, 1, 2), (6, 4, 3), range(7)]):
        cohort = federation.cohort(ids)
        jobs = [Job(client) for client in ids]
        one, two = (engine.train(loop.initial(), cohort, jobs, TRAINING, Key(5, round)) for engine in (loop, other))
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


def test_copies_are_counted_alike() -> None:
    federation, loop, other = engines("lenet5", torch.float64)
    twice = replace(federation, duplicate=3)
    cohort = twice.cohort(range(7))
    one, two = (engine.train(loop.initial(), cohort, everyone(twice), TRAINING, Key(5, 1)) for engine in (loop, other))
    assert apart(one, two) < 1e-8
