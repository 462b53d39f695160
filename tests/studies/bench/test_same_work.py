"""Every runner does the same work: the same examples, steps and averages, hence the same model."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fedflux.engine import Stack
from fedflux.streams import stream
from fedflux.studies.bench.engines import LoopRunner
from fedflux.studies.bench.naive import Loader, NaiveRunner, average
from fedflux.studies.bench.remote import Remote
from fedflux.studies.bench.runners import OF_ENGINES, PACKAGES, RUNNERS, make_runner, unavailable
from fedflux.studies.bench.work import Work

WHOLE = Work(clients=3, samples=40, model="mlp", batch_size=64, lr=0.2, uneven=True)
"""One batch holds all of a client's examples, so their order does not matter."""
ROUNDS = 3


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The loop's single thread is its own affair."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference() -> float:
    runner = LoopRunner(WHOLE)
    runner.start()
    losses = [runner.loss()]
    for _ in range(ROUNDS):
        assert runner.round() == WHOLE.samples_a_round()
        losses.append(runner.loss())
    assert losses[-1] < losses[0] - 0.01
    return losses[-1]


@pytest.mark.parametrize("name", ["naive", "auto", *OF_ENGINES])
def test_our_runners_end_at_the_same_model(name: str, reference: float) -> None:
    why = unavailable(name, WHOLE)
    if why:
        pytest.skip(why)
    runner = make_runner(name, WHOLE)
    runner.start()
    try:
        assert [runner.round() for _ in range(ROUNDS)] == [WHOLE.samples_a_round()] * ROUNDS
        assert runner.loss() == pytest.approx(reference, abs=1e-5)
    finally:
        runner.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES] + ["loop-per-core"])
def test_runners_with_processes_end_at_the_same_model(name: str, reference: float) -> None:
    why = unavailable(name, WHOLE)
    if why:
        pytest.skip(why)
    remote = Remote(name, WHOLE)
    try:
        remote.start()
        samples = [remote.round()[1] for _ in range(ROUNDS)]
        assert len(set(samples)) == 1
        assert samples[0] % WHOLE.samples_a_round() == 0
        assert name == "loop-per-core" or samples[0] == WHOLE.samples_a_round()
        assert remote.look()["loss"] == pytest.approx(reference, abs=1e-5)
    finally:
        remote.close()


def test_every_runner_is_compared() -> None:
    assert {"naive", "auto", *OF_ENGINES, *PACKAGES, "loop-per-core"} == set(RUNNERS)


class InEngineOrder(NaiveRunner):
    """The naive loop with the batches that the engine draws."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._now = 0

    def round(self) -> int:
        self._now += 1
        return super().round()

    def loader(self, client: int) -> Loader:
        order = stream(self._work.seed, "batches", self._now, client)
        size = len(self._datasets[client])
        return DataLoader(self._datasets[client], self._work.batch_size, sampler=_Orders(order, size))


class _Orders(torch.utils.data.Sampler[int]):
    """A new permutation every epoch."""

    def __init__(self, order: np.random.Generator, size: int) -> None:
        self._order, self._size = order, size

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.permutation(self._size).tolist())

    def __len__(self) -> int:
        return self._size


@pytest.mark.parametrize("model", ["lenet5", "mlp"])
def test_naive_and_loop_agree_batch_by_batch(model: str) -> None:
    work = Work(clients=3, samples=50, model=model, epochs=2, batch_size=16, lr=0.05, uneven=True)
    naive, loop = InEngineOrder(work), LoopRunner(work)
    for runner in (naive, loop):
        runner.start()
        for _ in range(2):
            runner.round()
    theirs = loop._model.row(0)
    initial = work.build().state_dict()
    for name, tensor in naive.state().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(tensor, initial[name], rtol=0, atol=1e-6), f"{name} was not trained"


def test_the_naive_average_is_the_stacks() -> None:
    draw = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(4, 3, generator=draw), "steps": torch.tensor(7)} for _ in range(3)]
    expected = Stack.join(states).average(np.array([[10.0, 20.0, 50.0]])).row(0)
    mean = average(states, [10, 20, 50])
    torch.testing.assert_close(mean["w"], expected["w"])
    assert mean["steps"] == 7
