"""The gate that holds a framework between rounds, and the memory of a process tree."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fedflux.studies.bench.gate import Gate
from fedflux.studies.bench.memory import descendants, peak_bytes

HUNGRY = "held = bytearray(b'x') * 80_000_000; print(flush=True); input()"


def test_a_gate_lets_one_round_pass_at_a_time() -> None:
    rounds: list[int] = []

    def drive() -> None:
        for number in range(100):
            gate.arrive()
            rounds.append(number)

    gate = Gate(drive)
    gate.start()
    assert rounds == []
    gate.step()
    assert rounds == [0]
    gate.step()
    assert rounds == [0, 1]
    gate.close()
    assert rounds == [0, 1]
    assert not gate._thread.is_alive()


def test_a_gate_passes_errors_on() -> None:
    def drive() -> None:
        gate.arrive()
        raise ValueError("broken")

    gate = Gate(drive)
    gate.start()
    with pytest.raises(ValueError, match="broken"):
        gate.step()


def test_a_framework_that_ends_by_itself_is_an_error() -> None:
    gate = Gate(lambda: None)
    with pytest.raises(RuntimeError, match="ended by itself"):
        gate.start()


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", HUNGRY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    yield process.pid
    process.communicate("\n")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_peak_memory_includes_children(child: int) -> None:
    assert child in descendants(os.getpid())
    assert peak_bytes(child) > 80_000_000
    assert peak_bytes(os.getpid()) > peak_bytes(child) + 10_000_000
    assert peak_bytes(2**22 + 1) == 0, "a process that is gone has none"
