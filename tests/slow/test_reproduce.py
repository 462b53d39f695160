"""Every result table and figure of the paper at tier smoke, through one store; or it says which data it needs."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedflux.studies.paper.contents import STUDIES
from fedflux.studies.paper.study import Study

pytestmark = pytest.mark.slow
ELSEWHERE = {"tab:main_chex": "fetch CheXpert"}
"""What needs data that is not to be had here."""
LACKING = ("no setting ", "features cannot show P(Y|X)", "is outside the rounds 1 to 4", "the run has fewer rounds")
FILES = {"table": {".csv", ".json", ".tex"}, "figure": {".csv", ".json", ".png", ".svg"}}


def called(out: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fedflux", "reproduce", *arguments, "--tier", "smoke", "--device", "cpu"]
    done = subprocess.run([*command, "--out", str(out), "--json"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def faults(study: Study, answer: Mapping[str, Any], out: Path) -> Iterator[str]:
    """What of a study is not as it should be."""
    told = next(one for one in answer["studies"] if one["name"] == study.name)
    written = [out / "reproduced" / study.short / name for name in told["files"]]
    if {path.suffix for path in written} != FILES[study.kind] or not all(path.stat().st_size for path in written):
        yield f"files: {told['files']}"
    cells = [cell for cell in answer["cells"] if cell["table"] == study.name]
    made = [cell for cell in cells if cell["ours"] is not None]
    if bool(made) == (study.name in ELSEWHERE or study.drawn == "samples"):
        yield f"{len(made)} of {len(cells)} numbers"
    for cell in cells:
        reasons = (ELSEWHERE[study.name],) if study.name in ELSEWHERE else (*LACKING, "images are shown")
        if cell in made:
            reasons = ("not comparable: tier smoke; digits in place of ",)
        if not any(words in cell["verdict"] for words in reasons):
            yield f"{cell['row']}, {cell['column']}: {cell['verdict']}"


def test_everything_runs_once_or_says_what_it_lacks(tmp_path: Path) -> None:
    """One test, so that all of them share one store wherever tests run side by side."""
    answer = called(tmp_path, "all", "--jobs", "2")
    results = [study for study in STUDIES.values() if study.kind != "description"]
    assert len(results) == 22 + 9
    found = {study.name: list(faults(study, answer, tmp_path)) for study in results}
    assert {name: words for name, words in found.items() if words} == {}
    again = called(tmp_path, "n_client_all", "threshold_detection", "eps_R1")
    assert (again["ran"], again["failed"]) == (0, [])
    before = [cell for cell in answer["cells"] if cell["table"] in {one["name"] for one in again["studies"]}]
    assert sorted(again["cells"], key=str) == sorted(before, key=str)
