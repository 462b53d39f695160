"""Worker processes against the reference engine: the same bits, the same errors, and nothing left behind."""

import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.engine.making import Collect, Coupled, Failing, echo, stumble

from fedflux.data import Dataset, Examples, Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.descriptors.bounds import LatentRange
from fedflux.engine import (
    DivergedError,
    Job,
    Key,
    LoopEngine,
    Predictor,
    ProcessesEngine,
    Recipe,
    Stack,
    Training,
    make_engine,
    one_thread,
)
from fedflux.engine.processes.pool import Pool, WorkerDiedError
from fedflux.engine.processes.schedule import Shares, deal
from fedflux.engine.processes.transfer import SharedMessage
from fedflux.errors import FedfluxError

NAMED = object()
TRAINING = Training(epochs=2, batch_size=16, lr=0.05, momentum=0.9)


def pictures(side: int, count: int, channels: int = 1) -> Dataset:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (count, channels, side, side), dtype=np.uint8)
    y = rng.integers(0, 4, count)
    return Dataset("pictures", Examples(x, y), Examples(x[::4], y[::4]), 4)


def federations() -> dict[str, Federation]:
    uneven = Partition("pxgy", level=3, clients=7, seed=2, quantity_skew=0.6)
    return {
        "mlp": partition(load("digits"), uneven),
        "lenet5": partition(pictures(28, 700), uneven),
        "resnet9": partition(pictures(16, 60, 3), Partition("py", level=2, clients=3)),
        f"{Collect.__module__}:Dropping": partition(load("digits"), uneven),
    }


def pair(model: str, federation: Federation, workers: int = 2) -> tuple[LoopEngine, ProcessesEngine]:
    recipe = Recipe(model, federation.input_shape, federation.classes, 1)
    pixels = federation.dataset.scaling.pixels
    return LoopEngine(recipe.build(), pixels=pixels), ProcessesEngine(recipe, pixels=pixels, workers=workers)


def same(first: Stack, second: Stack) -> bool:
    assert first.tensors.keys() == second.tensors.keys()
    return all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())


@pytest.fixture(scope="module")
def federation() -> Federation:
    return partition(load("digits"), Partition("px", level=3, clients=6, data_fraction=0.3))


@pytest.fixture(scope="module")
def engine(federation: Federation) -> Iterator[ProcessesEngine]:
    with pair("mlp", federation)[1] as made:
        yield made


def failing(engine: ProcessesEngine, federation: Federation, what: list[int]) -> Stack:
    extras = [{"what": torch.tensor(w), "client": torch.tensor(k)} for k, w in enumerate(what)]
    jobs = [Job(k) for k in range(len(what))]
    cohort = federation.cohort(range(len(what)))
    return engine.train(engine.initial(), cohort, jobs, TRAINING, Key(0, 4), Failing(), extras)


