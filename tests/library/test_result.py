"""What a run from Python comes to: its tables and pictures, who listens to it, and what is left on disk."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from tests.runs.making import make_client
from torch import nn

import fedflux
from fedflux import EarlyStopping, FedfluxError, Progress
from fedflux.library.plot import Picture

NAMES = ("Łódź", "north", "south", "$east$")
ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"rounds": 3, "cluster_round": 1, "device": "cpu", "progress": False, "lr": 0.05}

ONE: dict[str, Any] = {"rounds": 1, "device": "cpu", "progress": False}


def own_federation() -> fedflux.Federation:
    clients = {name: make_client(k, 100, negative=k % 2 == 1) for k, name in enumerate(NAMES)}
    return fedflux.Federation.from_clients(clients, scale="none")


def right(y: Any, p: Any) -> float:
    return float((p.argmax(axis=1) == y).mean())


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fedflux.Result:
    out = tmp_path_factory.mktemp("made") / "run"
    return fedflux.run(own_federation(), metrics={"right": right}, out=out, store="none", **SETTINGS)


def test_the_table_of_clients_is_by_name_and_holds_metrics_of_ones_own(result: fedflux.Result) -> None:
    table = result.clients
    assert sorted(table.index) == sorted(NAMES)
    assert table.loc["north"].known == result["known_per_client"][list(table.index).index("north")]
    np.testing.assert_allclose(100 * table["right known"], table["known"])
    np.testing.assert_allclose(100 * table["right test"], table["test"])
    assert result.test == pytest.approx(table["test"].mean())
    assert table["cluster"].tolist() == result["assignment"]
    assert result.known == pytest.approx(table["known"].mean())
    assert result.worst == table["known"].min()
    assert result.unseen is None


def test_the_table_of_rounds_says_how_it_went(result: fedflux.Result) -> None:
    table = result.rounds
    assert table.index.tolist() == [1, 2, 3]
    assert table["validation"].between(0, 100).all()
    assert 0 <= result["bytes_up"] - table["bytes_up"].sum() < 1000  # what is asked after the last round
    assert "2 clusters" in str(table.loc[1, "events"])


def test_a_notebook_shows_the_verdict_the_table_and_the_picture(result: fedflux.Result) -> None:
    shown = result._repr_html_()
    assert str(result["verdict"]) in shown
    assert all(f"<th>{name}</th>" in shown for name in NAMES)
    north = result.clients.loc["north"]
    assert f"<td>{north.known:.1f}</td>" in shown
    assert f"<td>{north['right known']:.3g}</td>" in shown
    before = pyplot.get_fignums()
    figure = result.plot()
    assert isinstance(figure, Picture)
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    curve = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(curve, result.rounds["validation"])
    bars = sorted(bar.get_height() for bar in figure.axes[1].containers[0])
    np.testing.assert_allclose(bars, sorted(result.clients["known"]))
    assert pyplot.get_fignums() == before


def test_its_figures_are_json_and_its_page_is_one_file(result: fedflux.Result, tmp_path: Path) -> None:
    assert json.loads(json.dumps(result.to_dict())) == json.loads((result.folder / "result.json").read_text())
    assert dict(result) == result.to_dict()
    page = result.report(tmp_path / "page.html")
    assert page.parent == tmp_path
    assert "Łódź" in page.read_text(encoding="utf-8")


def test_a_model_that_was_handed_in_is_known_to_the_result() -> None:
    def only_here(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, classes))

    result = fedflux.run(own_federation(), model=only_here, algorithm="fedavg", **ONE)
    assert np.asarray(result.load().predict(make_client(9, 5)[0])).shape == (5, 3)
    with pytest.raises(FedfluxError, match=r"only_here, which has no import path: load\(…, model=only_here\)"):
        fedflux.load(result.folder)


def test_without_a_place_nothing_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedflux.run(own_federation(), algorithm="local", **ONE)
    folder = result.folder
    assert folder.exists()
    del result
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_all_listeners_hear_of_all_rounds_and_any_of_them_ends_it() -> None:
    heard: list[Progress] = []

    def third(progress: Progress) -> bool:
        return progress.round == 3

    def number(progress: Progress) -> int:
        return progress.round  # a number is no answer, not even 1

    result = fedflux.run(own_federation(), on_round=[third, number, heard.append], **{**SETTINGS, "rounds": 5})
    assert [one.round for one in heard] == [1, 2, 3]
    assert result["rounds"] == 3
    assert result["stopped_early"]
    assert heard[-1].accuracies == tuple(result.rounds["validation"])
    assert heard[-1].clusters == result["clusters_found"]


@pytest.mark.parametrize(
    ("told", "settings", "stops"),
    [
        ([50, 60, 60, 60], {"patience": 2}, True),
        ([50, 60, 60], {"patience": 2}, False),
        ([50, 60, 55, 61], {"patience": 2}, False),
        ([50, 50.4, 50.8, 51.2], {"patience": 3, "least": 0.5}, False),
        ([50, 50.4, 50.8, 51.2], {"patience": 2, "least": 0.5}, False),
        ([50, 50.4, 50.4, 50.4], {"patience": 3, "least": 0.5}, True),
        ([], {"patience": 1}, False),
    ],
)
def test_early_stopping_waits_for_growth(told: list[float], settings: dict[str, Any], stops: bool) -> None:
    assert EarlyStopping(**settings)(Progress(len(told), 10, 0.0, 1, accuracies=tuple(told))) is stops


def test_patience_of_nothing_is_refused() -> None:
    with pytest.raises(FedfluxError, match=r"EarlyStopping\(patience=0\): give 1 or more"):
        EarlyStopping(0)


ENDED = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import fedflux
run = dict(dataset="digits", clients=5, level=3, device="cpu", progress=False, store="none", rounds=40, lr=0.2)
print(fedflux.run(**run, on_round=fedflux.EarlyStopping(6, least=1), out=sys.argv[1], resume=True)["rounds"])
"""


