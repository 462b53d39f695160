"""A comparison runs every cell once, goes on where it was stopped, and says what its figures are."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fedflux.errors import FedfluxError
from fedflux.runs.storage.folder import held
from fedflux.runs.storage.store import Store
from fedflux.studies.compare import Cell, Status, compare, plan
from fedflux.studies.grid import comparison, names, numbers, pick_reference

SMALL = {"clients": 4, "rounds": 2, "cluster_round": 1, "device": "cpu"}


def grid(out: Path, **told: Any) -> list[Cell]:
    return plan({**SMALL, **told}, ["fedavg", "flux"], ["px", "pygx"], [3], [42, 43], out)


def test_every_cell_is_run_once_and_summed_up(tmp_path: Path) -> None:
    cells, store = grid(tmp_path), Store(tmp_path)
    seen: list[tuple[int, int]] = []
    answer = compare(cells, store, 2, "fedavg", lambda status: seen.append((len(status.results), status.before)))
    assert (answer["planned"], answer["ran"], answer["finished_before"], answer["failed"]) == (8, 8, 0, [])
    assert seen[0] == (0, 0)
    assert seen[-1][0] == 8
    assert len(store) == 8
    results = {c["identity"]: c["result"] for c in store.cells()}
    for line in answer["cells"]:
        own = [
            results[c.identity]["known"]
            for c in cells
            if (c.config.algorithm, c.config.shift) == (line["algorithm"], line["shift"])
        ]
        assert line["known_mean"] == pytest.approx(sum(own) / 2)
        assert line["seeds"] == [42, 43]
        assert (line["test_mean"] is None) == (line["shift"] == "pygx")
    known = answer["differences"]["known"][0]
    assert (known["algorithm"], known["pairs"], known["mark"]) == ("flux", 4, "")
    again = compare(grid(tmp_path), store, 2, "fedavg")
    assert (again["ran"], again["finished_before"]) == (0, 8)
    assert {**again, "ran": 8, "finished_before": 0} == answer
    json.dumps(answer, allow_nan=False)


def test_a_killed_workers_cell_is_taken_up_again(tmp_path: Path) -> None:
    cells, store = grid(tmp_path, rounds=6)[:3], Store(tmp_path)
    killed: list[int] = []

    def kill_once(status: Status) -> None:
        import multiprocessing

        if not killed and any(state.startswith("round 3") for state in status.running.values()):
            child = multiprocessing.active_children()[0]
            killed.append(child.pid or 0)
            os.kill(child.pid or 0, signal.SIGKILL)

    answer = compare(cells, store, 1, "fedavg", kill_once)
    assert killed
    assert (answer["ran"], answer["failed"], len(store)) == (3, [], 3)
    resumed = [path for path in tmp_path.glob("*/events.jsonl") if "resumed after round" in path.read_text()]
    assert len(resumed) == 1


def test_a_cell_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    cells, store = grid(tmp_path)[:2], Store(tmp_path)
    waited: list[bool] = []
    folder = held(Path(cells[0].config.out or ""))
    folder.__enter__()

    def let_go(status: Status) -> None:
        if "waiting for another process" in status.running.values() and not waited:
            waited.append(True)
            folder.__exit__(None, None, None)

    answer = compare(cells, store, 1, "fedavg", let_go)
    assert waited
    assert answer["ran"] == 2


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    cells = plan({**SMALL, "lr": 1e30}, ["fedavg"], ["px"], [3], [42], tmp_path) + grid(tmp_path)[:1]
    answer = compare(cells, Store(tmp_path), 1, "fedavg")
    assert answer["ran"] == 1
    assert "diverged" in answer["failed"][0]["why"]
    assert answer["failed"][0]["cell"] == "fedavg px level 3 seed 42"


def test_papers_figures_come_with_their_scope(tmp_path: Path) -> None:
    from fedflux.studies.compare import _answer

    cells = plan({}, ["fedavg", "flux", "local"], ["px", "py", "pygx", "pxgy"], [4], [42], tmp_path)
    as_mnist = [Cell(type(c.config)(**{**vars(c.config), "dataset": "mnist"}), c.identity, c.group) for c in cells]
    printed = _answer(Status(as_mnist), Store(tmp_path), "fedavg")["paper"]
    assert {"fedavg", "flux"} == {line["algorithm"] for line in printed}
    flux = next(line for line in printed if (line["algorithm"], line["shift"]) == ("flux", "px"))
    assert (flux["known"], flux["test"]) == (95.5, 95.0)
    assert "mean over levels 1–8" in flux["scope"]


def test_the_plan_goes_seed_by_seed_into_folders_of_their_own(tmp_path: Path) -> None:
    cells = grid(tmp_path)
    assert [c.config.seed for c in cells] == [42] * 4 + [43] * 4
    assert len({c.config.out for c in cells}) == len({c.identity for c in cells}) == 8
    assert cells[0].name == "fedavg px level 3 seed 42"


def test_clusters_are_told_to_those_who_take_them(tmp_path: Path) -> None:
    cells = plan({"clusters": "2"}, ["fedavg", "flux"], ["px"], [3], [42], tmp_path)
    assert [(c.config.clusters, c.config.clusterer) for c in cells] == [(None, "calibrated"), (2, "kmeans")]


def test_cells_with_the_same_numbers_are_one(tmp_path: Path) -> None:
    cells = plan(SMALL, ["fedavg", "flux"], ["none"], [1, 4, 8], [42], tmp_path)
    assert [c.config.algorithm for c in cells] == ["fedavg", "flux"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"until": "clustered"}, "'until' is for fedflux run"),
        ({"seed": 3}, "'seed' is for fedflux run"),
        ({"store": "none"}, "a comparison needs a store"),
        ({"engine": "fast"}, "unknown engine 'fast'"),
        ({"device": "cuda:9"}, "not there"),
        ({"model": "lenet6"}, "lenet6"),
        ({"track": "wandb"}, "unknown tracker"),
        ({"clusters": 9}, "9"),
    ],
)
def test_bad_settings_are_found_before_anything_is_made(told: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(FedfluxError, match=words):
        plan({**SMALL, **told}, ["fedavg", "flux"], ["px"], [3], [42], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_grid_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('algorithms = ["fedavg", "local"]\nlevels = [2, 3]\nseeds = "42-43"\njobs = 2\nlr = 0.1\n')
    wanted, others = comparison({"levels": "5", "seeds": None}, {"rounds": 3}, file)
    assert (wanted.algorithms, wanted.levels, wanted.seeds, wanted.jobs) == (["fedavg", "local"], [5], [42, 43], 2)
    assert others == {"lr": 0.1, "rounds": 3}
    assert (wanted.shifts, wanted.reference) == (["px", "py", "pygx", "pxgy"], "fedavg")


def test_a_papers_figure_of_one_level_stands_beside_that_level_only() -> None:
    from fedflux.cli.display import _beside

    figure = {"algorithm": "flux", "shift": "px+py", "known": 80.0, "test": None, "scope": "level 6", "levels": (6,)}
    over = {**figure, "known": 85.0, "scope": "mean over levels 1–8", "levels": tuple(range(1, 9))}
    notes: dict[str, str] = {}
    line = {"algorithm": "flux", "shift": "px+py", "levels": [4]}
    assert _beside([figure], line, notes) == "–"
    assert _beside([figure, over], line, notes) == "85.0 / – a"
    assert _beside([over, figure], {**line, "levels": [6]}, notes) == "80.0 / – b"
    assert notes == {"mean over levels 1–8": "a", "level 6": "b"}


@pytest.mark.parametrize(
    ("text", "found"), [("42", [42]), ("42-44", [42, 43, 44]), ("1,3, 5-6", [1, 3, 5, 6]), ("2,2", [2])]
)
def test_numbers_and_ranges(text: str, found: list[int]) -> None:
    assert numbers(text, "levels") == found


@pytest.mark.parametrize("text", ["", "a", "3-", "5-3", "1-99999999", "1;2", "-1"])
def test_what_is_no_number_is_said(text: str) -> None:
    with pytest.raises(FedfluxError, match="--levels"):
        numbers(text, "levels")


def test_names_and_the_reference() -> None:
    assert names("flux, fedavg,flux", ["fedavg", "flux"], "algorithms") == ["flux", "fedavg"]
    assert names("all", ["fedavg", "flux"], "algorithms") == ["fedavg", "flux"]
    assert names("all", ["fedavg", "fedbn"], "algorithms", left_out={"fedbn"}) == ["fedavg"]
    assert names("all,fedbn", ["fedavg", "fedbn"], "algorithms", left_out={"fedbn"}) == ["fedavg", "fedbn"]
    for text in ("", "flux,fedavgg"):
        with pytest.raises(FedfluxError, match="--algorithms"):
            names(text, ["fedavg", "flux"], "algorithms")
    assert pick_reference(None, ["flux", "fedavg"]) == "fedavg"
    assert pick_reference(None, ["flux", "local"]) == "flux"
    with pytest.raises(FedfluxError, match="--reference oracle is not among"):
        pick_reference("oracle", ["flux"])


@pytest.mark.parametrize(
    ("told", "shifts"),
    [({}, ["px", "py", "pygx", "pxgy"]), ({"dataset": "npz"}, ["none"]), ({"dataset": "folder"}, ["none"])],
)
def test_own_data_is_compared_without_a_shift(told: dict[str, Any], shifts: list[str]) -> None:
    assert comparison({}, told, None)[0].shifts == shifts
    assert comparison({"shifts": "py"}, told, None)[0].shifts == ["py"]
