"""What a run changes in its process is put back, and what cannot be put back is left to processes of fedflux's own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from fedflux.engine.modes import one_thread, torch_settings

ROOT = Path(__file__).parents[2]
REFUSED = "refused"
SPY = """
import ctypes, os

class Watched(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "mallopt":
            with open(os.environ["MALLOPT_LOG"], "a") as log:
                print(os.getpid(), file=log)
        return super().__getattr__(name)

ctypes.CDLL = Watched
"""
TRAIN = """
from tests.engine.test_stacked import TRAINING, everyone, make_federation
from fedflux.engine import Key, LoopEngine, ProcessesEngine, Recipe
from fedflux.engine.batched.stacked import stacked_engine

if __name__ == "__main__":
    recipe = Recipe("mlp", (1, 6, 6), 5, 1)
    federation = make_federation((1, 6, 6))
    cohort = federation.cohort(range(4))
    for engine in (LoopEngine(recipe.build()), stacked_engine(recipe.build())):
        engine.train(engine.initial(), cohort, everyone(federation), TRAINING, Key(1, 1))
    print("after loop and stacked:", len(open(MALLOPT_LOG).readlines()))
    with ProcessesEngine(recipe, workers=2) as engine:
        engine.train(engine.initial(), cohort, everyone(federation), TRAINING, Key(1, 1))
        print("workers:", *engine._pool.pids)
"""
WORKERS = """
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fedflux.studies import workers
from fedflux.studies.child import behave

if __name__ == "__main__":
    worker = workers._start(1.0)
    worker.connection.close()
    worker.process.join()
    with ProcessPoolExecutor(1, get_context("spawn"), behave) as pool:
        print("workers:", worker.process.pid, pool.submit(os.getpid).result())
"""


class Fresh:
    """Runs Python in a new interpreter that notes which of its processes tune malloc."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "mallopt.log"
        (folder / "sitecustomize.py").write_text(SPY)
        self.log.touch()

    def __call__(self, *arguments: str) -> tuple[int, str, set[int]]:
        """The id of the process, what it printed, and the processes that called mallopt."""
        path = os.pathsep.join(map(str, (self.folder, ROOT / "src", ROOT)))
        env = {**os.environ, "PYTHONPATH": path, "MALLOPT_LOG": str(self.log), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder, env=env, stdout=subprocess.PIPE, text=True
        ) as process:
            out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, out
        return process.pid, out, {int(line) for line in self.log.read_text().split()}

    def script(self, source: str) -> tuple[int, str, set[int]]:
        (self.folder / "script.py").write_text(f"MALLOPT_LOG = {str(self.log)!r}\n{source}")
        return self("script.py")


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return Fresh(tmp_path)


def pids(out: str) -> set[int]:
    """The worker processes that a script has named."""
    line = next(line for line in out.splitlines() if line.startswith("workers:"))
    return {int(pid) for pid in line.split()[1:]}


needs_glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is tuned on Linux only")


@needs_glibc
def test_engines_leave_malloc_alone_and_their_workers_do_not(fresh: Fresh) -> None:
    own, out, tuned = fresh.script(TRAIN)
    assert "after loop and stacked: 0" in out
    assert own not in tuned
    assert len(pids(out)) == 2
    assert tuned == pids(out)


@needs_glibc
def test_workers_of_a_comparison_tune_malloc_and_their_parent_does_not(fresh: Fresh) -> None:
    own, out, tuned = fresh.script(WORKERS)
    assert own not in tuned
    assert len(pids(out)) == 2
    assert tuned == pids(out)


@needs_glibc
def test_the_command_line_tunes_malloc(fresh: Fresh) -> None:
    own, out, tuned = fresh("-m", "fedflux", "run", "--help")
    assert "Usage" in out
    assert tuned == {own}


def switches() -> dict[str, Any]:
    """All that can be read of torch's arithmetic on a GPU."""
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    readers: dict[str, Callable[[], Any]] = {
        "matmul": lambda: cuda.matmul.allow_tf32,
        "cudnn": lambda: cudnn.allow_tf32,
        "deterministic": lambda: cudnn.deterministic,
        "legacy": torch.get_float32_matmul_precision,
        "names": lambda: [
            getattr(owner, "fp32_precision", None)
            for owner in (cuda.matmul, cudnn, getattr(cudnn, "conv", None), cudnn.rnn, getattr(mkldnn, "matmul", None))
        ],
    }
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except RuntimeError:  # torch refuses where switches and names disagree
            found[name] = REFUSED
    return found


def _plain() -> None:
    """As torch begins."""


def _switched_on() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def _switched_off() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


def _medium() -> None:
    torch.set_float32_matmul_precision("medium")


def _named() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def _observe(prepare: Callable[[], None], precision: str, fails: bool, answer: Any) -> None:
    prepare()
    before = switches()
    try:
        with one_thread(), torch_settings("cuda", precision):
            inside = switches()
            if fails:
                raise KeyError
    except KeyError:
        pass
    answer.put((before, inside, switches()))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp32-strict", "bf16"])
@pytest.mark.parametrize("prepare", [_plain, _switched_on, _switched_off, _medium, _named])
def test_torch_is_as_it_was_after_a_run(prepare: Callable[[], None], precision: str, fails: bool) -> None:
    if prepare is _named and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has no names for precisions")
    context = get_context("fork")  # in a process of its own: torch cannot be set back to how it begins
    answer = context.SimpleQueue()
    process = context.Process(target=_observe, args=(prepare, precision, fails, answer))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    before, inside, after = answer.get()
    readable = {name: value for name, value in before.items() if value != REFUSED}
    assert {name: after[name] for name in readable} == readable
    strict = precision == "fp32-strict"
    assert (inside["matmul"], inside["cudnn"], inside["deterministic"]) == (not strict, not strict, strict)


@pytest.fixture
def untouched() -> Iterator[None]:
    before, threads = switches(), torch.get_num_threads()
    yield
    assert (switches(), torch.get_num_threads()) == (before, threads)


@pytest.mark.usefixtures("untouched")
def test_on_a_cpu_nothing_is_changed() -> None:
    before = switches()
    with torch_settings("cpu", "fp32-strict"):
        assert switches() == before


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_settings_and_threads_go_together_in_any_order(order: tuple[int, int]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(2):
            with ExitStack() as stack:
                for which in order:
                    stack.enter_context((one_thread(), torch_settings("cuda", "fp32-strict"))[which])
                assert torch.get_num_threads() == 1
                assert torch.backends.cudnn.deterministic
                with one_thread(), torch_settings("cuda", "fp32"):
                    assert not torch.backends.cudnn.deterministic
                assert torch.backends.cudnn.deterministic
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
