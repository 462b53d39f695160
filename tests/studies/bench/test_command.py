"""`fedflux bench` as scripts call it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.making import strict_json

SOURCE = Path(__file__).parents[3] / "src"
ROW = {"runner", "clients", "samples_per_second", "seconds", "ratio_to_loop", "peak_mb", "startup_seconds"}
TINY = ("--samples", "8", "--model", "mlp", "--repeats", "2", "--device", "cpu")


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedflux", "bench", *TINY, *arguments]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def test_rows_in_json(tmp_path: Path) -> None:
    done = call(tmp_path, "--clients", "2", "--runners", "naive,loop", "--out", "b", "--json")
    assert done.returncode == 0, done.stderr
    answer = strict_json(done.stdout.splitlines()[-1])
    assert [row["runner"] for row in answer["rows"]] == ["naive", "loop"]
    for row in answer["rows"]:
        assert row.keys() >= ROW
        assert row["samples"] == 16
        assert row["samples_per_second"] == pytest.approx(16 / row["seconds"])
        assert row["peak_mb"] > 50
    assert answer["rows"][1]["ratio_to_loop"] == 1
    assert sorted(file.name for file in (tmp_path / "b").iterdir()) == ["bench.json", "bench.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runners", "quick"), "--runners 'quick' is unknown"),
        (("--clients", "many"), "--clients 'many' does not fit"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--model", "lenet"), "unknown model 'lenet'"),
    ],
)
def test_bad_input_is_answered_in_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = call(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert done.stdout == ""
