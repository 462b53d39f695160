"""What the documents say of the code is so."""

import re
from functools import cache
from pathlib import Path

import pytest
from docs.wrap import too_long
from tests.shown_commands import calls_in, fault_of

import fedflux
from fedflux.algorithms.registry import ALGORITHMS
from fedflux.cli.answers import FAQ, read_on

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
MOST_BYTES = 150_000
TWO_SCREENS = 80
"""Lines of a document."""
NOT_WRAPPED: set[str] = set()
"""Documents whose prose is still wider than 100 characters: `python -m docs.wrap FILE` wraps one."""
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


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a document as links name them; of the reference, the names in it too."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^::: ([\w.]+)$", text, flags=re.M))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    here = ROOT / name
    text = re.sub(r"```.*?```", "", here.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        path = (here.parent / file).resolve() if file else here
        made = path.parent == ROOT / "docs" / "tutorials" and (ROOT / "tutorials").glob(
            f"*{path.stem}*".replace("-", "_")
        )
        assert path.exists() or (made and any(made)), f"{name}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_are_shown_exist_with_their_flags(name: str) -> None:
    faults = [fault for call in calls_in(text_of(name)) if (fault := fault_of(call)) is not None]
    assert not faults, f"{name}: {faults}"


@pytest.mark.parametrize("name", NAMES)
def test_python_that_is_shown_is_python(name: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", text_of(name), flags=re.S):
        compile(code.replace("…", "..."), name, "exec")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_WRAPPED])
def test_prose_is_wrapped(name: str) -> None:
    assert too_long(text_of(name)) == []


def test_messages_that_the_faq_explains_are_said_somewhere() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    said = " ".join(re.sub(r'"\s*\n\s*f?"', "", source).split())  # strings that go on in the next line
    headings = re.findall(r"^### (`.*`)$", text_of("docs/faq.md"), flags=re.M)
    assert len(headings) > 15
    for heading in headings:
        for piece in re.split(r"…|` and `", heading.strip("`")):
            words = piece.strip(" :'\"?`")
            assert words in said, f"nobody says '{words}' of {heading}"


def test_errors_name_the_entry_of_the_faq_that_explains_them() -> None:
    entries = re.findall(r'^<a id="(.+)"></a>\n\n### (`.*`)\n\n\*\*(.+)\.\*\* ', text_of("docs/faq.md"), flags=re.M)
    assert [name for name, _, _ in entries] == [shown for _, _, shown in entries] == list(FAQ)
    assert len(entries) == text_of("docs/faq.md").count("\n### `")
    for name, heading, _ in entries:
        assert FAQ[name][0] in heading, f"{name} answers to words that its heading has not"
        assert read_on(f"clinic 3: {FAQ[name][-1]}") == f" (FAQ: {name})"
    assert read_on("level 9 does not exist") == ""


def test_pictures_are_small_and_used() -> None:
    used = "".join(map(text_of, NAMES))
    pictures = [path for path in (ROOT / "docs" / "images").iterdir() if path.is_file()]
    assert pictures
    for path in pictures:
        assert path.stat().st_size < MOST_BYTES, path.name
        assert f"images/{path.name})" in used, f"{path.name} is in no document"


def guides() -> list[str]:
    """The pages under `Guides` in the site's table of contents."""
    part = text_of("mkdocs.yml").partition("  - Guides:\n")[2]
    return re.findall(r"^      - .*: (\S+\.md)$", re.split(r"^  - ", part, flags=re.M)[0], flags=re.M)


def test_no_guide_of_more_than_two_screens_is_without_a_picture() -> None:
    assert len(guides()) > 10
    for name in ["quickstart.md", *guides()]:
        text = text_of(f"docs/{name}")
        assert text.count("\n") <= TWO_SCREENS or "](images/" in text, name


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_number_of_methods_is_said_rightly(name: str) -> None:
    others = [method for method in ALGORITHMS if not method.startswith("flux")]
    assert f"and {len(others)} others to hold it against" in " ".join(text_of(name).split())


def test_the_reference_has_every_public_name() -> None:
    page = text_of("docs/reference/python.md")
    for name in set(fedflux.__all__) - {"__version__"}:
        assert re.search(rf"^::: fedflux\.([a-z_]+\.)*{name}$", page, flags=re.M), name
    assert "fedflux.__version__" in page
