"""The run store: every finished cell and its metrics in one SQLite file that several processes may fill at once.

A cell's key is its identity, so that a cell is there once however often, and on however many machines, it was run.
"""

import csv
import io
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from json import dumps, loads
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import jsonable, written_whole
from fedflux.runs.storage.cell_digests import check_cells, note_digest, read_digests
from fedflux.runs.storage.read_only import PATIENCE, open_read_only

STORE_FILE = "fedflux.sqlite"
SCHEMA = 1
COLUMNS = (
    "identity", "dataset", "shift", "level", "algorithm", "label", "seed", "clients", "grouped", "known", "test",
    "known_worst", "test_worst", "known_quantile10", "test_quantile10", "clusters_found", "clusters_true", "ari", "nmi",
    "pairs_right", "cluster_round", "rounds", "seconds", "bytes_up", "bytes_down", "engine", "device", "precision",
    "revision", "checksum", "fedflux", "finished", "command", "run_dir", "config", "result",
)  # fmt: skip
FROM_RESULT = ("unseen", "unseen_worst")
"""Scores that came after the tables were fixed: CSV takes them from the result."""
ROUND_COLUMNS = ("identity", "round", "validation", "bytes_up", "bytes_down", "seconds", "events", "record")
TABLES = {"cells": COLUMNS, "rounds": ROUND_COLUMNS}
MAKE = f"""
CREATE TABLE IF NOT EXISTS cells ({", ".join(COLUMNS)}, PRIMARY KEY (identity)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds ({", ".join(ROUND_COLUMNS)}, PRIMARY KEY (identity, round)) WITHOUT ROWID;
"""
ORDER = "dataset, grouped, shift, level, algorithm, seed, identity"
DAMAGED = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a file that is no whole database raises; its own complaint may quote bytes that are no text."""

Row = tuple[Any, ...]


class Store:
    """One SQLite file in WAL mode; a connection lives only as long as a call, so a killed process holds nothing."""

    def __init__(self, path: Path) -> None:
        self.path = store_file(path)
        there = self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._make()
        except OSError as error:
            raise FedfluxError(f"cannot write store {self.path}: {error.strerror}; name another --store") from error
        except DAMAGED as error:
            if not there and "locked" not in str(error):
                _remove_empty(self.path)
            raise FedfluxError(f"{self.path} cannot be used as a store: {error}; name another --store") from error

    def _make(self) -> None:
        """Create the tables where they are missing. Turning WAL on does not wait for others by itself, so this does."""
        deadline = monotonic() + PATIENCE
        while True:
            try:
                with self._connection() as connection:
                    if _is_ready(connection, self.path):
                        return
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.executescript(f"BEGIN IMMEDIATE;{MAKE}PRAGMA user_version={SCHEMA};COMMIT;")
                    return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or monotonic() > deadline:
                    raise
                sleep(0.05)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._connection() as connection:
                yield connection
        except DAMAGED as error:
            raise FedfluxError(f"{self.path} cannot be read as a store: {error}") from error

    def add(self, config: Mapping[str, Any], result: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> bool:
        """Put in one finished cell with its rounds, all or nothing; False where it is there already."""
        cell = _cell(config, result)
        lines = [_round(config["identity"], record) for record in rounds]
        with self._connection() as connection, _transaction(connection):
            return _insert(connection, cell, lines)

    def get(self, identity: str) -> dict[str, Any] | None:
        """One cell, with `config` and `result` as objects; None where it is not finished."""
        with self._reading() as connection:
            rows, lines = (
                connection.execute(f"SELECT * FROM {table} WHERE identity = ?", (identity,)).fetchall()
                for table in TABLES
            )
            digests = read_digests(connection)
            check_cells(self.path, rows, lines, {identity: digests[identity]} if identity in digests else {})
        return _opened(rows[0], self.path) if rows else None

    def cells(self) -> list[dict[str, Any]]:
        """All cells, in the order of their settings."""
        with self._reading() as connection:
            return [_opened(row, self.path) for row in _all_rows(connection, self.path)[0]]

    def rounds(self, identity: str) -> list[dict[str, Any]]:
        """A cell's rounds in order, as they were recorded."""
        with self._reading() as connection:
            found = connection.execute("SELECT record FROM rounds WHERE identity = ? ORDER BY round", (identity,))
            return [loads(record) for (record,) in found]

    def __len__(self) -> int:
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM cells").fetchone()[0])

    def take_in(self, rows: Iterable[Row], rounds: Iterable[Row]) -> dict[str, int]:
        """Add cells of other stores, all or nothing; a cell that is here already stays as it is.

        `different` counts those whose accuracy there differs from ours: another device or library version.
        """
        own_rounds: dict[str, list[Row]] = {}
        for line in rounds:
            own_rounds.setdefault(line[0], []).append(line)
        counts = {"added": 0, "known": 0, "different": 0}
        with self._reading() as connection, _transaction(connection):
            for row in rows:
                if _insert(connection, row, own_rounds.get(row[0], [])):
                    counts["added"] += 1
                    continue
                counts["known"] += 1
                here = connection.execute("SELECT known, test FROM cells WHERE identity = ?", row[:1]).fetchone()
                counts["different"] += here != (row[COLUMNS.index("known")], row[COLUMNS.index("test")])
        return counts


