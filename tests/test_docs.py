"""What the documents say of the code is so."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEPS = ("S1", "S2", "S3", "S4", "C(r)", "clustering", "aggregation", "Algorithm 1", "Algorithm 2", "ours")


def rows() -> list[tuple[str, str, str]]:
    """Step, words and file of the table in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([^`|]+\.py)` \|$", text, flags=re.M)


def test_every_step_of_the_paper_has_a_row() -> None:
    named = {step.partition(",")[0].partition("–")[0].strip() for step, _, _ in rows()}
    assert set(STEPS) <= named | {"ours"}
    assert any(step.startswith("ours") for step, _, _ in rows())


@pytest.mark.parametrize(("step", "words", "file"), rows())
def test_a_step_lives_where_the_table_says(step: str, words: str, file: str) -> None:
    path = ROOT / "src" / "fedflux" / file
    assert path.is_file()
    said = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    mark = step.partition(",")[0]
    if mark in ("S1", "S2", "S3", "S4", "C(r)"):
        assert mark in said, f"{file} does not say that it is {mark}"


def test_the_example_of_a_method_is_short() -> None:
    text = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, flags=re.S)[0]
    assert len(code.splitlines()) <= 40


def test_files_that_documents_name_are_there() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for document in documents:
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", document.read_text(encoding="utf-8")):
            assert (ROOT / "src" / "fedflux" / name).is_file() or (ROOT / name).is_file(), f"{document.name}: {name}"
