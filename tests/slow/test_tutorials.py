"""The tutorials run as they stand, as scripts and as the notebooks that they are."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))


def test_there_are_three() -> None:
    assert [path.name[0] for path in TUTORIALS] == ["1", "2", "3"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_as_it_stands(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_a_notebook_of_text_and_code(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    cells = jupytext.read(path).cells
    kinds = [cell.cell_type for cell in cells]
    assert kinds[0] == "markdown"
    assert kinds.count("code") >= 4
    assert cells[0].source.startswith("# ")
    for cell in cells:
        if cell.cell_type == "code":
            ast.parse(cell.source)
