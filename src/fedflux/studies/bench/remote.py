"""The measuring side of a worker process."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

from fedflux.studies.bench.work import Work

SOURCE = str(Path(__file__).parents[3])
PATIENCE = 20.0
"""Seconds a worker may take to end by itself."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RunnerError(RuntimeError):
    """A runner did not do its work; the message says what it said."""


class Remote:
    """A runner in a fresh process."""

    def __init__(self, runner: str, work: Work) -> None:
        self.runner = runner
        self._begin = perf_counter()
        self._said = TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedflux.studies.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, **QUIET, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._send({"runner": runner, "work": asdict(work)})

    def start(self) -> float:
        """Seconds from the birth of the process to the moment a first round could begin, imports included."""
        self._ask("start")
        return perf_counter() - self._begin

    def round(self) -> tuple[float, int]:
        """Seconds of one round, and the examples trained on."""
        self.begin_round()
        return self.end_round()

    def begin_round(self) -> None:
        """Let it run; `end_round` waits for it."""
        self._send("round")

    def end_round(self) -> tuple[float, int]:
        """Wait for a round that was begun."""
        answer = self._receive()
        return answer["seconds"], answer["samples"]

    def look(self) -> dict[str, Any]:
        """Loss of the present model and peaks of memory in bytes."""
        return self._ask("look")

    def close(self) -> None:
        """End the process and all that it started."""
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End what is left of it at once."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._said.close()

    def _ask(self, request: Any) -> dict[str, Any]:
        self._send(request)
        return self._receive()

    def _send(self, request: Any) -> None:
        with suppress(OSError):  # it died: receiving finds out
            self._process.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RunnerError(f"its process ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunnerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