@pytest.mark.slow
def test_a_run_that_is_killed_stops_early_in_the_same_round(tmp_path: Path) -> None:
    start = [sys.executable, "-c", ENDED]
    told: dict[str, Any] = {
        "env": {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        "stdout": subprocess.PIPE,
        "text": True,
    }
    whole = int(subprocess.run([*start, str(tmp_path / "whole")], check=True, timeout=120, **told).stdout)
    assert 6 < whole < 40
    running = subprocess.Popen([*start, str(tmp_path / "cut")], **told)
    log, deadline = tmp_path / "cut" / "rounds.jsonl", time.monotonic() + 60
    while running.poll() is None and time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= 3:
            break
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert not (tmp_path / "cut" / "result.json").exists(), "it was killed too late to show anything"
    assert int(subprocess.run([*start, str(tmp_path / "cut")], check=True, timeout=120, **told).stdout) == whole


anything: Any = fedflux
"""What a type checker would not let through."""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda fed: anything.run({"north": make_client(0, 9)}), "dict is no federation: Federation.from_clients"),
        (lambda fed: anything.compare({"north": make_client(0, 9)}), "tuple is no federation"),
        (lambda fed: anything.compare([fed]), "give one, or a mapping from names to several"),
        (lambda fed: anything.run(fed, on_round=3), "on_round: give a function, or a list of functions"),
        (lambda fed: anything.run(fed, on_round=[print, 3]), "on_round: give a function, or a list of functions"),
        (lambda fed: anything.run(fed, metrics=[right]), "metrics: give functions by name"),
        (lambda fed: anything.run(fed, metrics={"right": 1}), "metrics: give functions by name"),
        (lambda fed: anything.run(fed, **ONE, metrics={"all": lambda y, p: p}), "metric 'all' fails: TypeError"),
    ],
)
def test_what_is_none_of_these_is_refused_in_one_line(call: Any, words: str) -> None:
    with pytest.raises(FedfluxError, match=words) as told:
        call(own_federation())
    assert "\n" not in str(told.value)
