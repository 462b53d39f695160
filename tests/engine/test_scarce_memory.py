"""Engines on a GPU that several runs share, and that is out of memory now and then.

Most of it needs no GPU: its numbers are made up, and its errors are raised where the real ones would be.
"""

import gc
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.fake_gpu import FULL, GIGA, Gpu
from tests.engine.making import Dropping, Normed
from tests.engine.test_stacked import SHAPES, TRAINING, apart, everyone, make_federation

from fedflux.data import Federation
from fedflux.descriptors.bounds import LatentRange
from fedflux.engine import Key, LoopEngine, Predictor, Stack, Training
from fedflux.engine.batched import inference
from fedflux.engine.batched.arena import OnDevice
from fedflux.engine.batched.inference import BatchedEngine
from fedflux.engine.batched.memory import CONTEXT, PART, Memory
from fedflux.engine.batched.replay import LANES, ReplayEngine
from fedflux.engine.batched.side_by_side import SideBySide
from fedflux.engine.batched.stacked import StackedEngine, stacked_engine
from fedflux.engine.batched.stepper import Stepper
from fedflux.errors import FedfluxError
from fedflux.models import build_model

SHAPE = SHAPES["mlp"]
SIZES = (23, 8, 17, 9, 31, 17, 40)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def make(kind: str, share: float = 1.0) -> tuple[LoopEngine, BatchedEngine]:
    """The loop, and the engine under test with the same model in double precision."""
    torch.manual_seed(1)
    model = (build_model("mlp", SHAPE, 5, seed=1) if kind == "stacked" else Normed(SHAPE, 5)).double()
    engine = stacked_engine(deepcopy(model), "cpu", "fp32-strict", share=share)
    assert isinstance(engine, StackedEngine if kind == "stacked" else ReplayEngine)
    return LoopEngine(model, "cpu", "fp32-strict"), engine


def train(engine: LoopEngine, federation: Federation, round: int = 1, training: Training = TRAINING) -> Stack:
    cohort = federation.cohort(range(len(federation)))
    return engine.train(engine.initial(), cohort, everyone(federation), training, Key(1, round))


