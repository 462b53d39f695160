"""The examples run as they stand, and come to what they are there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def said(example: str, folder: Path, *arguments: str) -> str:
    """What an example prints, run somewhere else."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(example: str) -> None:
    assert len((EXAMPLES / example).read_text(encoding="utf-8").splitlines()) <= 40


def test_flux_in_a_loop_of_ones_own_finds_the_clusters_and_places_the_newcomer(tmp_path: Path) -> None:
    out = said("torch_loop.py", tmp_path)
    assert "clusters [0, 1, 0, 1, 0, 1], newcomer [1.0, 0.0]" in out
    assert int(re.findall(r"([0-9]+)% right", out)[0]) > 70
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_opened_in_a_new_process_for_a_client_never_seen(tmp_path: Path) -> None:
    out = said("save_and_load.py", tmp_path, "wards")
    assert "ward 6 is in cluster 0" in out
    assert "'ward 0': 0, 'ward 1': 1, 'ward 2': 0, 'ward 3': 1, 'ward 4': 0, 'ward 5': 1" in out
    known, answers = (float(number) for number in re.findall(r"([0-9.]+) %", out))
    assert min(known, answers) > 75
    assert answers > known - 10
    assert said("save_and_load.py", tmp_path, "wards").splitlines() == out.splitlines()[1:]
