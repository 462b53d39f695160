"""How worker processes end: with their engine, with their parent, on Ctrl-C, and leaving nothing behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.engine.making import Failing

from fedflux.data import Partition, partition
from fedflux.data.sources import load
from fedflux.engine import Job, Key, ProcessesEngine, Recipe, Training

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def soon_gone(pids: list[int], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.parametrize("how", ["close", "drop"])
def test_nothing_is_left_of_a_closed_engine(how: str) -> None:
    federation = partition(load("digits"), Partition("none", level=1, clients=2))
    before = {*os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()
    files = len(os.listdir("/proc/self/fd"))
    engine = ProcessesEngine(Recipe("mlp", federation.input_shape, 10, 1), workers=2)
    training, jobs, extras = Training(1, 16, 0.1, 0.9), [Job(0), Job(1)], [{"what": torch.tensor(0)}] * 2
    engine.train(engine.initial(), federation.cohort([0, 1]), jobs, training, Key(0, 1), Failing(), extras)
    opened = len(os.listdir("/proc/self/fd"))
    pids = engine._pool.pids
    if how == "close":
        engine.close()
        engine.close()
    del engine
    gc.collect()
    assert soon_gone(pids)
    if os.path.isdir("/dev/shm"):
        assert not [name for name in {*os.listdir("/dev/shm")} - before if "fedflux" in name or "psm_" in name]
    assert len(os.listdir("/proc/self/fd")) < opened <= files + 30


SCRIPT = """
import signal
import sys
import torch
from fedflux.data import Partition, partition
from fedflux.data.sources import load
from fedflux.engine import ProcessesEngine, Recipe, Job, Key, Training
from tests.engine.making import Failing

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start without it
    federation = partition(load("digits"), Partition("none", level=1, clients=4))
    engine = ProcessesEngine(Recipe("mlp", federation.input_shape, 10, 1), workers=2)
    def train(what):
        extras = [{"what": torch.tensor(what)} for _ in range(4)]
        jobs = [Job(k) for k in range(4)]
        engine.train(engine.initial(), federation.cohort(range(4)), jobs, Training(1, 16, 0.1, 0.9), Key(0, 1),
                     Failing(), extras)
    train(0)
    print(*engine._pool.pids, flush=True)
    if sys.argv[1] == "work":
        train(4)
    elif sys.argv[1] == "wait":
        input()
"""


def script(tmp_path: Path, what: str) -> tuple[subprocess.Popen[str], list[int]]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        [sys.executable, str(path), what], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert running.stdout is not None
    return running, [int(pid) for pid in running.stdout.readline().split()]


@pytest.mark.parametrize("what", ["work", pytest.param("wait", marks=pytest.mark.slow)])
def test_workers_go_with_a_killed_parent(what: str, tmp_path: Path) -> None:
    running, pids = script(tmp_path, what)
    assert len(pids) == 2
    time.sleep(0.5)
    assert all(map(alive, pids))
    running.kill()
    running.communicate()
    assert soon_gone(pids)


@pytest.mark.slow
def test_ctrl_c_ends_at_once_and_quietly(tmp_path: Path) -> None:
    running, pids = script(tmp_path, "work")
    time.sleep(0.5)
    for pid in (running.pid, *pids):  # a terminal sends it to everyone
        os.kill(pid, signal.SIGINT)
    _, stderr = running.communicate(timeout=300)
    assert stderr.count("Traceback") == 1
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert soon_gone(pids)


def test_an_engine_left_open_does_not_hold_up_the_interpreter(tmp_path: Path) -> None:
    running, pids = script(tmp_path, "leave")
    _, stderr = running.communicate(timeout=300)
    assert (running.returncode, stderr) == (0, "")
    assert soon_gone(pids)