@pytest.mark.parametrize("model", list(federations()))
def test_every_answer_is_the_loops_bit_for_bit(model: str) -> None:
    federation = federations()[model].blind()
    cohort = federation.cohort(range(len(federation)), 1)
    training = Training(1, 8, 0.01, 0.9) if model == "resnet9" else TRAINING
    loop, processes = pair(model, federation)
    with one_thread(), processes:
        assert same(loop.initial(), processes.initial())
        found = []
        for one in (loop, processes):
            models = one.initial()
            for r in (1, 2):
                jobs = [Job(k, (k % len(models),)) for k in cohort]
                models = one.train(models, cohort, jobs, training, Key(5, r))
            found.append(models)
        assert same(*found)
        predictor = Predictor(found[0], np.random.default_rng(0).dirichlet(np.ones(len(cohort)), len(cohort)))
        for split in ("validation", "test"):
            assert all(
                map(np.array_equal, loop.losses(found[0], cohort, split), processes.losses(found[0], cohort, split))
            )
            scores = [one.evaluate([predictor], cohort, split)[0] for one in (loop, processes)]
            np.testing.assert_array_equal(scores[0], scores[1])
            several = [predictor, Predictor.single(found[0], np.arange(len(cohort))), predictor]
            both = [one.evaluate(several, cohort, split) for one in (loop, processes)]
            np.testing.assert_array_equal(both[0], both[1])
            np.testing.assert_array_equal(both[0][[0, 2]], [scores[0]] * 2)
        features = cohort.features("test")
        assert all(map(np.array_equal, loop.predict(predictor, features), processes.predict(predictor, features)))
        for clients in (features, [cohort.data(k, "train") for k in cohort]):
            for ours, theirs in zip(
                *(e.reduce(loop.initial(), clients, Collect()) for e in (loop, processes)), strict=True
            ):
                assert torch.equal(ours[0], theirs[0])
                assert (ours[1] is None) == (theirs[1] is None)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_optimisers_and_schedules_are_the_loops_bit_for_bit(
    kind: Literal["sgd", "adam", "adamw"], federation: Federation
) -> None:
    training = replace(TRAINING, lr=0.01, kind=kind, weight_decay=0.1, clip=0.5, schedule="cosine", rounds=4)
    loop, processes = pair("mlp", federation)
    cohort = federation.cohort(range(len(federation)))
    with one_thread(), processes:
        found = []
        for one in (loop, processes):
            models = one.initial()
            for r in (1, 2):
                models = one.train(models, cohort, [Job(k, (k % len(models),)) for k in cohort], training, Key(5, r))
            found.append(models)
    assert same(*found)


def test_rules_with_two_parameter_sets_and_extras(federation: Federation) -> None:
    loop, processes = pair("mlp", federation, workers=3)
    cohort = federation.cohort([0, 2, 3, 5])
    start = loop.initial().take([0, 0, 0])
    jobs = [Job(client, (k % 3, (k + 1) % 3)) for k, client in enumerate(cohort)]
    generator = torch.Generator().manual_seed(1)
    extras = [
        {
            "share": torch.rand((), generator=generator),
            "weights": torch.rand(federation.size(client, "train"), generator=generator),
            "anchor": torch.randn(10, 64, generator=generator),
        }
        for client in cohort
    ]
    with one_thread(), processes:
        stacks = [e.train(start, cohort, jobs, TRAINING, Key(1, 1), Coupled(0.1), extras) for e in (loop, processes)]
    assert len(stacks[1]) == 8
    assert same(*stacks)


def test_a_whole_run_has_the_same_bits(tmp_path: Path) -> None:
    import fedflux

    options: dict[str, Any] = {
        "dataset": "digits",
        "shift": "px",
        "rounds": 5,
        "cluster_round": 2,
        "data_fraction": 0.3,
        "store": "none",
    }
    for engine in ("loop", "processes"):
        fedflux.run(**options, engine=engine, out=str(tmp_path / engine))
    files = ("models.safetensors", "descriptors.npz")
    for name in files:
        assert (tmp_path / "loop" / name).read_bytes() == (tmp_path / "processes" / name).read_bytes()


def test_errors_are_those_of_the_loop(engine: ProcessesEngine, federation: Federation) -> None:
    with pytest.raises(KeyError, match="extras of client 2") as caught:  # the first in order, not in time
        failing(engine, federation, [0, 0, 1, 5, 0, 1])
    assert "in a worker process" in caught.value.__notes__[0]
    with pytest.raises(DivergedError, match=r"^client 3 diverged in round 4: its model is not finite; lower --lr"):
        failing(engine, federation, [0, 0, 0, 5, 0, 5])
    with pytest.raises(RuntimeError, match=r"^OddError: this and that"):
        failing(engine, federation, [0, 3, 0])
    nobody = Predictor(engine.initial(), np.array([[1.0], [0.0]]))
    with pytest.raises(ValueError, match="client 1 of the predictor has no model"):
        engine.evaluate([nobody], federation.cohort([0, 1]), "test")
    empty = [one.__class__(one.x[:0]) for one in federation.cohort([0, 1]).features("test")]
    with pytest.raises(ValueError, match="a client without examples has no statistic"):
        engine.reduce(engine.initial(), empty, LatentRange())
    assert len(failing(engine, federation, [0, 0])) == 2  # and the workers go on


