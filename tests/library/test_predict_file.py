"""`fedflux predict`: new clients of a file, answered in a file; whatever does not fit is one line."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_cli import Call, call
from tests.library.damage import make_run
from tests.runs.making import make_client

import fedflux

__all__ = ["call"]

X = np.concatenate([make_client(60, 9)[0], make_client(61, 9, negative=True)[0]])
Y = np.concatenate([make_client(60, 9)[1], make_client(61, 9)[1]])
OWNER = np.array(["north"] * 9 + ["south"] * 9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def predict(call: Call, run: Path, data: Path, *more: str) -> dict[str, Any]:
    status, out, err = call("predict", str(run), "--data", str(data), *more, "--json")
    assert status == 0, err
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def test_clients_are_placed_and_their_records_answered(call: Call, run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=X, client=OWNER)
    answer = predict(call, run, tmp_path / "new.npz")
    assert answer["path"] == str(tmp_path / "new-predictions.npz")
    trained = fedflux.load(run)
    parts = {"north": X[:9], "south": X[9:]}
    placed, expected = trained.assign(parts), trained.predict(parts)
    assert isinstance(expected, dict)
    assert [one["name"] for one in answer["clients"]] == ["north", "south"]
    for k, one in enumerate(answer["clients"]):
        assert one.keys() >= {"name", "cluster", "posterior", "novel", "score"}
        assert one["cluster"] == placed.cluster[k]
        assert one["posterior"] == placed.posterior[k].tolist()
        assert (one["records"], one["accuracy"]) == (9, None)
    assert answer["clients"][0]["cluster"] != answer["clients"][1]["cluster"]
    with np.load(answer["path"]) as found:
        np.testing.assert_array_equal(found["p"], np.concatenate(list(expected.values())))
        assert found["client"].tolist() == OWNER.tolist()
        assert found["row"].tolist() == [*range(9), *range(9)]
        assert found["answer"].tolist() == found["class_names"][found["p"].argmax(axis=1)].tolist()


def test_answers_as_csv(call: Call, run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=X)
    answer = predict(call, run, tmp_path / "new.npz", "--out", str(tmp_path / "answers.csv"))
    with (tmp_path / "answers.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["client", "row", "answer", "p(0)", "p(1)", "p(2)"]
    assert [one["name"] for one in answer["clients"]] == ["new"]
    expected = np.asarray(fedflux.load(run).predict(X))
    assert [row[:3] for row in rows[1:]] == [["new", str(k), str(one.argmax())] for k, one in enumerate(expected)]
    np.testing.assert_allclose(np.array([row[3:] for row in rows[1:]], dtype=float), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.str_])
def test_labels_only_score(kind: Any, call: Call, run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=X, client=OWNER, y=Y.astype(kind))
    np.savez(tmp_path / "bare.npz", x=X, client=OWNER)
    labelled = predict(call, run, tmp_path / "new.npz")["clients"]
    bare = predict(call, run, tmp_path / "bare.npz")["clients"]
    expected = fedflux.load(run).predict({"north": X[:9], "south": X[9:]})
    for one, other, y in zip(labelled, bare, (Y[:9], Y[9:]), strict=True):
        right = 100 * (np.asarray(expected[one["name"]]).argmax(axis=1) == y).mean()
        assert one == {**other, "accuracy": pytest.approx(right)}


def test_groups_make_clients_less_certain(call: Call, run: Path, tmp_path: Path) -> None:
    mixed = np.concatenate([X[:3], X[9:11]])
    np.savez(tmp_path / "alone.npz", x=mixed)
    np.savez(tmp_path / "grouped.npz", x=mixed, group=np.zeros(5, dtype=np.int64))
    alone, grouped = (predict(call, run, tmp_path / f"{name}.npz")["clients"][0] for name in ("alone", "grouped"))
    assert max(grouped["posterior"]) <= max(alone["posterior"])


BROKEN = np.where(np.arange(18)[:, None, None, None] == 3, np.nan, X)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"x": X[:, :, :4]}, "client 'new': inputs of shape (1, 4, 6), but the run was trained on (1, 6, 6)"),
    "flat": ({"x": X.reshape(18, -1)}, "client 'new': inputs of shape (36,), but the run was trained on (1, 6, 6)"),
    "NaN": ({"x": BROKEN, "client": OWNER}, "client 'north': record 3 holds NaN or infinite values"),
    "no x": ({"y": Y}, "'x' is missing; found y"),
    "lengths": ({"x": X, "client": OWNER[:3]}, "18 records in 'x' but 3 in 'client'"),
    "misspelt": ({"x": X, "clients": OWNER}, "unknown key 'clients': did you mean 'client'?"),
    "nothing": ({"x": X[:0]}, "client 'new' holds no record"),
    "text": ({"x": np.array([["a", "b"]])}, "holds <U1; give numbers"),
    "label": ({"x": X, "y": ["cat"] * 18}, "client 'new': label cat is none of the run's classes: 0, 1, 2"),
    "label too large": ({"x": X, "y": Y + 1}, "client 'new': label 3 is none of the run's classes: 0, 1, 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(case: str, call: Call, run: Path, tmp_path: Path) -> None:
    arrays, words = BAD[case]
    np.savez(tmp_path / "new.npz", **arrays)
    before = sorted(path.name for path in tmp_path.iterdir())
    status, out, err = call("predict", str(run), "--data", str(tmp_path / "new.npz"))
    assert status == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("data", "out", "words"),
    [
        ("new.npz", "answers.txt", "answers.txt: predictions go into a .npz or a .csv file"),
        ("new.npz", "nowhere/answers.csv", "there is no folder"),
        ("missing.npz", None, "missing.npz does not exist; give a .npz or .csv file, or a folder of images"),
        ("cut.npz", None, "not a readable .npz file"),
    ],
)
def test_files_that_cannot_be_are_said(
    data: str, out: str | None, words: str, call: Call, run: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "new.npz", x=X)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "new.npz").read_bytes()[:200])
    more = [] if out is None else ["--out", str(tmp_path / out)]
    status, _, err = call("predict", str(run), "--data", str(tmp_path / data), *more)
    assert (status, len(err.strip().splitlines())) == (2, 1)
    assert words in err
