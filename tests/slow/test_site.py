"""The site is built without a warning, and asks nobody for anything when it is read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedflux

pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'fedflux[docs]'")
ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?(https?:)?//|<link[^>]+href=[\"']?(https?:)?//", re.IGNORECASE
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", style.read_text(encoding="utf-8")), style


def test_this_test_would_notice_what_is_fetched() -> None:
    assert FETCHED.search('<script src="https://cdn.example/x.js">')
    assert FETCHED.search("<link rel=stylesheet href=//fonts.example/css>")


def test_the_reference_holds_every_public_name(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in set(fedflux.__all__) - {"__version__"}:
        assert re.search(rf'<h2 id="fedflux\.[a-z_.]*{name}"', page), name


def test_tutorials_and_linked_files_are_pages(site: Path) -> None:
    for name in ("from-fedavg-to-flux", "a-clinics-own-images", "from-simulation-to-serving"):
        assert "<code" in (site / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
    assert (site / "files" / "examples" / "table-py.html").is_file()
