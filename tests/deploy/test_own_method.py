"""A method of somebody's own, the one of docs/own-method.md, over nodes: found by its entry point."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.deploy.staging import played, simulated

ROOT = Path(__file__).parents[2]


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    text = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "half_of_the_way.py").write_text(re.findall(r"```python\n(.*?)```", text, flags=re.S)[0])
    told = folder / "half_of_the_way-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: half-of-the-way\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[fedflux.algorithms]\nhalf-way = half_of_the_way:HalfStep\n")
    monkeypatch.syspath_prepend(str(folder))
    yield "half-way"
    sys.modules.pop("half_of_the_way", None)


def test_it_is_what_the_local_engine_runs(offered: str) -> None:
    config = {"clients": 4, "rounds": 3, "algorithm": offered}
    deployed = played(range(4), **config)
    local = simulated(**config)
    assert list(deployed.known.values()) == pytest.approx(local["known_per_client"], abs=1e-9)
    assert deployed.assignment == local["assignment"]
    assert deployed.result["bytes_up"] == local["bytes_up"]
