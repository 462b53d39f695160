"""Stores take in others and become CSV: all or nothing, and what is only read stays as it is."""

import csv
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.test_store import ROUNDS, cell, other_database

from fedflux.errors import FedfluxError
from fedflux.runs.storage.store import Store, export_store, merge_stores


def fill(path: Path, **cells: float) -> Store:
    """A store with a cell of each name and accuracy."""
    store = Store(path)
    for name, known in cells.items():
        store.add(*cell(name, known=known), ROUNDS)
    return store


def test_stores_merge(tmp_path: Path) -> None:
    here, there = fill(tmp_path / "here.sqlite", a=1.0, b=2.0), fill(tmp_path / "there.sqlite", b=2.0, c=3.0, a=1.25)
    answer = merge_stores(here.path, [there.path])
    assert answer == {"cells": 3, "path": str(here.path), "added": 1, "known": 2, "different": 1}
    assert [(c["identity"], c["known"]) for c in here.cells()] == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert merge_stores(here.path, [there.path])["added"] == 0
    with sqlite3.connect(here.path) as connection:
        assert connection.execute("SELECT count(*) FROM rounds").fetchone() == (6,)


def test_several_stores_merge_into_a_new_one(tmp_path: Path) -> None:
    one, two = fill(tmp_path / "one" / "fedflux.sqlite", a=1.0, b=2.0), fill(tmp_path / "two.sqlite", b=9.0, c=3.0)
    answer = merge_stores(tmp_path / "new", [tmp_path / "one", two.path, one.path])
    path = tmp_path / "new" / "fedflux.sqlite"
    assert answer == {"cells": 3, "path": str(path), "added": 3, "known": 3, "different": 1}
    assert [(c["identity"], c["known"]) for c in Store(path).cells()] == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM rounds").fetchone() == (6,)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "holds no store"),
        (lambda path: path.write_bytes(b""), "is empty and no store"),
        (lambda path: path.write_bytes(b"no database" * 999), "cannot be read as a store"),
        (lambda path: other_database(path, version=1), "a database of another program"),
    ],
)
def test_one_bad_store_changes_nothing(make: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    good, bad = fill(tmp_path / "good.sqlite", a=1.0), tmp_path / "bad.sqlite"
    here = fill(tmp_path / "here.sqlite", b=2.0)
    make(bad)
    before = bad.read_bytes() if bad.exists() else None
    for target in (here.path, tmp_path / "new"):
        with pytest.raises(FedfluxError, match=words):
            merge_stores(target, [good.path, bad])
    assert [c["identity"] for c in here.cells()] == ["b"]
    assert not (tmp_path / "new").exists()
    with pytest.raises(FedfluxError, match=words):
        export_store(bad, tmp_path / "cells.csv")
    assert not (tmp_path / "cells.csv").exists()
    assert (bad.read_bytes() if bad.exists() else None) == before


def test_a_store_is_not_merged_into_itself(tmp_path: Path) -> None:
    here = fill(tmp_path / "fedflux.sqlite", a=1.0)
    with pytest.raises(FedfluxError, match="is the store itself"):
        merge_stores(here.path, [tmp_path])


def beside_its_log(tmp_path: Path) -> Path:
    """A store as a killed process leaves it: a cell is committed, but only in the write-ahead log."""
    there = Store(tmp_path / "there.sqlite")
    reader = sqlite3.connect(there.path)  # an open reader keeps the write-ahead log from being folded in
    reader.execute("SELECT count(*) FROM cells").fetchone()
    there.add(*cell("a"), ROUNDS)
    (tmp_path / "moved").mkdir()
    for path in tmp_path.glob("there.sqlite*"):
        shutil.copy(path, tmp_path / "moved" / path.name)
    reader.close()
    assert (tmp_path / "moved" / "there.sqlite-wal").stat().st_size > 0
    return tmp_path / "moved" / "there.sqlite"


def test_a_store_from_a_killed_process_merges_with_what_it_had_committed(tmp_path: Path) -> None:
    assert merge_stores(tmp_path / "here.sqlite", [beside_its_log(tmp_path)])["added"] == 1


class ReadOnlyMedium:
    """Stands for a connection to a store beside which no file can be made."""

    def execute(self, _: str) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    def close(self) -> None:
        """Nothing is open."""


def make_read_only(patch: pytest.MonkeyPatch) -> None:
    original = sqlite3.connect

    def connect(address: Any, *args: Any, **options: Any) -> Any:
        return original(address, *args, **options) if "immutable=1" in str(address) else ReadOnlyMedium()

    patch.setattr(sqlite3, "connect", connect)


def test_a_store_on_a_read_only_medium_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path / "s.sqlite", a=1.0)
    make_read_only(monkeypatch)
    assert export_store(store.path, tmp_path / "cells.csv") == 1
    assert sorted(os.listdir(tmp_path)) == ["cells.csv", "s.sqlite"]


def test_a_log_that_cannot_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = beside_its_log(tmp_path)
    make_read_only(monkeypatch)
    with pytest.raises(FedfluxError, match=r"cannot be read without there\.sqlite-wal"):
        export_store(path, tmp_path / "cells.csv")


def test_export_is_csv_with_a_row_a_cell(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.add(*cell("a", known=81.25, test=None), ROUNDS)
    store.add(*cell("b"), ROUNDS)
    assert export_store(tmp_path / "s.sqlite", tmp_path / "cells.csv") == 2
    with (tmp_path / "cells.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["identity"], row["known"], row["test"]) for row in rows] == [("a", "81.25", ""), ("b", "1.5", "1.5")]
    assert rows[0]["command"] == "run …"
    with pytest.raises(FedfluxError, match="cannot write"):
        export_store(tmp_path / "s.sqlite", tmp_path / "nowhere" / "cells.csv")
