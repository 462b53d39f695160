"""Clients that are held out of training: no round meets them, and after it they are asked without labels and scored."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.cli.test_cli import Call, call
from tests.runs.making import Client, make_client, read_json, run_npz, save_clients

import fedflux
from fedflux.cli import display, display_run
from fedflux.data import Cohort, Held
from fedflux.engine import SimulatedEngine
from fedflux.engine.recipe import Recipe
from fedflux.errors import FedfluxError
from fedflux.runs import session
from fedflux.runs.config import make_config
from fedflux.runs.identity import determines, group, identity
from fedflux.runs.runner import build_population, run_deployed
from fedflux.runs.storage.store import Store, export_store
from fedflux.studies.compare import compare, plan
from fedflux.studies.report.collect import collect
from fedflux.studies.report.exports import export_all

__all__ = ["call"]

CLIENTS, UNSEEN = 6, 3
SETTINGS: dict[str, Any] = {
    "shift": "px", "level": 3, "clients": CLIENTS, "unseen": UNSEEN, "rounds": 3, "cluster_round": 2, "device": "cpu",
}  # fmt: skip


def run(folder: Path, **options: Any) -> dict[str, Any]:
    return fedflux.run(**{**SETTINGS, "out": folder, "store": "none", **options}).to_dict()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("usual") / "run")


def test_the_score_is_what_the_placed_model_gives(usual: dict[str, Any]) -> None:
    """By hand: the images through the model of the cluster that each client was placed in."""
    population, config = build_population(make_config(SETTINGS))
    everyone = population.everyone
    models = load_file(Path(usual["run_dir"]) / "models.safetensors")
    network = Recipe(config.model, everyone.input_shape, everyone.classes, config.seed).build().eval()
    (mean,), (deviation,) = everyone.dataset.scaling.mean, everyone.dataset.scaling.deviation
    assert [line["client"] for line in usual["unseen_placements"]] == list(population.unseen)
    for client, line, score in zip(
        population.unseen, usual["unseen_placements"], usual["unseen_per_client"], strict=True
    ):
        network.load_state_dict({name: tensor[line["cluster"]] for name, tensor in models.items()})
        data = everyone.materialise(client, "test")
        with torch.no_grad():
            answers = network((data.x.float() / 255 - mean) / deviation).argmax(dim=1)
        assert score == pytest.approx(100 * float((answers == data.y).double().mean()))
        assert line["cluster"] == int(np.argmax(line["posterior"]))
    assert usual["unseen"] == pytest.approx(np.mean(usual["unseen_per_client"]))
    assert usual["unseen_worst"] == min(usual["unseen_per_client"])
    assert len(usual["known_per_client"]) == len(usual["assignment"]) == CLIENTS


def test_true_clusters_are_numbered_as_those_of_training_clients(usual: dict[str, Any]) -> None:
    population, _ = build_population(make_config(SETTINGS))
    assert population.everyone.truth is not None
    assert usual["truth"] + usual["unseen_truth"] == population.everyone.truth.tolist()
    apart = run_shift("pxgy", Path(usual["run_dir"]).with_name("pxgy"))
    assert not set(apart["truth"]) & set(apart["unseen_truth"])


def run_shift(shift: str, folder: Path, **options: Any) -> dict[str, Any]:
    return run(folder, shift=shift, level=5, algorithm="fedavg", **options)


@pytest.mark.parametrize("engine", ["processes", "stacked"])
@pytest.mark.parametrize("algorithm", ["flux", "oracle"])
def test_engines_agree(engine: str, algorithm: str, usual: dict[str, Any], tmp_path: Path) -> None:
    loop = usual if algorithm == "flux" else run(tmp_path / "loop", algorithm=algorithm)
    other = run(tmp_path / engine, algorithm=algorithm, engine=engine)
    assert other["engine"] == engine
    assert other["unseen_per_client"] == pytest.approx(loop["unseen_per_client"], abs=3)  # one example
    assert [line["cluster"] for line in other["unseen_placements"] or ()] == [
        line["cluster"] for line in loop["unseen_placements"] or ()
    ]
    if engine == "processes":
        assert other["unseen_per_client"] == loop["unseen_per_client"]
        assert other["unseen_placements"] == loop["unseen_placements"]


@pytest.mark.parametrize("algorithm", ["flux", "flux-soft", "flux-dynamic", "fedavg"])
def test_training_is_what_it_is_without_them(algorithm: str, tmp_path: Path) -> None:
    """Clients that draw their rows hold the same beside held-out ones, so that every number must be the same."""
    told = {"algorithm": algorithm, "samples_per_client": 60, "participation": 0.7}
    beside, alone = (run(tmp_path / str(n), **told, unseen=n) for n in (UNSEEN, 0))
    for key in ("known_per_client", "test_per_client", "assignment", "test_placements", "truth", "bytes_up", "why"):
        assert beside[key] == alone[key], key
    models = [(tmp_path / str(n) / "models.safetensors").read_bytes() for n in (UNSEEN, 0)]
    assert models[0] == models[1]
    assert len(beside["unseen_per_client"]) == UNSEEN
    assert {alone[key] for key in alone if key.startswith("unseen")} == {None}


def test_nobody_reaches_them_before_the_end_nor_sees_a_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[str, frozenset[int], int, bool]] = []
    for name in ("train", "ask", "evaluate"):
        original = getattr(SimulatedEngine, name)

        def note(self: Any, *told: Any, name: str = name, original: Any = original, **more: Any) -> Any:
            given = next(one for one in told if isinstance(one, Cohort | Held))
            cohort = given if isinstance(given, Cohort) else given.cohort
            labelled = isinstance(given, Cohort) or given.labelled
            met.append((name, frozenset(cohort.ids), len(cohort.federation), labelled))
            with pytest.raises(FedfluxError, match="may not read the true clusters"):
                _ = cohort.federation.truth
            return original(self, *told, **more)

        monkeypatch.setattr(SimulatedEngine, name, note)
    run(tmp_path / "run")
    later = [one for one in met if one[2] != CLIENTS]
    assert later == met[-2:]  # the very last: once for features, once for the score
    unseen = frozenset(range(CLIENTS, CLIENTS + UNSEEN))
    assert later == [("ask", unseen, CLIENTS + UNSEEN, False), ("evaluate", unseen, CLIENTS + UNSEEN, True)]


@pytest.mark.parametrize("algorithm", ["local", "pfedme"])
def test_a_method_without_an_answer_has_no_score(algorithm: str, tmp_path: Path) -> None:
    result = run(tmp_path / "run", algorithm=algorithm)
    assert result["unseen"] is result["unseen_per_client"] is result["unseen_placements"] is None
    assert len(result["unseen_truth"]) == UNSEEN
    display_run.show_run(result)


def test_a_run_that_stops_early_asks_nobody(tmp_path: Path) -> None:
    result = run(tmp_path / "run", until="clustered")
    assert (result["known"], result["test"], result["unseen"]) == (None, None, None)


def test_under_drift_they_hold_what_the_test_phase_meets(tmp_path: Path) -> None:
    told = {"drift": "after:1+test", "rounds": 4, "cluster_round": 2}
    result = run(tmp_path / "run", **told)
    population, _ = build_population(make_config({**SETTINGS, **told}))
    met = population.everyone.at_test(4)
    assert met.truth is not None
    assert result["unseen_truth"] == met.truth[CLIENTS:].tolist()
    before = population.everyone.truth
    assert before is not None
    assert result["unseen_truth"] != before[CLIENTS:].tolist()


@pytest.mark.parametrize("more", [{"quantity_skew": 0.5}, {"duplicate": 2}, {"data_fraction": 0.5}, {"finetune": 1}])
def test_other_ways_to_deal(more: dict[str, Any], tmp_path: Path) -> None:
    result = run(tmp_path / "run", **more)
    assert len(result["unseen_per_client"]) == UNSEEN
    assert all(score is not None for score in result["unseen_per_client"])


def test_a_resumed_run_gives_the_same(usual: dict[str, Any], tmp_path: Path) -> None:
    original = session.cohort_of
    with pytest.MonkeyPatch.context() as patch:

        def stop(*told: Any) -> Any:
            cohort = original(*told)
            if cohort.round == 3:
                raise KeyboardInterrupt
            return cohort

        patch.setattr(session, "cohort_of", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run")
    resumed = fedflux.run(out=tmp_path / "run", resume=True)
    for key in (key for key in usual if key.startswith("unseen")):
        assert resumed[key] == usual[key], key
    with pytest.raises(FedfluxError, match="cannot be resumed: it was begun with unseen 3, not 2"):
        run(tmp_path / "run", unseen=2, resume=True)


def test_it_counts_where_it_is_asked_for() -> None:
    without, told = make_config({"preset": "0.1"}), make_config({"preset": "0.1", "unseen": 2})
    assert "unseen" not in determines(without)
    assert identity(without, "data") == "bfae508f1ad1e90bd088f39d56b86b67"  # as before there was such a setting
    assert identity(told, "data") != identity(without, "data")
    assert group(told, "data") == f"{group(without, 'data')}, unseen 2"


# data with clients of its own


def strangers() -> tuple[list[Client], list[Client]]:
    """Six clients in two clusters (the last three hold negatives), and two more in the test part alone, one of each."""
    negative = [False] * 3 + [True] * 3
    train = [make_client(k, 90, negative=flag) for k, flag in enumerate(negative)]
    test = [make_client(100 + k, 60, negative=flag) for k, flag in enumerate([*negative, False, True])]
    return train, test


def write_pictures(root: Path) -> Path:
    """The same as image files; clients are letters, so that those in test/ alone lie between the others."""
    train, test = strangers()
    for part, clients, letters in (("train", train, "bcdfgh"), ("test", test, "bcdfghae")):
        for letter, (x, y) in zip(letters, clients, strict=True):
            for number, (image, label) in enumerate(zip(x, y, strict=True)):
                folder = root / part / letter / f"class {label}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray((255 * image[0]).astype(np.uint8)).save(folder / f"{number}.png")
    return root


def test_npz_clients_in_the_test_part_alone(tmp_path: Path, call: Call) -> None:
    data = save_clients(tmp_path / "clients.npz", *strangers())
    result = run_npz(data, tmp_path / "run", store="none", lr=0.2)
    assert (len(result["known_per_client"]), result["clusters_found"]) == (6, 2)
    assert result["unseen_names"] == ["6", "7"]
    assert result["unseen_truth"] is None
    assert [line["client"] for line in result["unseen_placements"]] == [6, 7]
    placed = [line["cluster"] for line in result["unseen_placements"]]
    assert placed == [result["assignment"][0], result["assignment"][3]]
    assert result["unseen"] > 90
    flags = ("--shift", "none", "--rounds", "3", "--cluster-round", "2", "--device", "cpu", "--lr", "0.2")
    where = ("--dataset", "npz", "--data-dir", str(data), "--out", str(tmp_path / "again"), "--json")
    assert call("run", *where, *flags).json()["unseen_per_client"] == result["unseen_per_client"]


def test_the_command_line_shows_image_folders_with_clients_of_test_alone(tmp_path: Path, call: Call) -> None:
    data = write_pictures(tmp_path / "images")
    flags = (
        "--shift",
        "none",
        "--rounds",
        "3",
        "--cluster-round",
        "2",
        "--device",
        "cpu",
        "--lr",
        "0.2",
        "--out",
        "run",
    )
    shown = call("run", "--dataset", "folder", "--data-dir", str(data), *flags)
    assert shown.status == 0, shown.stderr
    assert "unseen clients (held out)" in shown.stdout
    result = read_json(tmp_path / "run" / "result.json")
    assert result["unseen_names"] == ["a", "e"]
    assert [line["cluster"] for line in result["unseen_placements"]] == [
        result["assignment"][0], result["assignment"][3]
    ]  # fmt: skip
    assert result["unseen"] > 90


def test_own_clients_are_held_out_by_the_seed(tmp_path: Path) -> None:
    data = save_clients(tmp_path / "clients.npz", *strangers())
    result = run_npz(data, tmp_path / "run", unseen=2)
    assert len(result["known_per_client"]) == 4
    assert result["unseen_names"][2:] == ["6", "7"]
    drawn = [int(name) for name in result["unseen_names"][:2]]
    assert len(set(drawn)) == 2
    assert set(drawn) < set(range(6))
    assert len(result["unseen_per_client"]) == 4
    assert read_json(tmp_path / "run" / "config.json")["clients"] == 4
    assert fedflux.run(out=tmp_path / "run", resume=True)["unseen"] == result["unseen"]


def test_features_cannot_show_every_shift(tmp_path: Path) -> None:
    data = save_clients(tmp_path / "clients.npz", *strangers())
    result = run_npz(data, tmp_path / "run", shift="pygx", level=1)
    assert (result["test"], result["unseen"], result["unseen_names"]) == (None, None, ["6", "7"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--shift", "pygx", "--unseen", "2"), "--unseen 2: pygx has no test phase: features cannot show P(Y|X)"),
        (("--shift", "pygx+py", "--unseen", "2"), "--unseen 2: pygx+py has no test phase"),
        (("--unseen", "-1"), "-1 unseen clients: give 0 or more"),
        (("--unseen", "5000"), "5010 clients but only"),
    ],
)
def test_what_is_refused_in_one_line(flags: tuple[str, ...], says: str, call: Call) -> None:
    answer = call("run", *flags)
    assert answer.status == 2
    assert says in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_nodes_cannot_be_held_out(tmp_path: Path) -> None:
    config = make_config({"unseen": 2, "out": tmp_path / "run"})
    with pytest.raises(FedfluxError, match="unseen = 2: nodes cannot be held out"):
        run_deployed(config, None)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


# what others make of it


def test_comparisons_pages_and_tables_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"clients": 4, "unseen": 2, "rounds": 2, "cluster_round": 1, "device": "cpu"}
    store = Store(tmp_path)
    answer = compare(plan(told, ["fedavg", "local"], ["px"], [3], [42, 43], tmp_path), store, 1, "fedavg")
    fedavg, local = answer["overall"]
    results = [cell["result"] for cell in store.cells() if cell["algorithm"] == "fedavg"]
    assert fedavg["unseen_mean"] == pytest.approx(np.mean([result["unseen"] for result in results]))
    assert fedavg["unseen_worst_mean"] == pytest.approx(np.mean([result["unseen_worst"] for result in results]))
    assert local["unseen_mean"] is None
    monkeypatch.setattr(display.stdout, "width", 200)
    display.show_comparison(answer)
    assert "unseen %" in capsys.readouterr().out
    export_store(tmp_path, tmp_path / "cells.csv")
    rows = list(csv.DictReader((tmp_path / "cells.csv").open()))
    assert sorted(row["unseen"] for row in rows) == ["", "", *sorted(str(result["unseen"]) for result in results)]
    page = collect([tmp_path])
    shown = {run["row"]["algorithm"]: run for run in page["runs"]}
    assert shown["local"]["scores"]["unseen"] is None
    assert shown["fedavg"]["scores"]["unseen"] == pytest.approx(shown["fedavg"]["row"]["unseen"])
    tables = [path.read_text() for path in export_all(page, tmp_path / "export") if path.name.endswith("by-shift.tex")]
    assert [text for text in tables if "Unseen & worst" in text] == tables != []


def test_without_them_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display.stdout, "width", 200)
    told = {"clients": 4, "rounds": 1, "cluster_round": 1, "device": "cpu"}
    answer = compare(plan(told, ["fedavg"], ["px"], [3], [42], tmp_path), Store(tmp_path), 1, "fedavg")
    display.show_comparison(answer)
    display_run.show_run(read_json(next(tmp_path.glob("*/result.json"))))
    printed = capsys.readouterr().out
    assert "unseen %" not in printed
    assert "held out" not in printed
    tables = [
        path.read_text() for path in export_all(collect([tmp_path]), tmp_path / "export") if path.suffix == ".tex"
    ]
    assert all("Unseen" not in text for text in tables)


def test_a_run_says_how_many_hold_what_nobody_trained_on(
    usual: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    display_run.show_run({**usual, "truth": [0, 1, 0, 1, 1, 0], "unseen_truth": [1, 2, None]})
    assert "held out: 3 clients, 1 of them with a distribution that no training client has" in capsys.readouterr().out
