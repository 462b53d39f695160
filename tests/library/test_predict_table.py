"""`fedflux predict` of a table: columns are found by name, whatever order they are in."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.cli.test_cli import Call, call

import fedflux

__all__ = ["call"]

FEATURES = ("age", "pressure", "sugar")
SETTINGS: dict[str, Any] = {"rounds": 2, "cluster_round": 1, "lr": 0.05, "device": "cpu", "store": "none"}


def records(seed: int, count: int = 30) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Numbers whose sizes differ much, and what they mean."""
    rng = np.random.default_rng(seed)
    sick = rng.random(count) < 0.5
    x = np.array([50.0, 120.0, 0.8]) + rng.normal(size=(count, 3)) * [9, 12, 0.1] + sick[:, None] * [15, 30, 0.4]
    return x.round(4), ["ill" if one else "well" for one in sick]


def write(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    rows = [[f"clinic{k}", label, *x.tolist()] for k in range(3) for x, label in zip(*records(k), strict=True)]
    data = write(folder / "data.csv", ["client", "label", *FEATURES], rows)
    fedflux.run(dataset="csv", data_dir=str(data), out=folder / "run", **SETTINGS)
    return folder / "run"


def predict(call: Call, run: Path, data: Path) -> tuple[dict[str, Any], Any]:
    status, out, err = call("predict", str(run), "--data", str(data), "--json")
    assert status == 0, err
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    with np.load(answer["path"]) as found:
        return answer, found["p"]


def test_columns_are_found_by_name(call: Call, run: Path, tmp_path: Path) -> None:
    x, labels = records(9)
    expected = np.asarray(fedflux.load(run).predict(x))
    _, plain = predict(call, run, write(tmp_path / "plain.csv", FEATURES, x.tolist()))
    np.testing.assert_array_equal(plain, expected)
    mixed = [[row[2], label, row[0], "new clinic", row[1]] for row, label in zip(x.tolist(), labels, strict=True)]
    names = ["sugar", "label", "age", "client", "pressure"]
    answer, found = predict(call, run, write(tmp_path / "mixed.csv", names, mixed))
    np.testing.assert_array_equal(found, expected)
    (one,) = answer["clients"]
    right = np.array(answer["class_names"])[expected.argmax(axis=1)] == np.array(labels)
    assert (one["name"], one["records"], one["accuracy"]) == ("new clinic", 30, pytest.approx(100 * right.mean()))
    assert right.mean() > 0.7


@pytest.mark.parametrize(
    ("names", "rows", "words"),
    [
        (["age", "sugar"], [[50, 1]], "column 'pressure', which the run was trained on, is missing"),
        ([*FEATURES, "height"], [[50, 120, 1, 180]], "the run was not trained on column 'height'; leave it out"),
        (FEATURES, [[50, 120, 1], [50, "", 1]], "line 3: column 'pressure' is empty; fill it or drop the line"),
        (FEATURES, [[50, "nan", 1]], "column 'pressure' holds nan; fill it or drop the line"),
        (FEATURES, [[50, "high", 1]], "column 'pressure' holds text ('high')"),
        (FEATURES, [[50, 120]], "2 cells, but the first line names 3 columns"),
        ([*FEATURES, "label"], [[50, 120, 1, "dead"]], "label dead is none of the run's classes: ill, well"),
        (FEATURES, [], "holds no record below its first line"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(
    names: Sequence[str], rows: Sequence[Sequence[Any]], words: str, call: Call, run: Path, tmp_path: Path
) -> None:
    data = write(tmp_path / "new.csv", names, rows)
    status, out, err = call("predict", str(run), "--data", str(data))
    assert (status, out, len(err.strip().splitlines())) == (2, "", 1)
    assert words in err
    assert not list(tmp_path.glob("*predictions*"))


def test_tables_in_memory_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    """As a file's are: in any order, and none may lack; true and false beside numbers are numbers."""

    def table(seed: int) -> pd.DataFrame:
        return pd.DataFrame(records(seed)[0], columns=[*FEATURES]).assign(smoker=[True, False] * 15)

    clients = {f"clinic{k}": (table(k), records(k)[1]) for k in range(3)}
    run = fedflux.run(fedflux.Federation.from_clients(clients), out=tmp_path / "run", progress=False, **SETTINGS).load()
    new = table(7)
    turned = new[["smoker", "sugar", "age", "pressure"]]
    np.testing.assert_array_equal(run.predict(new), run.predict(turned))
    np.testing.assert_array_equal(run.predict(new), run.predict(new.to_numpy(np.float64)))
    with pytest.raises(fedflux.FedfluxError, match="'new': column 'age', which the run was trained on, is missing"):
        run.predict(new.drop(columns="age"))
    with pytest.raises(fedflux.FedfluxError, match="'new': the run was not trained on column 'height'; leave it out"):
        run.assign(new.assign(height=1.8))
