"""A method of a package outside the tree, the one of docs/own-method.md, found by its entry point."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RUN = ["--dataset", "digits", "--clients", "5", "--level", "3", "--device", "cpu", "--json"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder to import from, with an installed package in it."""
    text = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
    folder = tmp_path / "site"
    (folder / "my_package").mkdir(parents=True)
    (folder / "my_package" / "__init__.py").write_text("")
    code = re.findall(r"```python\n(.*?)```", text, flags=re.S)[0]
    (folder / "my_package" / "half.py").write_text(code, encoding="utf-8")
    told = folder / "my_package-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points = re.findall(r'```toml\n\[project.entry-points."(.*?)"\]\n(.*?)```', text, flags=re.S)[0]
    (told / "entry_points.txt").write_text(f"[{points[0]}]\n{points[1].replace(chr(34), '')}")
    return folder


def environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT / "src")]), "OMP_NUM_THREADS": "1"}


def fedflux(package: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "fedflux", *arguments],
        cwd=folder,
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_it_runs_by_entry_point_and_by_where_it_is(package: Path, tmp_path: Path) -> None:
    first = fedflux(package, tmp_path, "run", *RUN, "--rounds", "3", "--algorithm", "half-step", "--out", "a")
    other = fedflux(package, tmp_path, "run", *RUN, "--rounds", "3", "--algorithm", "my_package.half:HalfStep")
    assert first["known_per_client"] == other["known_per_client"]
    assert first["known"] > 10
    plain = fedflux(package, tmp_path, "run", *RUN, "--rounds", "3", "--algorithm", "fedavg", "--out", "b")
    assert plain["known_per_client"] != first["known_per_client"]


@pytest.mark.slow
def test_its_code_is_part_of_the_identity(package: Path, tmp_path: Path) -> None:
    fedflux(package, tmp_path, "run", *RUN, "--rounds", "1", "--algorithm", "half-step", "--out", "a")
    path = package / "my_package" / "half.py"
    path.write_text(path.read_text() + "\n# changed\n")
    fedflux(package, tmp_path, "run", *RUN, "--rounds", "1", "--algorithm", "half-step", "--out", "b")
    one, two = (json.loads((tmp_path / name / "config.json").read_text())["identity"] for name in "ab")
    assert one != two


@pytest.mark.slow
def test_it_is_compared_by_several_processes(package: Path, tmp_path: Path) -> None:
    grid = ["--algorithms", "fedavg,half-step", "--shifts", "px", "--levels", "3", "--seeds", "42", "--jobs", "2"]
    rest = ["--clients", "5", "--rounds", "2", "--device", "cpu", "--out", "grid", "--json"]
    answer = fedflux(package, tmp_path, "compare", *grid, *rest)
    assert answer["failed"] == []
    assert {cell["algorithm"] for cell in answer["cells"]} == {"fedavg", "half-step"}


@pytest.mark.slow
def test_it_is_killed_and_goes_on_to_the_same_numbers(package: Path, tmp_path: Path) -> None:
    run = ["run", *RUN, "--rounds", "40", "--algorithm", "half-step"]
    whole = fedflux(package, tmp_path, *run, "--out", "whole")
    running = subprocess.Popen(
        [sys.executable, "-m", "fedflux", *run, "--out", "cut"],
        cwd=tmp_path,
        env=environment(package),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = tmp_path / "cut" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= 2:
            break
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "cut" / "result.json").exists(), "it was killed too late to show anything"
    again = fedflux(package, tmp_path, "run", "--out", "cut", "--resume", "--json")
    assert again["known_per_client"] == whole["known_per_client"]


@pytest.mark.slow
def test_it_holds_what_every_method_must_hold(package: Path, tmp_path: Path) -> None:
    script = "from my_package.half import HalfStep\nfrom fedflux.algorithms.checks import check_algorithm\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}check_algorithm(HalfStep.make)"],
        cwd=tmp_path,
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_nobody_offers_is_refused_in_one_line(package: Path, tmp_path: Path) -> None:
    for name, words in (("half-stp", "unknown algorithm"), ("my_package.half:Gone", "is not package.module:Name")):
        done = subprocess.run(
            [sys.executable, "-m", "fedflux", "run", *RUN, "--algorithm", name],
            cwd=tmp_path,
            env=environment(package),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