class Scarce:
    """Steps of more than `most` clients side by side fail after a few, in the words of `error`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, error: Callable[[], BaseException]) -> None:
        self.failures = 0
        stacked, beside = Stepper.step, SideBySide.step

        def fail(clients: int, at: int) -> None:
            if clients > most and at >= 2:
                self.failures += 1
                raise error()

        def step(stepper: Stepper, whole: bool, size: int | None = None) -> None:
            fail(stepper.positions.shape[1], int(stepper.index[0]))
            stacked(stepper, whole, size)

        def lanes_step(lanes: SideBySide, width: int, size: int) -> None:
            fail(len(lanes.steppers), int(lanes.steppers[0].index[0]))
            beside(lanes, width, size)

        monkeypatch.setattr(Stepper, "step", step)
        monkeypatch.setattr(SideBySide, "step", lanes_step)


@pytest.mark.parametrize("kind", ["stacked", "replayed"])
@pytest.mark.parametrize(("most", "chunk", "recording"), [(7, None, False), (2, 2, False), (2, 2, True), (1, 1, False)])
def test_training_halves_its_chunks_and_remembers(
    kind: str, most: int, chunk: int | None, recording: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation(SHAPE, SIZES)
    loop, engine = make(kind)
    expected = [train(loop, federation, round) for round in (1, 2)]
    words = "CUDA error: out of memory" if recording else FULL
    scarce = Scarce(monkeypatch, most, lambda: (RuntimeError if recording else torch.cuda.OutOfMemoryError)(words))
    assert apart(expected[0], train(engine, federation, 1)) < 1e-10
    before = scarce.failures
    assert engine.chunk == (chunk or (7 if kind == "stacked" else 4))
    assert (before > 0) == (chunk is not None)
    assert apart(expected[1], train(engine, federation, 2)) < 1e-10
    assert scarce.failures == before
    assert engine.chunk == (chunk or (7 if kind == "stacked" else 4))


@pytest.mark.parametrize("kind", ["stacked", "replayed"])
def test_one_client_that_does_not_fit_is_said_in_one_line(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(SHAPE, SIZES)
    _, engine = make(kind)
    Scarce(monkeypatch, 0, lambda: torch.cuda.OutOfMemoryError(FULL))
    with pytest.raises(FedfluxError, match=r"^cpu has too little memory for one client at a time: [^\n]*$"):
        train(engine, federation)
    assert len(engine._arena) == 1  # the others' examples went before the last attempt


@pytest.mark.parametrize("kind", ["stacked", "replayed"])
def test_steps_of_a_failed_attempt_are_forgotten(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(SHAPE, SIZES)
    _, engine = make(kind)
    released: list[int] = []

    def kept() -> int:
        if isinstance(engine, StackedEngine):
            return len(engine._steppers)
        assert isinstance(engine, ReplayEngine)
        return int(engine._made is not None)

    train(engine, federation, 1)
    assert kept() == 1
    monkeypatch.setattr(Memory, "release", lambda _: released.append(kept()))
    Scarce(monkeypatch, 3, lambda: torch.cuda.OutOfMemoryError(FULL))
    train(engine, federation, 2)
    assert released == [0] * len(released)
    assert released


def on_gpu(engine: BatchedEngine) -> BatchedEngine:
    """An engine that counts memory as on a GPU."""
    engine._memory.limited = True
    return engine


@pytest.mark.parametrize(
    ("kind", "share", "others", "step", "chunk"),
    [
        ("stacked", 1.0, 0, GIGA, 7),
        ("stacked", 1.0, 0, 30 * GIGA, 3),  # a pair takes 30, a client 15; 0.4 · 139.5 = 55.8
        ("stacked", 0.5, 0, 30 * GIGA, 1),
        ("stacked", 1.0, 120 * GIGA, 4 * GIGA, 4),  # 0.4 · 20 = 8
        ("stacked", 1.0, 139 * GIGA, 4 * GIGA, 1),
        ("replayed", 1.0, 0, GIGA, 4),
        ("replayed", 1 / 6, 0, 2 * GIGA, 4),  # 0.4 · 22.8 = 9.1
        ("replayed", 1 / 6, 0, 4 * GIGA, 2),
        ("replayed", 1.0, 120 * GIGA, 3 * GIGA, 2),
    ],
)
def test_chunks_follow_the_share_and_what_is_free(
    gpu: Gpu, kind: str, share: float, others: int, step: int, chunk: int
) -> None:
    federation = make_federation(SHAPE, SIZES)
    loop, engine = make(kind, share)
    gpu.others, gpu.step = others, step
    trained = train(on_gpu(engine), federation)
    assert engine.chunk == chunk
    assert apart(train(loop, federation), trained) < 1e-10


@pytest.mark.parametrize(("runs", "step"), [(1, 30 * GIGA), (6, GIGA), (6, 4 * GIGA)])
def test_runs_side_by_side_keep_within_the_device(gpu: Gpu, runs: int, step: int) -> None:
    federation = make_federation(SHAPE, SIZES)
    gpu.step = step
    taken = 0
    for _ in range(runs):
        engine = on_gpu(make("replayed", 1 / runs)[1])
        gpu.others = taken
        train(engine, federation)
        assert engine.chunk is not None
        taken += CONTEXT + 2 * engine.chunk * step  # twice while a second graph is recorded
    assert taken <= gpu.total


def test_a_size_stays_while_a_run_goes_on(gpu: Gpu) -> None:
    federation = make_federation(SHAPE, SIZES)
    engine = on_gpu(make("stacked")[1])
    gpu.step = 30 * GIGA
    train(engine, federation, 1)
    assert isinstance(engine, StackedEngine)
    made = list(engine._steppers.values())
    gpu.others = 60 * GIGA  # what the run itself takes is there already
    train(engine, federation, 2)
    assert engine.chunk == 3
    assert list(engine._steppers.values()) == made


def test_older_recordings_go_when_a_new_one_would_not_fit_beside_them(gpu: Gpu) -> None:
    federation = make_federation(SHAPE, SIZES)
    engine = on_gpu(make("stacked")[1])
    assert isinstance(engine, StackedEngine)
    gpu.step = 30 * GIGA
    train(engine, federation)
    kept = len(engine._steppers)
    assert kept > 1  # clients of other sizes, and fewer of them in the last chunk
    for stepper in engine._steppers.values():
        stepper.recordings.nbytes = 40 * GIGA
    gpu.cached = kept * 40 * GIGA
    some = federation.cohort(range(2))
    engine.train(engine.initial(), some, everyone(federation)[:2], TRAINING, Key(1, 1))
    assert sum(stepper.recordings.nbytes > 0 for stepper in engine._steppers.values()) < kept
    assert gpu.mem_get_info()[0] + (kept * 40 * GIGA - engine._recorded()) >= 30 * GIGA


def test_a_first_step_that_does_not_fit_means_one_at_a_time(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(memory: Memory, work: Callable[[], object]) -> int:
        raise torch.cuda.OutOfMemoryError(FULL)

    monkeypatch.setattr(Memory, "cost", cost)
    federation = make_federation(SHAPE, SIZES)
    for kind in ("stacked", "replayed"):
        loop, engine = make(kind)
        assert apart(train(loop, federation), train(on_gpu(engine), federation)) < 1e-10
        assert engine.chunk == 1


def test_models_trained_one_by_one_have_no_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(SHAPE)
    engine = stacked_engine(Dropping(SHAPE, 5), share=0.5)
    train(engine, federation)
    assert engine.chunk is None
    assert engine.share == 0.5
    failures = iter([1, 0])

    def apply(*_: object) -> torch.Tensor:
        if next(failures):
            raise torch.cuda.OutOfMemoryError(FULL)
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "apply", apply)
    with pytest.raises(ZeroDivisionError):  # the second attempt was made
        train(engine, federation)


def answers(engine: LoopEngine, federation: Federation) -> list[Any]:
    """All that inference gives, in plain arrays."""
    cohort = federation.cohort(range(len(federation)))
    stack = engine.initial().take([0, 0])
    predictor = Predictor(stack, np.array([[1.0, 0.0], [0.0, 1.0]] * 3 + [[0.5, 0.5]]))
    ranges = engine.reduce(engine.initial(), cohort.held("train"), LatentRange())
    return [
        engine.evaluate([predictor], cohort, "test")[0],
        *engine.predict(predictor, cohort.features("train")),
        *engine.losses(stack, cohort, "train"),
        *(part.numpy() for one in ranges for part in one),
    ]


@pytest.mark.parametrize("most", [10_000, 50, 3])
def test_inference_halves_its_batches_and_remembers(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(SHAPE, SIZES)
    loop, engine = make("stacked")
    expected = answers(loop, federation)
    failures, images = [], LoopEngine._images

    def scarce(engine: LoopEngine, x: torch.Tensor) -> torch.Tensor:
        if len(x) > most:
            failures.append(len(x))
            raise torch.cuda.OutOfMemoryError(FULL)
        return images(engine, x)

    monkeypatch.setattr(BatchedEngine, "_images", scarce)
    for _ in range(2):
        for one, two in zip(expected, answers(engine, federation), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-6)
    assert len(failures) == {10_000: 0, 50: 2, 3: 6}[most]
    assert failures == sorted(failures, reverse=True)


def test_an_image_that_does_not_fit_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(engine: LoopEngine, x: torch.Tensor) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError(FULL)

    federation = make_federation(SHAPE, SIZES)
    engine = make("stacked")[1]
    monkeypatch.setattr(BatchedEngine, "_images", scarce)
    cohort = federation.cohort(range(7))
    predictor = Predictor.shared(engine.initial(), np.ones(1), 7)
    with pytest.raises(FedfluxError, match="too little memory for one image"):
        engine.evaluate([predictor], cohort, "test")[0]
    with pytest.raises(FedfluxError, match="too little memory for one image"):
        engine.losses(engine.initial(), cohort, "test")


def test_clients_go_one_by_one_where_all_images_at_once_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(SHAPE, SIZES)
    loop, engine = make("stacked")
    expected = answers(loop, federation)

    def of(clients: object, device: str) -> None:
        raise torch.cuda.OutOfMemoryError(FULL)

    monkeypatch.setattr(OnDevice, "of", of)
    monkeypatch.setattr(engine._arena, "find", lambda _: None)
    for one, two in zip(expected, answers(engine, federation), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "others", "share", "size"),
    [
        (64, 0, 1.0, 8192),
        (64 * 2**20, 0, 1.0, 4096),  # 1 MiB an example, 4 GiB at most
        (64 * 9 * 2**20, 0, 1.0, 256),  # 9 MiB: 455, of which a power of two
        (64 * 2**20, 135 * GIGA, 1.0, 2048),  # 0.4 · 5 GiB
        (64 * 2**20, 0, 1 / 28, 1024),  # 0.4 · 4.5 GiB = 1.8 GiB
    ],
)
def test_batches_are_measured_on_a_gpu(gpu: Gpu, step: int, others: int, share: float, size: int) -> None:
    engine = on_gpu(make("stacked", share)[1])
    gpu.others, gpu.step = others, step
    x = torch.zeros(2, *SHAPE, dtype=torch.uint8)
    probes: list[int] = []
    for _ in range(2):
        assert engine._batch_size(("batch",), x, 10_000, lambda: probes.append(1)) == size
    assert len(probes) == 2  # measured once
    assert engine._batch_size(("batch",), x, 10, lambda: probes.append(1)) <= 8192


def test_latents_are_kept_only_where_there_is_room(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "LITTLE", 0)
    federation = make_federation(SHAPE, SIZES)
    loop, engine = make("stacked")
    held = federation.cohort(range(7)).held("train")
    for others, kept in ((0, True), (gpu.total - 1000, False)):
        gpu.others = others
        engine._latest = None
        found = on_gpu(engine).reduce(engine.initial(), held, LatentRange())
        assert (engine._latest is not None) is kept
        for mine, theirs in zip(found, loop.reduce(loop.initial(), held, LatentRange()), strict=True):
            assert all(torch.allclose(a, b) for a, b in zip(mine, theirs, strict=True))


def test_lanes_share_the_memory_of_their_recordings() -> None:
    federation = make_federation(SHAPE, SIZES)
    engine = make("replayed")[1]
    train(engine, federation)
    assert isinstance(engine, ReplayEngine)
    assert engine._made is not None
    lanes = engine._made[1]
    assert len(lanes.steppers) == 4
    assert {id(stepper.recordings) for stepper in lanes.steppers} == {id(lanes.recordings)}
    lanes.recordings.nbytes = 5
    assert engine._recorded() == 5
    assert LANES == 5
    assert PART < 0.5  # two recordings of a chunk must fit beside each other


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
@pytest.mark.parametrize(("model", "shape"), [("lenet5", (3, 64, 64)), ("resnet9", (3, 32, 32))])
def test_a_real_gpu_that_is_short_of_memory(model: str, shape: tuple[int, int, int]) -> None:
    """Torch is allowed a little more than it holds, of which sizing knows nothing, so that steps fail for real."""
    federation = make_federation(shape, tuple(20 * size for size in SIZES))
    large = replace(TRAINING, batch_size=256)
    made = build_model(model, shape, 5, seed=1).double()
    whole = stacked_engine(deepcopy(made), "cuda", "fp32-strict")
    expected = train(whole, federation, training=large)
    cost, chunk = max(whole._costs.values()), whole.chunk
    assert chunk is not None
    del whole
    gc.collect()
    torch.cuda.empty_cache()
    engine = stacked_engine(deepcopy(made), "cuda", "fp32-strict")
    engine._arena.place(federation.cohort(range(7)), range(7), "train")
    allowed = torch.cuda.memory_reserved() + 2.8 * cost + 2**26
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
    try:
        trained, again = (train(engine, federation, training=large) for _ in range(2))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert engine.chunk is not None
    assert engine.chunk < chunk
    assert apart(expected, trained) < 1e-8
    assert apart(trained, again) < 1e-8


@needs_gpu
def test_a_real_gpu_gives_back_what_recordings_held() -> None:
    federation = make_federation((3, 32, 32), SIZES)
    engine = stacked_engine(build_model("resnet9", (3, 32, 32), 5, seed=1), "cuda", "fp32-strict")
    train(engine, federation)
    assert engine._recorded() > 0
    before = torch.cuda.memory_reserved()
    recorded = engine._recorded()
    engine._forget(False)
    engine._memory.release()
    assert torch.cuda.memory_reserved() <= before - recorded // 2
