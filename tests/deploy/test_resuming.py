"""A run that died goes on from its last checkpoint to the same end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from tests.deploy.staging import make_grid, node_id, play, round_of, same_models, watched
from tests.deploy.test_bad_nodes import arrays_changed, changed

from fedflux.errors import FedfluxError
from fedflux.files import read_object
from fedflux.studies.report.folders import find_runs

CONFIG: dict[str, Any] = {"clients": 7, "rounds": 4, "cluster_round": 2, "min_nodes": 6}


class PowerCutError(BaseException):
    """The server dies."""


def grid_of(config: dict[str, Any], state: Path | None = None) -> Any:
    grid = make_grid(range(7), config, unlabelled=(2,))
    for client in range(7) if state is not None else ():
        folder = {"state-dir": str(state / str(client))} if state is not None else {}
        grid.join(node_id(client), {"partition-id": client, "labels": client != 2, **folder})
    return grid


def dies_in_round(round: int, kind: str, folder: Path, config: dict[str, Any], state: Path | None = None) -> None:
    """The server dies when the last node is asked something in a round."""

    def cut(message: Any, context: Any) -> None:
        last = context.node_id == node_id(6)
        if message.metadata.message_type == kind and round_of(message) == round and last:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        play(watched(grid_of(config, state), cut), out=folder, **config)


@pytest.mark.parametrize("round", [1, 2, 4])
def test_a_run_resumes_with_the_same_assignments_and_models(tmp_path: Path, round: int) -> None:
    """Before, at and after clustering; every node has lost its memory meanwhile."""
    whole = play(grid_of(CONFIG), **CONFIG)
    dies_in_round(round, "train", tmp_path, CONFIG)
    again = play(grid_of(CONFIG), out=tmp_path, resume=True, **CONFIG)
    assert again.assignment == whole.assignment
    assert again.known == whole.known
    assert again.result["unlabelled"] == whole.result["unlabelled"]
    assert again.result["rounds"] == 4
    assert same_models(again, whole)
    quiet = {r: count for r, count in again.result["wire_up"].items() if int(r) not in (0, 1, round)}
    assert quiet == {r: whole.result["wire_up"][r] for r in quiet}


@pytest.mark.parametrize("algorithm", ["local", "apfl", "pfedme", "ditto", "fedrep"])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_personal_models_go_on_from_the_right_round(tmp_path: Path, algorithm: str, kind: str) -> None:
    """Some nodes have trained a round that will be done again: they begin it from the model of the round before."""
    config = {"clients": 7, "rounds": 3, "min_nodes": 6, "algorithm": algorithm}
    whole = play(grid_of(config), **config)
    dies_in_round(2, kind, tmp_path / "run", config, tmp_path)
    again = play(grid_of(config, tmp_path), out=tmp_path / "run", resume=True, **config)
    assert again.known == whole.known
    assert same_models(again, whole)


def test_fine_tuning_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    config = {"clients": 7, "rounds": 1, "min_nodes": 6, "algorithm": "fedavg", "finetune": 2}
    whole = play(grid_of(config), **config)
    dies_in_round(0, "train", tmp_path / "run", config, tmp_path)
    again = play(grid_of(config, tmp_path), out=tmp_path / "run", resume=True, **config)
    assert again.known == whole.known
    assert again.result["finetuned_epochs"] == whole.result["finetuned_epochs"]


def test_a_finished_run_serves_latecomers_without_training(tmp_path: Path) -> None:
    first = play(make_grid([k for k in range(7) if k != 2], CONFIG), out=tmp_path, **CONFIG)
    asked: list[str] = []
    grid = watched(grid_of(CONFIG), lambda message, context: asked.append(message.metadata.message_type))
    again = play(grid, out=tmp_path, resume=True, **CONFIG)
    assert "train" not in asked
    assert again.known == first.known
    assert [one["client"] for one in again.result["unlabelled"]] == [2]


def test_the_folder_is_that_of_any_run(tmp_path: Path) -> None:
    found = play(grid_of(CONFIG), out=tmp_path / "run", **CONFIG)
    result = read_object(tmp_path / "run" / "result.json")
    assert result is not None
    assert result["assignment"] == found.assignment
    assert result["engine"] == "flower"
    assert {"wire_up", "wire_down", "exchanges", "refused"} <= result.keys()
    assert len((tmp_path / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert find_runs([tmp_path]) == [tmp_path / "run"]


def test_a_refused_client_stays_out_after_resuming(tmp_path: Path) -> None:
    spoil = arrays_changed("models/0", lambda a: {k: np.full_like(v, np.nan) for k, v in a.items()})

    def cut(message: Any, context: Any) -> None:
        if message.metadata.message_type == "train" and round_of(message) == 3:
            raise PowerCutError

    bad = {5: changed("train", spoil)}
    with pytest.raises(PowerCutError):
        play(watched(make_grid(range(7), CONFIG, bad), cut), out=tmp_path, **CONFIG)
    again = play(make_grid(range(7), CONFIG), out=tmp_path, resume=True, **CONFIG)
    assert "NaN" in again.result["refused"]["5"]
    assert 5 not in again.known
    assert set(again.known) == {0, 1, 2, 3, 4, 6}


@pytest.mark.parametrize("changes", [{"seed": 7}, {"aggregation": "krum"}, {"data": "own.data:load"}])
def test_another_run_cannot_go_on(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = {"clients": 3, "rounds": 1, "algorithm": "fedavg"}
    play(make_grid(range(3), config), out=tmp_path, **config)
    key = next(iter(changes))
    with pytest.raises(FedfluxError, match=key):
        play(make_grid(range(3), config), out=tmp_path, resume=True, **{**config, **changes})


def test_a_new_run_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    config = {"clients": 3, "algorithm": "fedavg"}
    play(make_grid(range(3), config), out=tmp_path, rounds=3, **config)
    again = play(make_grid(range(3), config), out=tmp_path, rounds=1, **config)
    assert again.result["rounds"] == 1
    assert set(again.result["exchanges"]) == {"0", "1"}
