"""What the page on real nodes shows of Flower in one process runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_a_run_in_one_process_is_as_the_page_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    (shown,) = [block for block in blocks if "InProcessGrid" in block]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(shown, str(PAGE), "exec"), names)
    result = names["result"]
    assert len(result["assignment"]) == len(result["known_per_client"]) == 10
    assert (tmp_path / "runs" / "near" / "result.json").is_file()
