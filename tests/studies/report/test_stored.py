"""Runs that a store alone knows, and names in what a report shows."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.runs.making import make_client, run_npz, save_clients
from tests.studies.report.making import write_run

from fedflux.errors import FedfluxError
from fedflux.runs.storage.store import STORE_FILE, Store, merge_stores
from fedflux.studies.report import collect, write_report
from fedflux.studies.report.colours import palette


def test_a_store_alone_is_reported_with_what_it_knows(tmp_path: Path) -> None:
    kept = run_into_store(tmp_path / "there")
    for name in ("gone", "here"):
        Store(tmp_path / name / STORE_FILE)
    merge_stores(tmp_path / "gone", [tmp_path / "there"])
    shutil.rmtree(tmp_path / "there" / "run")
    for path in (tmp_path / "gone", tmp_path / "gone" / STORE_FILE):
        (run,) = collect([path])["runs"]
        assert run["scores"]["known"] == pytest.approx(kept["known"], abs=0.05)
        assert len(run["curves"]["rounds"]) == kept["rounds"]
        assert run["map"] is None
        assert run["samples"] is None
        assert str(tmp_path / "there" / "run") in run["missing"]
        assert run["client_names"] == kept["client_names"]
    with pytest.raises(FedfluxError, match="store is empty"):
        collect([tmp_path / "here"])


def test_a_run_whose_folder_is_there_is_not_taken_from_the_store(tmp_path: Path) -> None:
    run_into_store(tmp_path)
    (run,) = collect([tmp_path])["runs"]
    assert run["missing"] is None
    assert run["map"] is not None


def run_into_store(folder: Path) -> dict[str, Any]:
    data = save_clients(folder.with_name(f"{folder.name}.npz"), [make_client(k, 40) for k in range(3)])
    return run_npz(data, folder / "run")


def test_a_damaged_store_beside_runs_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / STORE_FILE).write_bytes(b"no database at all, but long enough to be read as one" * 40)
    data = collect([tmp_path])
    assert [run["name"] for run in data["runs"]] == ["run"]
    assert [one["name"] for one in data["damaged"]] == [STORE_FILE]
    with pytest.raises(FedfluxError, match="cannot be read as a store"):
        collect([tmp_path / STORE_FILE])


def test_a_report_of_a_store_lies_beside_it(tmp_path: Path) -> None:
    run_into_store(tmp_path)
    assert write_report([tmp_path / STORE_FILE], None) == tmp_path / "report.html"


@pytest.mark.parametrize(
    "told", [{"client_names": ["a"]}, {"client_names": "abcdef"}, {"class_names": [1, 2, 3]}, {"score": 3}]
)
def test_names_that_are_none_are_damage(tmp_path: Path, told: dict[str, Any]) -> None:
    write_run(tmp_path / "whole")
    write_run(tmp_path / "odd", result=told)
    data = collect([tmp_path])
    assert [run["name"] for run in data["runs"]] == ["whole"]
    assert next(iter(told)) in data["damaged"][0]["reason"]


def test_forty_clusters_have_forty_colours() -> None:
    assert all(len(set(palette(count))) == count for count in range(1, 41))


def test_reasons_are_counted_over_all_pairs(tmp_path: Path) -> None:
    pairs = [
        {"clusters": [k, k + 1], "shift": "P(X)" if k % 2 else "P(Y)", "classes": [], "words": "so"} for k in range(400)
    ]
    why = collect([write_run(tmp_path / "run", result={"why": pairs})])["runs"][0]["why"]
    assert (why["count"], len(why["pairs"]), dict(why["kinds"])) == (400, 300, {"P(X)": 200, "P(Y)": 200})
