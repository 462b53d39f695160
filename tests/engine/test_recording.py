"""Steps recorded as CUDA graphs, on a GPU that is not there: what they keep, and what is left when one fails."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engine.fake_gpu import FULL, SPOILT, Gpu

from fedflux.engine.batched import recording
from fedflux.engine.batched.memory import out_of_memory
from fedflux.engine.batched.recording import Recordings
from fedflux.engine.batched.side_by_side import SideBySide


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


class Cuda:
    """As much of torch.cuda as a recording needs; `fails` is raised while one is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
        self.gpu, self.recording, self.stream_now, self.end_fails = gpu, False, "default", False
        self.fails: RuntimeError | None = None
        self.ended: list[object] = []
        for name, value in {
            "CUDAGraph": SimpleNamespace,
            "Stream": lambda *_: SimpleNamespace(wait_stream=lambda _: None),
            "current_stream": lambda: SimpleNamespace(wait_stream=lambda _: None, name=self.stream_now),
            "stream": self.stream,
            "device": self.device,
            "graph": self.graph,
            "graph_pool_handle": lambda: (0, 7),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *told: self.ended.append(told), raising=False)

    @contextmanager
    def device(self, _: object) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.stream_now = self.stream_now, getattr(stream, "name", "side")
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def graph(self, graph: object, pool: object) -> Iterator[None]:
        assert pool == (0, 7)
        before, self.stream_now, self.recording = self.stream_now, "capture", True
        try:
            yield
        finally:
            self.recording = False
            if self.end_fails:  # as torch does: the stream stays
                raise RuntimeError(SPOILT)
            self.stream_now = before

    def run(self, state: torch.Tensor) -> None:
        """A step: it changes the state, and takes memory that stays reserved for a while."""
        state += 1
        self.gpu.cached += 100 if self.recording else 10
        if self.recording and self.fails:
            raise self.fails


def test_a_recording_puts_the_state_back_and_counts_its_memory(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, state = Cuda(monkeypatch, gpu), torch.zeros(3)
    recordings = Recordings(torch.device("cuda", 0))
    for times in (1, 2):
        recordings.record(lambda: cuda.run(state), state)
        assert state.tolist() == [0, 0, 0]
        assert recordings.nbytes == 100 * times
    assert cuda.stream_now == "default"
    assert gc.isenabled()
    assert cuda.ended == []


@pytest.mark.parametrize("end_fails", [False, True])
def test_a_recording_that_fails_leaves_torch_as_it_was(
    gpu: Gpu, end_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, state = Cuda(monkeypatch, gpu), torch.zeros(3)
    cuda.fails, cuda.end_fails = torch.cuda.OutOfMemoryError(FULL), end_fails
    with pytest.raises(RuntimeError) as caught:
        Recordings(torch.device("cuda", 0)).record(lambda: cuda.run(state), state)
    assert out_of_memory(caught.value)
    assert cuda.stream_now == "default"
    assert cuda.ended == [(0, (0, 7))]
    assert gc.isenabled()


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_memory_that_another_process_takes_is_noticed(gpu: Gpu, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, state = Cuda(monkeypatch, gpu), torch.zeros(3)
    steps = []

    def run() -> None:
        cuda.run(state)
        steps.append(1)
        if len(steps) == recording.REHEARSALS + (moment == "meanwhile"):
            gpu.others = gpu.total - gpu.cached - 1
            if moment == "meanwhile":
                raise RuntimeError(SPOILT)

    with pytest.raises(torch.cuda.OutOfMemoryError):
        Recordings(torch.device("cuda", 0)).record(run, state)


def test_a_recording_that_fails_for_another_reason_says_so(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, state = Cuda(monkeypatch, gpu), torch.zeros(3)
    cuda.fails = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(RuntimeError, match="not permitted") as caught:
        Recordings(torch.device("cuda", 0)).record(lambda: cuda.run(state), state)
    assert not out_of_memory(caught.value)


def test_streams_are_joined_after_a_lane_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    here = SimpleNamespace(wait_stream=lambda stream: waits.append(stream.name))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: here)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)

    def lane(fails: bool) -> Any:
        def run(whole: bool, size: int) -> None:
            if fails:
                raise torch.cuda.OutOfMemoryError(FULL)

        return SimpleNamespace(run=run, data=SimpleNamespace(x=torch.zeros(1)), recordings=None)

    lanes = SideBySide([lane(False), lane(True), lane(False)])
    lanes._streams = [SimpleNamespace(name=f"s{k}", wait_stream=lambda _: None) for k in range(3)]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        lanes._run(3, 8)
    assert waits == ["s0", "s1"]  # the third had not left