def merge_stores(target: Path, others: Sequence[Path]) -> dict[str, Any]:
    """Take the cells of stores filled elsewhere into one; all are read before it is made or changed.

    A cell that several of the others hold counts as known from the second on.
    """
    rows: list[Row] = []
    rounds: list[Row] = []
    for other in others:
        if store_file(other).resolve() == store_file(target).resolve():
            raise FedfluxError(f"{other} is the store itself")
        cells, lines = _read(other)
        known = {row[0] for row in rows}
        rows += cells
        rounds += [line for line in lines if line[0] not in known]
    store = Store(target)
    counts = store.take_in(rows, rounds)
    return {"cells": len(store), "path": str(store.path), **counts}


def export_store(source: Path, out: Path) -> int:
    """All cells as CSV, one row each; how many there were. The store is only read."""
    rows, _ = _read(source)
    text = io.StringIO(newline="")
    names = [name for name in COLUMNS if name not in ("config", "result")]
    writer = csv.DictWriter(text, [*names, *FROM_RESULT], extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        cell = _opened(row, store_file(source))
        writer.writerow({**cell, **{name: cell["result"].get(name) for name in FROM_RESULT}})
    try:
        with written_whole(out) as handle:
            handle.write(text.getvalue().encode())
    except OSError as error:
        raise FedfluxError(f"cannot write {out}: {error.strerror}") from error
    return len(rows)


def kept_runs(source: Path) -> list[tuple[dict[str, Any], dict[str, Any], list[Any]]]:
    """Configuration, result and rounds of every cell, in the order of their settings. The store is only read."""
    rows, lines = _read(source)
    record = ROUND_COLUMNS.index("record")
    rounds: dict[str, list[Any]] = {}
    for line in lines:
        rounds.setdefault(line[0], []).append(loads(line[record]))
    cells = [_opened(row, store_file(source)) for row in rows]
    return [(cell["config"], cell["result"], rounds.get(cell["identity"], [])) for cell in cells]


def _read(source: Path) -> tuple[list[Row], list[Row]]:
    """The cells and rounds of a store that is only read."""
    path = store_file(source)
    if not path.is_file():
        raise FedfluxError(f"{source} holds no store: give a {STORE_FILE} file, or the folder it is in")
    try:
        with closing(open_read_only(path)) as connection:
            if not _is_ready(connection, path):
                raise FedfluxError(f"{path} is empty and no store: give a {STORE_FILE} file, or the folder it is in")
            return _all_rows(connection, path)
    except DAMAGED as error:
        raise FedfluxError(f"{path} cannot be read as a store: {error}") from error


def _all_rows(connection: sqlite3.Connection, path: Path) -> tuple[list[Row], list[Row]]:
    """All cells in the order of their settings, and all rounds, as they were put in."""
    rows = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM cells ORDER BY {ORDER}").fetchall()
    lines = connection.execute(f"SELECT {', '.join(ROUND_COLUMNS)} FROM rounds").fetchall()
    check_cells(path, rows, lines, read_digests(connection))
    return rows, lines


def _is_ready(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there; an empty database can become a store, one of another program is left alone."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names and version == 0:
        return False
    if not names >= TABLES.keys():
        raise FedfluxError(f"{path} is a database of another program; name another store")
    if version not in (0, SCHEMA):
        raise FedfluxError(f"{path} is a store of version {version}; this fedflux reads {SCHEMA}")
    for name, columns in TABLES.items():
        if tuple(row[1] for row in connection.execute(f"PRAGMA table_info({name})")) != columns:
            raise FedfluxError(f"{path} is a database of another program; name another store")
    return bool(version == SCHEMA)


def store_file(path: Path) -> Path:
    """The file that a path means: itself, or the store in the folder that it names."""
    return path if path.is_file() or (path.suffix and not path.is_dir()) else path / STORE_FILE


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; IMMEDIATE waits for its turn at the beginning instead of failing in the middle."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk rolls back by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, cell: Row, rounds: Iterable[Row]) -> bool:
    """One cell with its rounds; False where it is there already."""
    marks = ", ".join("?" * len(COLUMNS))
    added = connection.execute(f"INSERT OR IGNORE INTO cells VALUES ({marks})", cell).rowcount == 1
    if added:
        marks = ", ".join("?" * len(ROUND_COLUMNS))
        connection.executemany(f"INSERT OR IGNORE INTO rounds VALUES ({marks})", rounds)
        note_digest(connection, cell[0])
    return added


def _remove_empty(path: Path) -> None:
    """Take away the file that a store which could not be made leaves."""
    with suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _cell(config: Mapping[str, Any], result: Mapping[str, Any]) -> Row:
    """What a run came to wins over what it was told: `cluster_round` may have been "auto"."""
    both = {**config, **config["ran_on"], **result, "grouped": config["group"]}
    both["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    both["config"], both["result"] = _text(config), _text(result)
    return tuple(both[name] for name in COLUMNS)


def _round(identity: str, record: Mapping[str, Any]) -> Row:
    scores = [score for score in record["validation"].values() if score is not None]
    return (
        identity,
        record["round"],
        sum(scores) / len(scores) if scores else None,
        sum(record["bytes_up"].values()),
        sum(record["bytes_down"].values()),
        sum(record["seconds"].values()),
        _text(record["events"]),
        _text(record),
    )


def _opened(row: Row, path: Path) -> dict[str, Any]:
    cell = dict(zip(COLUMNS, row, strict=True))
    try:
        told = {name: loads(cell[name]) for name in ("config", "result")}
    except (TypeError, ValueError) as error:
        raise FedfluxError(f"{path} is damaged: a cell has no settings or no result that can be read") from error
    return {**cell, **told}


def _text(content: Any) -> str:
    return dumps(jsonable(content), ensure_ascii=False)
