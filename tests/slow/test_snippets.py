"""Python that the first pages show runs as it stands, one page after another block by block, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md", "docs/concepts/descriptor.md", "docs/concepts/placement.md")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    (tmp_path / "shown.py").write_text("\n".join(blocks), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "shown.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_the_example_of_the_readme_places_the_new_clinic_with_its_like(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    told = blocks[0] + "\nassert result['clusters_found'] == 2\n"
    told += "assert result.load().assign(16 - x[:30]).cluster[0] == result.clients.loc['clinic 5', 'cluster']\n"
    told += "assert result.load().assign(x[:30]).cluster[0] == result.clients.loc['clinic 0', 'cluster']\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_the_readme_shows_is_short() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 10
