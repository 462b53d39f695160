"""Federations too large for memory: a run in parts gives what a run in one piece gives, and tells how far it is."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.making import read_json, read_rounds

from fedflux.data import Federation, Labelled, Split
from fedflux.data import cohort as cohort_module
from fedflux.runs import evaluation
from fedflux.runs.config import make_config
from fedflux.runs.ending import finish
from fedflux.runs.runner import build_federation, run_config
from fedflux.runs.session import Progress
from fedflux.studies.report.collect import collect
from fedflux.studies.report.descriptor_map import descriptor_map

partition_module = import_module("fedflux.data.partition")
LARGE: dict[str, Any] = {
    **{"shift": "px", "level": 3, "clients": 40, "samples_per_client": 30, "participation": 0.3},
    **{"rounds": 3, "cluster_round": 2, "device": "cpu", "store": "none"},
}
SAME = (
    *("known", "test", "known_per_client", "test_per_client", "worst", "assignment", "truth", "ari", "pairs_right"),
    *("clusters_found", "bytes_up", "bytes_down", "rounds", "why"),
)


def run(out: Path, **options: Any) -> dict[str, Any]:
    return run_config(make_config({**LARGE, **options, "out": out}))


def progress_of(out: Path) -> list[Progress]:
    told: list[Progress] = []
    run_config(make_config({**LARGE, "out": out}), told.append)
    return told


def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if eight clients were many."""
    monkeypatch.setattr(partition_module, "EAGER", 0)
    monkeypatch.setattr(cohort_module, "PART_CLIENTS", 8)
    for module in (evaluation, finish):
        monkeypatch.setattr(module, "LISTED", 10)


@pytest.mark.parametrize("algorithm", ["flux", "oracle", "fedavg"])
@pytest.mark.parametrize("shift", ["px", "pygx"])
def test_parts_change_nothing(algorithm: str, shift: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"algorithm": algorithm, "shift": shift}
    whole = run(tmp_path / "whole", **options)
    in_parts(monkeypatch)
    parts = run(tmp_path / "parts", **options)
    for key in SAME:
        assert parts[key] == whole[key], key
    assert len(parts["known_per_client"]) == 40
    assert all(label >= 0 for label in parts["assignment"])
    for name in ("models.safetensors", "descriptors.npz"):
        files = [tmp_path / folder / name for folder in ("whole", "parts")]
        assert files[0].exists() == files[1].exists() == (name[0] == "m" or algorithm != "fedavg")
    assert (tmp_path / "whole" / "models.safetensors").read_bytes() == (
        tmp_path / "parts" / "models.safetensors"
    ).read_bytes()


def test_progress_is_told_after_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch)
    told = progress_of(tmp_path)
    after = [progress.after for progress in told if progress.after]
    assert after == [f"{words} {done} of 40 clients" for words in ("placing", "testing") for done in range(8, 41, 8)]
    assert [progress.round for progress in told if not progress.after] == [1, 2, 3]
    assert {progress.round for progress in told if progress.after} == {3}


def test_a_small_federation_is_not_told_of_in_parts(tmp_path: Path) -> None:
    told = progress_of(tmp_path)
    assert [progress.after for progress in told] == [""] * 3


def test_placements_of_many_are_kept_as_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole")
    in_parts(monkeypatch)
    parts = run(tmp_path / "parts")
    assert len(whole["test_placements"]) == 40
    assert parts["test_placements"] == whole["test_placements"][:10]
    assert not (tmp_path / "whole" / "placements.npz").exists()
    with np.load(tmp_path / "parts" / "placements.npz") as kept:
        assert kept["client"].tolist() == list(range(40))
        assert kept["cluster"].tolist() == [line["cluster"] for line in whole["test_placements"]]
        sure = [line["posterior"][line["cluster"]] for line in whole["test_placements"]]
        assert kept["confidence"].tolist() == pytest.approx(sure)
    shown = [collect([tmp_path / name])["runs"][0]["placements"] for name in ("whole", "parts")]
    assert shown[1]["count"] == 40
    assert len(shown[1]["clients"]) == 10
    for key in ("count", "own", "right", "clusters"):
        assert shown[0][key] == shown[1][key]


def test_a_new_run_removes_the_placements_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        in_parts(patched)
        run(tmp_path)
    assert (tmp_path / "placements.npz").exists()
    run(tmp_path)
    assert not (tmp_path / "placements.npz").exists()


def test_rounds_make_only_their_cohorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch)
    made: set[int] = set()
    make = Federation._make

    def note(self: Federation, client: int, split: Split) -> Labelled:
        made.add(client)
        return make(self, client, split)

    monkeypatch.setattr(Federation, "_make", note)
    run(tmp_path, until="clustered")
    members = {int(client) for line in read_rounds(tmp_path) for client in line["validation"]}
    assert 12 < len(members) <= 24
    assert members <= made
    shown = 12 + 3  # a few more whose images the report shows
    assert len(made - members) <= shown


def test_only_other_choices_need_new_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"algorithm": "oracle", "shift": "py", "level": 5, "samples_per_client": 12}
    result = run(tmp_path / "saved", **options)
    chosen = [line["cluster"] for line in result["test_placements"]]
    assert 0 < sum(mine == own for mine, own in zip(chosen, result["assignment"], strict=True)) < 40
    assert result["test_per_client"] != result["known_per_client"]
    monkeypatch.setattr(evaluation, "_answered_otherwise", lambda predictor, holders, *_: np.arange(len(holders)))
    assert run(tmp_path / "all", **options)["test_per_client"] == result["test_per_client"]


def test_duplicates_and_drawn_samples_are_part_of_the_identity(tmp_path: Path) -> None:
    names = []
    for number, options in enumerate(({}, {"duplicate": 2}, {"samples_per_client": 31})):
        run(tmp_path / str(number), rounds=1, cluster_round=1, algorithm="fedavg", **options)
        names.append(read_json(tmp_path / str(number) / "config.json")["identity"])
    assert len(set(names)) == 3


def test_more_steps_with_duplicates() -> None:
    federation, _ = build_federation(make_config({**LARGE, "duplicate": 5}))
    assert federation.size(0, "train") == 5 * 24
    assert federation.size(0, "validation") == 6


def test_the_map_is_laid_through_a_share_of_very_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    with np.load(tmp_path / "descriptors.npz") as file:
        arrays = {name: file[name] for name in file.files}
    whole = descriptor_map(arrays)
    monkeypatch.setattr("fedflux.studies.report.descriptor_map.MOST_SEEN", 20)
    monkeypatch.setattr("fedflux.studies.report.descriptor_map.MOST_POINTS", 10)
    part = descriptor_map(arrays)
    assert whole is not None
    assert part is not None
    assert (whole["count"], part["count"], len(part["x"])) == (40, 40, 10)
    assert set(part["client"]) < set(whole["client"])
    assert set(part["found"]) == set(whole["found"])
