"""Runs whose files are not as a run leaves them are listed with the reason, and the others are shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studies.report.making import make_samples, write_run

from fedflux.errors import FedfluxError
from fedflux.studies.report import collect, write_report
from fedflux.studies.report.page import render


def change(name: str, **values: Any) -> Callable[[Path], None]:
    """Other values in a JSON file; `...` takes a key out."""

    def apply(folder: Path) -> None:
        content = {**json.loads((folder / name).read_text()), **values}
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))

    return apply


PLACED: dict[str, Any] = {"client": 0, "cluster": 0, "posterior": [0.9, 0.1], "novel": False, "confidence": 0.9}


def placed(**values: Any) -> Callable[[Path], None]:
    """One placement with other values; `...` takes a key out."""
    changed = {key: value for key, value in {**PLACED, **values}.items() if value is not ...}
    return change("result.json", test_placements=[changed])


def write(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


def samples(**arrays: Any) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "samples.npz", **arrays)


def bare_array(folder: Path) -> None:
    with (folder / "samples.npz").open("wb") as handle:
        np.save(handle, np.arange(3))


def other_descriptors(folder: Path) -> None:
    np.savez(folder / "descriptors.npz", weights=np.eye(3))


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (write("result.json", "{}"), "result.json has no assignment"),
    (write("result.json", '{"known": 8'), "result.json is no JSON object"),
    (write("result.json", "[1]"), "result.json is no JSON object"),
    (change("result.json", assignment=[0, 1]), "assignment has not one number for each of 6 clients"),
    (change("result.json", assignment=["a"] * 6), "has no assignment"),
    (change("result.json", truth=[0]), "truth has not one number"),
    (change("result.json", known="80"), "known is no number"),
    (change("result.json", pairs_right="all"), "pairs_right is no number"),
    (change("result.json", known_per_client=["80"] * 6), "known_per_client has not one number"),
    (placed(client=99), "test_placements: client 99 is none of 0 to 5"),
    (placed(client="0"), "client '0' is none of 0 to 5"),
    (placed(posterior=...), "client 0 has neither distances nor a posterior"),
    (placed(posterior=["all"]), "client 0 has neither distances nor a posterior"),
    (placed(posterior=[2.0, -1.0]), "client 0 has a posterior that is no distribution"),
    (placed(posterior=[0.1, 0.1]), "client 0 has a posterior that is no distribution"),
    (placed(cluster=2), "client 0 is placed in cluster 2, which is none"),
    (placed(cluster=None), "client 0 is placed in cluster None, which is none"),
    (placed(novel="no"), "client 0 is neither novel nor not"),
    (placed(confidence="high"), "client 0 has a score that is no number"),
    (change("result.json", test_placements=[PLACED, {**PLACED, "posterior": [1.0]}]), "among other clusters than the"),
    (change("result.json", test_placements=[PLACED, {**PLACED, "distances": [1.0, 2.0]}]), "among other clusters"),
    (change("result.json", test_placements={"client": 0}), "test_placements is no list of placements"),
    (change("result.json", test_placements=[{}]), "client None is none of 0 to 5"),
    (change("result.json", unseen_placements=[PLACED]), "unseen_placements: client 0 is none of those held out"),
    (
        change("result.json", unseen_truth=[0, 0], unseen_placements=[PLACED]),
        "unseen_placements: client 0 is none of 6 to 7",
    ),
    (change("result.json", unseen_per_client="90"), "unseen_per_client is no list with an entry for each client"),
    (change("result.json", unseen_names=[1]), "unseen_names is no list with an entry for each client"),
    (
        change("result.json", unseen_per_client=[90.0], unseen_truth=[0, 1]),
        "clients that were held out are 1 in unseen_per_client, 2 in unseen_truth",
    ),
    (change("result.json", why=[{}]), "KeyError"),
    (change("config.json", shift=...), "config.json has no shift"),
    (change("config.json", level=...), "config.json has no level"),
    (change("config.json", seed="x"), "config.json has no seed"),
    (change("config.json", lr=float("nan")), "not JSON compliant"),
    (write("rounds.jsonl", "5\n"), "rounds.jsonl: line 1 is no round"),
    (write("rounds.jsonl", "{}\n"), "rounds.jsonl: line 1 is no round"),
    (write("rounds.jsonl", '{"round": 1, "validation": {"0": "x"}}\n'), "line 1 is no round"),
    (write("rounds.jsonl", '{"round": 1, "validation": {"-1": 1}}\n'), "line 1 names a client that is none"),
    (samples(picture=np.eye(2)), "samples.npz has no client, label, image"),
    (samples(**make_samples([99], 2)), "images of client 99, but there are 6 clients"),
    (samples(**make_samples([-1], 2)), "images of client -1"),
    (samples(client=np.zeros(2, int), label=np.zeros(2, int), image=np.zeros(2)), "holds no images"),
    (
        samples(client=np.zeros(2, int), label=np.zeros(1, int), image=np.zeros((2, 4, 4, 1), np.uint8)),
        "not one client",
    ),
    (bare_array, "samples.npz: it holds no named arrays"),
    (write("samples.npz", "no archive"), "cannot read samples.npz"),
    (other_descriptors, "descriptors.npz makes no map"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_damaged_run_is_listed_and_the_others_are_shown(
    damage: Callable[[Path], Any], reason: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "good")
    damage(write_run(tmp_path / "bad"))
    data = collect([tmp_path])
    assert [run["name"] for run in data["runs"]] == ["good"]
    (found,) = data["damaged"]
    assert found["name"] == "bad"
    assert reason in found["reason"]
    assert str(tmp_path) not in found["reason"]
    render(data, "title")
    with pytest.raises(FedfluxError, match="no whole run is left: bad is damaged") as caught:
        write_report([tmp_path / "bad"], None)
    assert reason in str(caught.value)
    assert not (tmp_path / "bad" / "report.html").exists()


def test_a_damaged_unfinished_run_is_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (write_run(tmp_path / "going", finished=False) / "rounds.jsonl").write_text("5\n")
    data = collect([tmp_path])
    assert (data["unfinished"], [found["name"] for found in data["damaged"]]) == ([], ["going"])


@pytest.mark.parametrize("name", ["events.jsonl", "rounds.jsonl"])
def test_a_line_that_was_cut_off_does_not_damage_a_run(name: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r")
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([*lines, '{"time": "2026', lines[-1], ""]))
    data = collect([folder])
    assert data["damaged"] == []
    assert len(data["runs"][0]["timings"]["events"]) == (2 if name == "events.jsonl" else 1)


def test_no_page_is_written_where_the_exports_cannot_be(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FedfluxError, match="cannot write exports"):
        write_report([run], None, tmp_path / "file")
    assert not (run / "report.html").exists()
    assert (tmp_path / "file").read_text() == "mine"
