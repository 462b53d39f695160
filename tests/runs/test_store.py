"""The store holds every finished cell once, whoever fills it, and takes in stores filled elsewhere."""

import json
import multiprocessing
import os
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.runs.making import read_rounds

import fedflux
from fedflux.errors import FedfluxError
from fedflux.runs.storage.store import COLUMNS, Store, merge_stores

ROUNDS = [
    {"round": r, "validation": {"0": 50.0 + r, "1": None}, "bytes_up": {"0": 5}, "bytes_down": {"0": 7},
     "seconds": {"training": 0.5}, "events": ["x"]}
    for r in (1, 2)
]  # fmt: skip


def cell(identity: str, **told: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config and the result of a made-up run."""
    config = {
        "identity": identity, "dataset": "digits", "shift": "px", "level": 3, "algorithm": "flux", "label": "flux",
        "seed": 42, "clients": 10, "group": "digits, 10 clients", "revision": 1, "checksum": "c", "command": "run …",
        "ran_on": {"engine": "loop", "device": "cpu", "precision": "fp32", "fedflux": "0"},
    }  # fmt: skip
    scores = (
        "known", "test", "known_worst", "test_worst", "known_quantile10", "test_quantile10", "clusters_found",
        "clusters_true", "ari", "nmi", "pairs_right", "cluster_round", "seconds", "bytes_up", "bytes_down",
    )  # fmt: skip
    return config, {**dict.fromkeys(scores, 1.5), "rounds": 2, "run_dir": f"runs/{identity}", **told}


def test_a_finished_run_enters_the_store_beside_its_folder(tmp_path: Path) -> None:
    result = fedflux.run(clients=3, rounds=2, cluster_round=1, out=tmp_path / "run")
    found = Store(tmp_path).cells()
    assert len(found) == 1
    assert found[0]["result"] == result
    assert (found[0]["known"], found[0]["shift"], found[0]["engine"]) == (result["known"], "px", "loop")
    with sqlite3.connect(tmp_path / "fedflux.sqlite") as connection:
        lines = connection.execute("SELECT round, bytes_up, record FROM rounds ORDER BY round").fetchall()
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    records = read_rounds(tmp_path / "run")
    assert [json.loads(line[2]) for line in lines] == records
    assert [line[:2] for line in lines] == [(r["round"], sum(r["bytes_up"].values())) for r in records]


def test_a_cell_enters_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    assert store.add(*cell("a", known=1.0), ROUNDS)
    assert not store.add(*cell("a", known=2.0), ROUNDS)
    assert store.add(*cell("b"), ROUNDS)
    assert len(store) == 2
    found = store.get("a")
    assert found is not None
    assert found["known"] == 1.0
    assert store.get("c") is None
    assert store.rounds("a") == list(ROUNDS)
    assert store.rounds("c") == []


def test_a_run_that_could_not_enter_does_so_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", full)
        with pytest.raises(RuntimeError, match=r"finished and kept in .* disk is full \(--resume tries again\)"):
            fedflux.run(clients=3, rounds=1, out=tmp_path / "run")
    assert len(Store(tmp_path)) == 0
    fedflux.run(out=tmp_path / "run", resume=True)
    assert len(Store(tmp_path)) == 1


def test_no_store_where_none_is_wanted(tmp_path: Path) -> None:
    fedflux.run(clients=3, rounds=1, out=tmp_path / "run", store="none")
    assert os.listdir(tmp_path) == ["run"]


def fill(path: str, names: list[str], start: Any) -> None:
    start.wait()
    store = Store(Path(path))
    for name in names:
        store.add(*cell(name), ROUNDS)


def test_two_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    shared = [f"cell{k}" for k in range(60)]
    alone = [[f"{who}{k}" for k in range(20)] for who in "xy"]
    workers = [context.Process(target=fill, args=(str(tmp_path / "s.sqlite"), [*shared, *own], start)) for own in alone]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    found = [c["identity"] for c in Store(tmp_path / "s.sqlite").cells()]
    assert sorted(found) == sorted([*shared, *alone[0], *alone[1]])
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM rounds").fetchone() == (2 * 100,)


def test_what_a_run_came_to_wins_over_what_it_was_told(tmp_path: Path) -> None:
    config, result = cell("a")
    told = {name: f"{name} told" for name in COLUMNS if name not in ("identity", "config", "result")}
    came = {name: f"{name} came" for name in told if name not in ("grouped", "finished")}
    store = Store(tmp_path / "s.sqlite")
    store.add({**told, **config, "cluster_round": "auto"}, {**result, **came}, ROUNDS)
    (found,) = store.cells()
    assert {name: found[name] for name in came} == came


def test_a_store_that_could_not_be_made_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # nothing can be written to any file
    try:
        with pytest.raises(FedfluxError, match=r"cannot be used as a store: .*; name another --store"):
            Store(tmp_path / "s.sqlite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def other_database(path: Path, version: int = 0, table: str = "notes (text)") -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE {table}")
        connection.execute(f"PRAGMA user_version={version}")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("not a database, and long enough to be looked at" * 99), "is not a database"),
        (other_database, "a database of another program"),
        (lambda path: other_database(path, version=1), "a database of another program"),
        (lambda path: other_database(path, version=1, table="cells (identity)"), "a database of another program"),
        (lambda path: other_database(path, version=7), "a database of another program"),
    ],
)
def test_a_file_of_something_else_is_left_alone(make: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(FedfluxError, match=words):
        Store(path)
    with pytest.raises(FedfluxError):
        merge_stores(tmp_path / "good.sqlite", [path])
    assert os.listdir(tmp_path) == ["s.sqlite"]
    assert path.read_bytes() == before


def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "s.sqlite")
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("PRAGMA user_version=9")
    with pytest.raises(FedfluxError, match="store of version 9"):
        Store(tmp_path / "s.sqlite")
