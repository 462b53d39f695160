"""Real SIGKILLs at random moments: runs and comparisons come to the same end as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.runs.test_resume import cut, flip, left

from fedflux.runs.storage.store import Store

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parents[2] / "src"
KILLS = 20


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "fedflux", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(*arguments: str) -> tuple[dict[str, Any], str]:
    running = start(*arguments, "--json")
    stdout, stderr = running.communicate(timeout=600)
    assert running.returncode == 0, stderr
    answer: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return answer, stderr


def kill(running: subprocess.Popen[str]) -> None:
    """SIGKILL for the process and everything it started, if it still runs."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    for pipe in (running.stdout, running.stderr):
        if pipe:
            pipe.close()


def rounds_done(folder: Path) -> int:
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def killed_somewhere(folder: Path, dice: random.Random, pause: float, arguments: tuple[str, ...]) -> bool:
    """Start or go on, and kill: in the first moments, or up to `pause` seconds after the next round is on disk."""
    begun = rounds_done(folder)
    running = start(*arguments)
    deadline = time.monotonic() + 120
    if dice.random() < 0.8:
        while rounds_done(folder) <= begun and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
    time.sleep(dice.random() * pause)
    alive = running.poll() is None
    kill(running)
    return alive


@pytest.mark.parametrize("algorithm", ["flux", "local"])
def test_twenty_kills_change_nothing(algorithm: str, tmp_path: Path) -> None:
    rounds = 6 * KILLS  # a kill costs one to three: on no machine does the run end before the last
    settings = (
        "run", "--algorithm", algorithm, "--shift", "pxgy", "--rounds", str(rounds), "--participation", "0.7",
        "--engine", "loop",
    )  # fmt: skip
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    answer, _ = finish(*settings, "--out", str(whole))
    pause = 2 * answer["seconds"] / rounds
    dice = random.Random(2026)
    arguments = (*settings, "--out", str(broken), "--resume")
    kills = sum(killed_somewhere(broken, dice, pause, arguments) for _ in range(KILLS))
    finish(*arguments)
    assert kills == KILLS  # every one met a living process
    assert "resumed after round" in (broken / "events.jsonl").read_text()
    assert left(broken) == left(whole)
    kept = [cell["result"]["known"] for cell in Store(broken.parent).cells()]
    assert kept == [json.loads((whole / "result.json").read_text())["known"]]


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_damaged_newest_checkpoint_gives_way(damage: Any, suffix: str, tmp_path: Path) -> None:
    settings = ("run", "--shift", "py", "--rounds", "60", "--engine", "loop")
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    finish(*settings, "--out", str(whole))
    running = start(*settings, "--out", str(broken))
    while rounds_done(broken) < 5 and running.poll() is None:
        time.sleep(0.001)
    assert running.poll() is None
    kill(running)
    newest = sorted((broken / "checkpoints").glob("round-*.json"))[-1]
    damage(newest.with_suffix(suffix))
    _, told = finish(*settings, "--out", str(broken), "--resume")
    words = " ".join(told.split())
    assert f"checkpoint {newest.stem} is damaged" in words
    assert "taking the one before it" in words
    assert f"resumed after round {int(newest.stem[6:]) - 1}" in words
    assert left(broken) == left(whole)


GRID = (
    "compare", "--dataset", "digits", "--algorithms", "local,fedavg,flux,flux-prior,oracle", "--shifts",
    "px,py,pygx,pxgy", "--levels", "3,6", "--seeds", "42-44", "--jobs", "2",
)  # fmt: skip


def test_a_comparison_killed_half_way_repeats_no_finished_cell(tmp_path: Path) -> None:
    arguments = (*GRID, "--out", str(tmp_path))
    running = start(*arguments)
    while len(list(tmp_path.glob("*/result.json"))) < 60 and running.poll() is None:
        time.sleep(0.05)
    assert running.poll() is None
    kill(running)
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    stored = len(Store(tmp_path))
    assert 0 < stored <= len(finished) < 120
    answer, _ = finish(*arguments)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert (answer["planned"], answer["finished_before"], answer["ran"]) == (120, stored, 120 - stored)
    assert answer["failed"] == []
    assert len(Store(tmp_path)) == 120
    events = [path.read_text() for path in tmp_path.glob("*/events.jsonl")]
    assert all(text.count('"started"') <= 2 and text.count('"finished"') == 1 for text in events)
    again, _ = finish(*arguments)
    assert (again["finished_before"], again["ran"]) == (120, 0)
    assert again["cells"] == answer["cells"]


def test_two_comparisons_fill_one_store(tmp_path: Path) -> None:
    arguments = ("compare", "--levels", "3,6", "--seeds", "42-43", "--out", str(tmp_path / "both"))
    pair = [start(*arguments, "--json") for _ in range(2)]
    answers = []
    for running in pair:
        stdout, stderr = running.communicate(timeout=600)
        assert running.returncode == 0, stderr
        answers.append(json.loads(stdout.splitlines()[-1]))
    alone, _ = finish(*arguments[:-1], str(tmp_path / "alone"))
    assert len(Store(tmp_path / "both")) == 32
    events = [path.read_text() for path in (tmp_path / "both").glob("*/events.jsonl")]
    assert len(events) == 32
    assert all(text.count('"started"') == text.count('"finished"') == 1 for text in events)  # nobody did it twice
    for answer in answers:
        assert answer["failed"] == []
        for ours, theirs in zip(answer["cells"], alone["cells"], strict=True):
            assert {**ours, "seconds_mean": None} == {**theirs, "seconds_mean": None}


def test_a_store_filled_elsewhere_saves_the_work_here(tmp_path: Path) -> None:
    arguments = ("compare", "--algorithms", "fedavg", "--levels", "3", "--out")
    finish(*arguments, str(tmp_path / "there"))
    merged, _ = finish("store", "merge", str(tmp_path / "here"), str(tmp_path / "there"))
    assert (merged["cells"], merged["added"]) == (4, 4)
    answer, _ = finish(*arguments, str(tmp_path / "here"))
    assert (answer["finished_before"], answer["ran"]) == (4, 0)
    exported, _ = finish("store", "export", str(tmp_path / "here"), "--out", str(tmp_path / "cells.csv"))
    assert exported["cells"] == 4
    assert (tmp_path / "cells.csv").read_text().count("\n") == 5


def test_ctrl_c_ends_what_trackers_of_a_comparison_hold_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    script = (  # a background job, such as this test's, may be born deaf to the signal
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fedflux.cli.main import main; main()"
    )
    grid = ("--algorithms", "fedavg,local", "--shifts", "px", "--levels", "4", "--seeds", "50", "--jobs", "2")
    command = [sys.executable, "-c", script, "compare", *grid, "--rounds", "100000", "--track", "mlflow", "--out", "c"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True) as running:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            begun = [folder for folder in (tmp_path / "c").glob("*") if rounds_done(folder) >= 2]
            if len(begun) == 2:
                break
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    assert len(begun) == 2
    client = MlflowClient((tmp_path / "c" / "mlruns").as_uri())
    states = [
        client.get_run(json.loads((folder / "mlflow.json").read_text())["run_id"]).info.status for folder in begun
    ]
    assert states == ["KILLED", "KILLED"]