def test_what_cannot_be_sent_is_refused(engine: ProcessesEngine, federation: Federation) -> None:
    class Local(Failing):
        pass

    with pytest.raises(FedfluxError, match="cannot send what train was given"):
        engine.train(
            engine.initial(), federation.cohort([0, 1]), [Job(0), Job(1)], TRAINING, Key(0, 1), Local(), [{}, {}]
        )


def test_what_a_worker_cannot_import_is_told(
    engine: ProcessesEngine, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("only_here")
    module.Here = type("Here", (Failing,), {"__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    jobs, extras = [Job(0), Job(1)], [{"what": torch.tensor(0)}] * 2
    with pytest.raises(ModuleNotFoundError, match="only_here"):
        engine.train(engine.initial(), federation.cohort([0, 1]), jobs, TRAINING, Key(0, 1), module.Here(), extras)
    assert len(failing(engine, federation, [0, 0])) == 2


def test_a_killed_worker_is_reported_with_its_clients_and_replaced(
    engine: ProcessesEngine, federation: Federation
) -> None:
    with pytest.raises(WorkerDiedError, match=r"killed \(SIGKILL; out of memory\?\) while it had client .*3"):
        failing(engine, federation, [0, 0, 0, 2])
    assert len(failing(engine, federation, [0, 0, 0])) == 3


def test_two_views_of_a_federation_and_a_third(engine: ProcessesEngine, federation: Federation) -> None:
    predictor = Predictor.shared(engine.initial(), np.ones(1), 3)
    views = [federation, federation.blind(), federation.blind(), federation]
    scores = [engine.evaluate([predictor], view.cohort([0, 1, 2]), "test")[0] for view in views]
    for one in scores[1:]:
        np.testing.assert_array_equal(scores[0], one)


def test_one_worker_and_one_client_stay_in_this_process(federation: Federation) -> None:
    _, alone = pair("mlp", federation, workers=1)
    assert len(failing(alone, federation, [0, 0])) == 2
    _, several = pair("mlp", federation, workers=2)
    assert len(failing(several, federation, [0])) == 1
    assert alone._pool.pids == several._pool.pids == []


def test_inside_a_worker_of_a_comparison_there_are_no_others(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = pair("mlp", federation)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert len(failing(engine, federation, [0, 0])) == 2
    assert engine._pool.pids == []


def test_no_more_workers_than_clients(federation: Federation) -> None:
    with pair("mlp", federation, workers=5)[1] as engine:
        failing(engine, federation, [0, 0])
        assert len(engine._pool.pids) == 2
        failing(engine, federation, [0, 0, 0])
        assert len(engine._pool.pids) == 3


def test_shares_give_everything_once_and_balance() -> None:
    rng = np.random.default_rng(1)
    for workers, count in ((2, 10), (3, 100), (4, 3)):
        weights = rng.integers(0, 50, count).astype(float).tolist()
        homes = deal(weights, [0 if k % 3 == 0 else None for k in range(count)], workers)
        assert all(homes[k] == 0 for k in range(0, count, 3))
        shares = Shares(weights, homes, workers)
        clock = [0.0] * workers
        seen: list[int] = []
        while taken := shares.take(worker := int(np.argmin(clock))):
            seen += taken
            clock[worker] += sum(weights[p] for p in taken)
        assert sorted(seen) == list(range(count))
        assert max(clock) - min(clock) <= max(weights)


def makespan(weights: list[float], homes: list[int], workers: int, at_a_time: int) -> float:
    """Seconds until all is done, as the pool does it, if a weight takes a second."""
    shares = Shares(weights, homes, workers)
    tasks: list[list[list[int]]] = [[] for _ in range(workers)]
    ends = [0.0] * workers
    seen: list[int] = []

    def give(worker: int) -> None:
        if task := shares.take(worker, [p for held in tasks[worker] for p in held]):
            tasks[worker].append(task)
            seen.extend(task)

    for _ in range(at_a_time):
        for worker in range(workers):
            give(worker)
    while busy := [worker for worker in range(workers) if tasks[worker]]:
        first = min(busy, key=lambda w: ends[w] + sum(weights[p] for p in tasks[w][0]))
        now = ends[first] + sum(weights[p] for p in tasks[first].pop(0))
        ends[first] = now
        give(first)
        for idle in range(workers):
            if not tasks[idle]:
                ends[idle] = max(ends[idle], now)
    assert sorted(seen) == list(range(len(weights)))
    return max(ends)


def test_work_given_ahead_makes_nobody_wait() -> None:
    assert makespan([100.0, 100.0, 1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1, 1, 1], 2, 2) == 104
    rng = np.random.default_rng(2)
    ratios = []
    for _ in range(100):
        workers, count = int(rng.integers(2, 9)), int(rng.integers(2, 40))
        weights = np.ceil(100 * rng.lognormal(0, 1, count)).tolist()
        homes = rng.integers(0, workers, count).tolist()
        ratios.append(makespan(weights, homes, workers, 2) / makespan(weights, homes, workers, 1))
    assert np.mean(ratios) < 1.01
    assert max(ratios) < 1.2


def test_a_busy_worker_is_given_its_own_ahead_but_none_of_the_last() -> None:
    shares = Shares([1.0] * 8, [0, 1, 0, 1, 0, 1, 0, 1], 2)
    assert shares.take(0) == [0, 2]
    assert shares.take(1) == [1]
    assert shares.take(1, held=[1]) == [3]
    assert shares.take(0, held=[0, 2]) == [4]
    assert shares.take(0, held=[0, 2, 4]) == []  # it has half of what is left
    assert shares.take(1, held=[3]) == [5]
    assert shares.take(0, held=[4]) == []  # two are left, for two workers
    assert shares.take(0) == [6]
    assert shares.take(0) == [7]
    assert shares.take(1) == []


def test_what_comes_after_an_error_is_dropped() -> None:
    shares = Shares([1.0] * 6, [0, 1, 0, 1, 0, 1], 2)
    assert shares.take(0) == [0]
    shares.drop_after(2)
    assert shares.take(0) == [1]
    assert shares.take(1) == []


def test_a_worker_that_failed_leaves_what_comes_after(tmp_path: Path) -> None:
    pool = Pool(stumble, 2)
    try:
        with pytest.raises(KeyError, match="the first"):
            pool.map("stumble", SharedMessage(str(tmp_path)), [], range(8), [1.0] * 8)
    finally:
        pool.close()
    begun = {int(path.name) for path in tmp_path.iterdir()}
    assert 0 in begun
    assert begun <= {0, 1, 3, 5, 7}  # the other worker's: it knows of no error


def test_a_dropped_key_may_name_another_object() -> None:
    """Workers that had nothing to do in between know of it too."""
    pool = Pool(echo, 3)
    try:
        found = []
        for words in ("abc", "def"):
            pool.share(7, list(words))
            for count in (3, 2):
                call = SharedMessage(NAMED, lambda item: 7 if item is NAMED else None)
                found.append(pool.map("echo", call, [7], range(count), [1.0] * count))
            pool.forget(7)
        assert found == [["a", "b", "c"], ["a", "b"], ["d", "e", "f"], ["d", "e"]]
    finally:
        pool.close()


def test_devices_are_checked(federation: Federation) -> None:
    assert make_engine("processes", "mlp", federation, 1).device == "cpu"
    with pytest.raises(FedfluxError, match="runs on the CPU, not on cuda"):
        ProcessesEngine(Recipe("mlp", federation.input_shape, 10, 1), device="cuda")
