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
