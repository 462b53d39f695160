"""A run of version 0.1 and its store, as that version left them: they open, and cannot be gone on with."""

import json
import shutil
from pathlib import Path

import pytest

import fedflux
from fedflux.errors import FedfluxError
from fedflux.runs.storage.store import Store, export_store, merge_stores
from fedflux.studies.recluster import recluster
from fedflux.studies.report import write_report
from fedflux.studies.report.collect import collect


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).with_name("version_0_1"), tmp_path / "old"))


def test_a_report_shows_it(old: Path) -> None:
    (run,) = collect([old])["runs"]
    result = json.loads((old / "run" / "result.json").read_text(encoding="utf-8"))
    assert run["scores"]["known"] == pytest.approx(result["known"], abs=0.01)
    assert write_report([old], None, None, None).stat().st_size > 10_000


def test_its_descriptors_are_clustered_again(old: Path) -> None:
    found = recluster(old / "run", "calibrated", None)
    assert found["clusters_found"] == 3
    assert found["pairs_right"] == 1.0


def test_its_store_is_merged_and_exported(old: Path, tmp_path: Path) -> None:
    assert merge_stores(tmp_path / "new.sqlite", [old / "fedflux.sqlite"])["added"] == 1
    assert len(Store(tmp_path / "new.sqlite")) == 1
    assert export_store(tmp_path / "new.sqlite", tmp_path / "cells.csv") == 1


def test_it_cannot_be_resumed(old: Path) -> None:
    before = {path: path.read_bytes() for path in (old / "run").iterdir()}
    with pytest.raises(FedfluxError, match="cannot be resumed: it was begun with another version of fedflux"):
        fedflux.run(out=old / "run", resume=True)
    assert {path: path.read_bytes() for path in (old / "run").iterdir()} == before
