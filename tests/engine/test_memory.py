"""A device's memory as an engine sees it: what is its own, and how work is made smaller until it fits.

No GPU is needed: its numbers are made up, and its errors are raised where the real ones would be.
"""

import gc
from collections.abc import Callable
from weakref import ReferenceType, ref

import pytest
import torch
from tests.engine.fake_gpu import FULL, GIGA, SPOILT, Gpu
from tests.engine.test_stacked import SHAPES, make_federation

from fedflux.engine.batched import arena
from fedflux.engine.batched.arena import Arena
from fedflux.engine.batched.memory import CONTEXT, Memory, out_of_memory
from fedflux.errors import FedfluxError

SHAPE = SHAPES["mlp"]
SIZES = (23, 8, 17, 9, 31, 17, 40)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def raised(*errors: BaseException) -> BaseException:
    """The last of several errors, each raised while the one before it was handled."""
    try:
        try:
            raise errors[0]
        finally:
            if errors[1:]:
                raise errors[1]
    except BaseException as error:
        return error


@pytest.mark.parametrize(
    ("errors", "found"),
    [
        ([torch.cuda.OutOfMemoryError(FULL)], True),
        ([RuntimeError("CUDA error: out of memory")], True),
        ([RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")], True),
        ([RuntimeError("GET was unable to find an engine to execute this computation")], True),
        ([torch.cuda.OutOfMemoryError(FULL), RuntimeError(SPOILT)], True),
        ([RuntimeError("operation not permitted when stream is capturing")], False),
        ([RuntimeError("mat1 and mat2 shapes cannot be multiplied")], False),
        ([ValueError("out of memory")], False),
    ],
)  # fmt: skip
def test_errors_that_say_that_memory_is_short(errors: list[BaseException], found: bool) -> None:
    assert out_of_memory(raised(*errors)) is found


def test_room_is_what_is_free_now_and_of_ones_share(gpu: Gpu) -> None:
    assert Memory("cuda").room() == 140 * GIGA - CONTEXT
    gpu.others = 100 * GIGA
    assert Memory("cuda").room() == 40 * GIGA
    assert Memory("cuda", 0.25).room() == 35 * GIGA - CONTEXT
    gpu.allocated, gpu.cached = 10 * GIGA, 5 * GIGA
    assert Memory("cuda").room() == 30 * GIGA  # 25 are free, and 5 that torch keeps are
    assert Memory("cuda", 0.25).room() == 25 * GIGA - CONTEXT
    assert Memory("cuda").room(recorded=4 * GIGA) == 26 * GIGA  # those of recorded graphs are not
    gpu.allocated, gpu.others = 36 * GIGA, 0
    assert Memory("cuda", 0.25).room() == 0


def test_work_is_measured_at_its_peak(gpu: Gpu) -> None:
    gpu.allocated, gpu.step = 7 * GIGA, 3 * GIGA
    times = []
    assert Memory("cuda").cost(lambda: times.append(1)) == 3 * GIGA
    assert len(times) == 2


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_is_a_part_of_the_whole(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Memory("cpu", share)


def limited(most: int, log: list[tuple[slice, int]]) -> Callable[[slice, int], list[int]]:
    """Work that does `most` things at a time at most."""

    def work(some: slice, size: int) -> list[int]:
        log.append((some, size))
        if some.stop - some.start > most:
            raise torch.cuda.OutOfMemoryError(FULL)
        return list(range(some.start, some.stop))

    return work


@pytest.mark.parametrize(
    ("count", "size", "most", "sizes", "last"),
    [
        (10, 10, 10, [10], 10),
        (10, 4, 10, [4, 4, 2], 4),
        (10, 10, 4, [10, 5, 3, 3, 3, 1], 3),
        (10, 10, 1, [10, 5, 3, 2, *[1] * 10], 1),
        (5, 4, 4, [4, 1], 4),
        (0, 3, 1, [0], 3),
    ],
)
def test_chunks_are_halved_until_they_fit(count: int, size: int, most: int, sizes: list[int], last: int) -> None:
    log: list[tuple[slice, int]] = []
    dropped: list[bool] = []
    parts, final = Memory("cpu").in_chunks(count, size, limited(most, log), dropped.append, "one thing")
    assert [number for part in parts for number in part] == list(range(count))
    assert [some.stop - some.start for some, _ in log] == sizes
    assert final == last
    assert dropped == [False] * (len(sizes) - len(parts))


def test_before_it_gives_up_everything_is_dropped_once() -> None:
    log: list[tuple[slice, int]] = []
    dropped: list[bool] = []
    with pytest.raises(
        FedfluxError, match=r"cpu has too little memory for one client at a time: .*--batch-size"
    ) as caught:
        Memory("cpu").in_chunks(3, 3, limited(0, log), dropped.append, "one client")
    assert [some.stop - some.start for some, _ in log] == [3, 2, 1, 1]
    assert dropped == [False, False, True]
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None  # it would hold on to what did not fit


def test_the_cache_is_emptied_and_the_figures_are_told(gpu: Gpu) -> None:
    gpu.others = 138 * GIGA
    with pytest.raises(FedfluxError, match=r"cuda has .*\(2\.0 of 140\.0 GiB are free, 70\.0 are this run's\)"):
        Memory("cuda", 0.5).insist(lambda: limited(0, [])(slice(0, 1), 1), lambda _: None, "one client")
    assert gpu.emptied == 1


def test_nothing_of_an_attempt_is_left_when_it_is_tried_again() -> None:
    alive: list[ReferenceType[torch.Tensor]] = []
    seen: list[bool] = []

    def work() -> int:
        large = torch.zeros(10)
        alive.append(ref(large))
        if len(alive) == 1:
            raise torch.cuda.OutOfMemoryError(FULL)
        return 5

    gc.disable()
    try:
        assert Memory("cpu").insist(work, lambda _: seen.append(alive[0]() is None), "one thing") == 5
    finally:
        gc.enable()
    assert seen == [True]


def test_other_errors_are_raised_as_they_are() -> None:
    def work() -> int:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        Memory("cpu").insist(work, lambda _: pytest.fail("dropped"), "one thing")


def test_examples_take_a_quarter_of_the_share(gpu: Gpu) -> None:
    assert arena._bound("cuda", 1.0) == 24 * GIGA
    assert arena._bound("cuda", 0.5) == 140 * GIGA // 8
    assert arena._bound("cpu", 0.5) == GIGA


def test_examples_are_packed_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation(SHAPE, SIZES)
    monkeypatch.setattr(arena, "START_BYTES", 1)
    made = Arena("cpu")
    made.place(federation.cohort(range(3)), range(3), "train")
    roomy, grow = len(made.x), Arena._grow

    def scarce(made: Arena, rows: int) -> None:
        if rows > 60:
            raise torch.cuda.OutOfMemoryError(FULL)
        grow(made, rows)

    monkeypatch.setattr(Arena, "_grow", scarce)
    clients = [3, 4, 5, 1]
    found = made.place(federation.cohort(clients), clients, "train")
    expected = [federation.materialise(client, "train") for client in clients]
    assert found.x[found.rows()].equal(torch.cat([one.x for one in expected]))
    assert found.y[found.rows()].equal(torch.cat([one.y for one in expected]))
    assert len(made) == 4  # the others are forgotten
    assert roomy > 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        made.place(federation.cohort(range(7)), range(7), "train")


def test_a_cleared_arena_begins_anew_with_half_of_its_bound() -> None:
    federation = make_federation(SHAPE, SIZES)
    made = Arena("cpu", 1000)
    made.place(federation.cohort([0]), [0], "train")
    made.clear()
    assert (len(made), made.nbytes, made._most) == (0, 0, 500)
    found = made.place(federation.cohort([1]), [1], "train")
    assert found.x[found.rows()].equal(federation.materialise(1, "train").x)
