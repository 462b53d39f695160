"""Trained models that workers leave in shared memory: the same as those that are sent."""

import os
from pathlib import Path

import pytest
import torch
from tests.engine.making import Shifting
from tests.engine.test_processes import TRAINING, pair, same

from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.engine import Job, Key, LoopEngine, ProcessesEngine, Stack
from fedflux.engine.processes import result_buffer as buffer
from fedflux.engine.processes.result_buffer import ResultBuffer


@pytest.fixture(scope="module")
def federation() -> Federation:
    return partition(load("digits"), Partition("px", level=3, clients=6, data_fraction=0.3))


def rounds(
    engine: LoopEngine | ProcessesEngine, federation: Federation, cohorts: list[list[int]], how: str = "plain"
) -> list[Stack]:
    """One call a cohort, in which every client moves otherwise; every other one trains two models."""
    start = engine.initial().take([0, 0])
    return [
        engine.train(
            start,
            federation.cohort(cohort),
            [Job(client, (0, 1)[: 1 + client % 2]) for client in cohort],
            TRAINING,
            Key(3, round),
            Shifting(how),
            [{"by": torch.tensor(1.0 + client + 10 * round)} for client in cohort],
        )
        for round, cohort in enumerate(cohorts)
    ]


COHORTS = [[0, 1, 2], [3, 4], [0, 1, 2, 3, 4, 5], [1, 5], [2]]


def test_cohorts_of_any_size_follow_each_other(federation: Federation) -> None:
    loop, processes = pair("mlp", federation)
    expected = rounds(loop, federation, COHORTS)
    with processes:
        for _ in range(2):
            found = rounds(processes, federation, COHORTS)
            assert [len(stack) for stack in found] == [4, 3, 9, 4, 1]
            assert all(map(same, found, expected))
        made = processes._buffer
        rounds(processes, federation, COHORTS)
        assert processes._buffer is made  # the largest cohort's has room for all


@pytest.mark.parametrize("how", ["wide", "some wide", "first", "backwards"])
def test_models_that_do_not_fit_are_sent(federation: Federation, how: str) -> None:
    loop, processes = pair("mlp", federation)
    with processes:
        (expected,), (found,) = (rounds(engine, federation, [[0, 1, 2, 3]], how) for engine in (loop, processes))
    assert list(found.tensors) == list(expected.tensors)
    assert found.tensors["classifier.bias"].dtype == (torch.float64 if "wide" in how else torch.float32)
    assert same(found, expected)


def test_an_answer_is_not_changed_by_the_next(federation: Federation) -> None:
    with pair("mlp", federation)[1] as engine:
        first, *_ = rounds(engine, federation, [[0, 1, 2]])
        kept = Stack({name: tensor.clone() for name, tensor in first.tensors.items()})
        engine.train(first, federation.cohort([0, 1, 2]), [Job(k, (k,)) for k in range(3)], TRAINING, Key(3, 9))
    assert same(first, kept)


def test_large_answers_are_sent(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rounds(pair("mlp", federation)[0], federation, COHORTS)
    monkeypatch.setattr(buffer, "LARGEST", 1000)
    with pair("mlp", federation)[1] as engine:
        assert all(map(same, rounds(engine, federation, COHORTS), expected))
        assert engine._buffer is None


def test_a_worker_that_replaces_a_dead_one_is_shown_the_shelf(federation: Federation) -> None:
    with pair("mlp", federation)[1] as engine:
        first = rounds(engine, federation, COHORTS[:1])
        engine._pool.kill()
        assert all(map(same, rounds(engine, federation, COHORTS[:1]), first))


def test_an_engine_outlives_a_shelf_that_could_not_be_made(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("too many open files")

    with pair("mlp", federation)[1] as engine:
        expected = rounds(engine, federation, COHORTS[:3])
    with pair("mlp", federation)[1] as engine:
        rounds(engine, federation, COHORTS[:1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fails)
            with pytest.raises(OSError, match="too many open files"):
                rounds(engine, federation, COHORTS[2:3])
        assert all(map(same, rounds(engine, federation, COHORTS[:3]), expected))


def test_room_is_only_made_for_what_is_asked() -> None:
    model = {"weight": torch.zeros(3, 2), "steps": torch.tensor(5)}
    made = ResultBuffer.like(model, 4)
    assert made is not None
    assert made.fits(model, 4)
    assert not made.fits(model, 5)
    assert not made.fits({"weight": torch.zeros(2, 3), "steps": torch.tensor(5)})
    assert not made.fits({"weight": torch.zeros(3, 2)})
    assert not made.put(0, {"weight": torch.zeros(3, 2).double(), "steps": torch.tensor(5)})
    assert made.put(1, {"weight": torch.ones(3, 2), "steps": torch.tensor(7)})
    assert made.models(1, 2).tensors["steps"].tolist() == [7]
    assert ResultBuffer.like({"nothing": torch.zeros(0)}, 3) is None


def test_no_descriptors_are_left_open(federation: Federation) -> None:
    def held() -> int:
        return sum("memfd" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    if not Path("/proc/self/fd").exists():
        pytest.skip("descriptors are only listed on Linux")
    before = held()
    with pair("mlp", federation)[1] as engine:
        rounds(engine, federation, COHORTS)
        during = held()  # of the federation and the buffer
        rounds(engine, federation, COHORTS)
        assert held() == during > before
    assert held() == before
