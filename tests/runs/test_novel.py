"""Clients that fit no cluster, from a run's test phase to its result, its files, its page and its summary."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.making import make_client, read_json, run_npz, save_clients

from fedflux.cli import display_run
from fedflux.engine import Predictor
from fedflux.runs import evaluation
from fedflux.runs.ending import finish
from fedflux.studies.report.collect import collect

NEW = (1, 4)
"""Clients whose test images are unlike anything that was trained on."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clients in two clusters (the last three hold negatives); two of them meet half-dark images at test time."""
    train = [make_client(k, 120, negative=k >= 3) for k in range(6)]
    test = [make_client(100 + k, 60, negative=k >= 3) for k in range(6)]
    test = [(x * 0.5 if k in NEW else x, y) for k, (x, y) in enumerate(test)]
    return save_clients(tmp_path_factory.mktemp("novel") / "clients.npz", train, test)


@pytest.fixture(scope="module")
def usual(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_npz(data, tmp_path_factory.mktemp("usual") / "run")


def test_a_run_says_who_is_novel_and_how_sure_it_is(usual: dict[str, Any]) -> None:
    lines = usual["test_placements"]
    assert {line["client"] for line in lines if line["novel"]} == set(NEW)
    assert usual["novel"] == pytest.approx(2 / 6)
    assert all((line["novelty_score"] < 0.05) == line["novel"] for line in lines)
    assert all(0 <= line["novelty_score"] <= 1 and 0 <= line["confidence"] <= 1 for line in lines)
    assert all(line["confidence"] > 0.99 for line in lines if not line["novel"])
    assert all(line["cluster"] == int(np.argmax(line["posterior"])) for line in lines)
    kept = read_json(Path(usual["run_dir"]) / "result.json")
    assert kept["test_placements"] == lines
    assert kept["novel"] == usual["novel"]


def test_the_level_decides_who_is_novel(data: Path, usual: dict[str, Any], tmp_path: Path) -> None:
    lax = run_npz(data, tmp_path / "lax", novelty_level=0.9)
    assert lax["novel"] >= usual["novel"]
    assert [line["novel"] for line in lax["test_placements"]] == [
        line["novelty_score"] < 0.9 for line in usual["test_placements"]
    ]
    assert lax["test_per_client"] == usual["test_per_client"]


@pytest.mark.parametrize("algorithm", ["flux", "flux-prior"])
def test_novel_clients_alone_get_the_general_model(
    algorithm: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"algorithm": algorithm, "clusters": 2} if algorithm == "flux" else {}
    asked: list[Predictor] = []
    found = evaluation._answered_otherwise

    def note(predictor: Predictor, *others: Any) -> Any:
        asked.append(predictor)
        return found(predictor, *others)

    monkeypatch.setattr(evaluation, "_answered_otherwise", note)
    result = run_npz(data, tmp_path / "global", novel="global", **options)
    weights = asked[0].weights
    for line in result["test_placements"]:
        mine = weights[line["client"]]
        assert mine.sum() == pytest.approx(1)
        assert (np.count_nonzero(mine) > 1) == (line["client"] in NEW)
        assert line["cluster"] == int(np.argmax(line["posterior"]))


def test_methods_without_clusters_say_nothing_of_novelty(data: Path, tmp_path: Path) -> None:
    result = run_npz(data, tmp_path / "run", algorithm="fedavg")
    assert result["novel"] is None
    assert result["test_placements"] is None


def test_many_clients_are_kept_as_arrays(
    data: Path, usual: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (evaluation, finish):
        monkeypatch.setattr(module, "LISTED", 2)
    result = run_npz(data, tmp_path / "run")
    assert result["novel"] == usual["novel"]
    with np.load(tmp_path / "run" / "placements.npz") as kept:
        assert np.flatnonzero(kept["novel"]).tolist() == list(NEW)
        assert kept["score"].tolist() == [line["novelty_score"] for line in usual["test_placements"]]
        assert kept["confidence"].tolist() == [line["confidence"] for line in usual["test_placements"]]
    assert collect([tmp_path / "run"])["runs"][0]["placements"]["novel"] == 2


def test_the_page_and_the_summary_show_it(usual: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    shown = collect([Path(usual["run_dir"])])["runs"][0]["placements"]
    assert shown["novel"] == 2
    assert [k for k, flag in zip(shown["clients"], shown["is_novel"], strict=True) if flag] == list(NEW)
    assert len(shown["score"]) == len(shown["confidence"]) == 6
    display_run.show_run(usual)
    assert "33.3 % of clients are like no cluster" in capsys.readouterr().out
