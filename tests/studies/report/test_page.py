import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.studies.report.making import write_run

from fedflux.errors import FedfluxError
from fedflux.studies.report import collect, write_report
from fedflux.studies.report.page import SCRIPTS

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}"


class Page(HTMLParser):
    """Scripts, addresses and tags of a page, read as a browser would cut it up."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    def data(self) -> Any:
        return json.loads(self.scripts[0])


def test_the_page_holds_its_data_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "r")
    path = write_report([tmp_path / "runs"], None)
    assert path == tmp_path / "runs" / "report.html"
    page = Page(path.read_text(encoding="utf-8"))
    assert page.data() == json.loads(json.dumps(collect([tmp_path / "runs"])))
    assert page.addresses == ["data:,", "#run-title"]
    assert len(page.scripts) == 3
    assert "Plotly" in page.scripts[2]
    assert "default-src 'none'" in path.read_text(encoding="utf-8")


def test_text_of_runs_cannot_become_markup(tmp_path: Path) -> None:
    folder = tmp_path / EVIL.replace("/", "∕")
    write_run(folder, data_dir=EVIL, command=f"fedflux run --data-dir '{EVIL}'", dataset=EVIL)
    page = Page(write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.data()["runs"][0]["config"]["data_dir"] == EVIL
    assert len(page.scripts) == 3
    assert "img" not in page.tags


def test_scripts_build_text_nodes_only() -> None:
    folder = Path(sys.modules["fedflux.studies.report"].__file__ or "").parent
    assert {path.name for path in folder.glob("*.js")} == set(SCRIPTS)
    for name in SCRIPTS:
        source = (folder / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch\(|https?:", source)
        assert len(source.splitlines()) < 300


def test_a_report_goes_where_it_is_told_and_says_when_it_cannot(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    assert write_report([run], tmp_path / "new" / "page.html").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FedfluxError, match="cannot write the report"):
        write_report([run], tmp_path / "file" / "page.html")


def test_without_plotly_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedfluxError, match="pip install plotly"):
        write_report([write_run(tmp_path / "r")], None)
    assert not (tmp_path / "r" / "report.html").exists()


def test_images_shared_by_runs_are_embedded_once(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / str(seed), seed=seed)
    page = Page(write_report([tmp_path], None).read_text(encoding="utf-8"))
    assert len(page.data()["images"]) == len(set(page.data()["images"])) == 18
