"""The run store: every finished cell and its metrics in one SQLite file that several processes may fill at once.

A cell's key is its identity, so that a cell is there once however often, and on however many machines, it was run.
"""

import csv
import io
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from json import dumps, loads
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import jsonable, written_whole

STORE_FILE = "fedflux.sqlite"
SCHEMA = 1
PATIENCE = 60.0
"""Seconds to wait for another process's write."""
COLUMNS = (
    "identity", "dataset", "shift", "level", "algorithm", "label", "seed", "clients", "grouped", "known", "test",
    "known_worst", "test_worst", "known_quantile10", "test_quantile10", "clusters_found", "clusters_true", "ari", "nmi",
    "pairs_right", "cluster_round", "rounds", "seconds", "bytes_up", "bytes_down", "engine", "device", "precision",
    "revision", "checksum", "fedflux", "finished", "command", "run_dir", "config", "result",
)  # fmt: skip
ROUND_COLUMNS = ("identity", "round", "validation", "bytes_up", "bytes_down", "seconds", "events", "record")
TABLES = f"""
CREATE TABLE IF NOT EXISTS cells ({", ".join(COLUMNS)}, PRIMARY KEY (identity)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds ({", ".join(ROUND_COLUMNS)}, PRIMARY KEY (identity, round)) WITHOUT ROWID;
"""


class Store:
    """One SQLite file in WAL mode; a connection lives only as long as a call, so a killed process holds nothing."""

    def __init__(self, path: Path) -> None:
        self.path = store_file(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._make()
        except OSError as error:
            raise FedfluxError(f"cannot write store {self.path}: {error.strerror}; name another --store") from error
        except sqlite3.DatabaseError as error:
            raise FedfluxError(f"{self.path} cannot be used as a store: {error}; name another --store") from error

    def _make(self) -> None:
        """Create the tables where they are missing. Turning WAL on does not wait for others by itself, so this does."""
        deadline = monotonic() + PATIENCE
        while True:
            try:
                with self._connection() as connection:
                    version = connection.execute("PRAGMA user_version").fetchone()[0]
                    if version == SCHEMA:
                        return
                    if version != 0:
                        raise FedfluxError(f"{self.path} is a store of version {version}; this fedflux reads {SCHEMA}")
                    self._check_ours(connection)
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.executescript(f"BEGIN IMMEDIATE;{TABLES}PRAGMA user_version={SCHEMA};COMMIT;")
                    return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or monotonic() > deadline:
                    raise
                sleep(0.05)

    def _check_ours(self, connection: sqlite3.Connection) -> None:
        """A database of another program is left alone; tables of ours without a version are a store being made."""
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not names <= {"cells", "rounds"}:
            raise FedfluxError(f"{self.path} is a database of another program; name another --store")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection

    def add(self, config: Mapping[str, Any], result: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> bool:
        """Put in one finished cell with its rounds, all or nothing; False where it is there already."""
        cell = _cell(config, result)
        lines = [_round(config["identity"], record) for record in rounds]
        with self._connection() as connection, _transaction(connection):
            marks = ", ".join("?" * len(COLUMNS))
            added = connection.execute(f"INSERT OR IGNORE INTO cells VALUES ({marks})", cell).rowcount == 1
            if added:
                marks = ", ".join("?" * len(ROUND_COLUMNS))
                connection.executemany(f"INSERT OR IGNORE INTO rounds VALUES ({marks})", lines)
        return added

    def get(self, identity: str) -> dict[str, Any] | None:
        """One cell, with `config` and `result` as objects; None where it is not finished."""
        with self._connection() as connection:
            row = connection.execute("SELECT * FROM cells WHERE identity = ?", (identity,)).fetchone()
        return None if row is None else _opened(row)

    def cells(self) -> list[dict[str, Any]]:
        """All cells, in the order of their settings."""
        with self._connection() as connection:
            order = "dataset, grouped, shift, level, algorithm, seed, identity"
            return [_opened(row) for row in connection.execute(f"SELECT * FROM cells ORDER BY {order}")]

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT count(*) FROM cells").fetchone()[0])

    def merge(self, other: Path) -> dict[str, int]:
        """Take in the cells of a store filled elsewhere; a cell that is here already stays as it is.

        `different` counts those whose accuracy there differs from ours: another device or library version.
        """
        path = store_file(other)
        if not path.is_file():
            raise FedfluxError(f"{other} holds no store: give a {STORE_FILE} file, or the folder it is in")
        if path.resolve() == self.path.resolve():
            raise FedfluxError(f"{other} is the store itself")
        with closing(_open_elsewhere(path)) as source:
            try:
                if source.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                    raise FedfluxError(f"{path} is no store of this version of fedflux")
                rows = source.execute(f"SELECT {', '.join(COLUMNS)} FROM cells").fetchall()
                lines = source.execute(f"SELECT {', '.join(ROUND_COLUMNS)} FROM rounds").fetchall()
            except sqlite3.DatabaseError as error:
                raise FedfluxError(f"{path} cannot be read as a store: {error}") from error
        rounds: dict[str, list[tuple[Any, ...]]] = {}
        for line in lines:
            rounds.setdefault(line[0], []).append(line)
        counts = {"added": 0, "known": 0, "different": 0}
        marks, round_marks = ", ".join("?" * len(COLUMNS)), ", ".join("?" * len(ROUND_COLUMNS))
        with self._connection() as connection, _transaction(connection):
            for row in rows:
                if connection.execute(f"INSERT OR IGNORE INTO cells VALUES ({marks})", row).rowcount == 1:
                    own = rounds.get(row[0], [])
                    connection.executemany(f"INSERT OR IGNORE INTO rounds VALUES ({round_marks})", own)
                    counts["added"] += 1
                    continue
                counts["known"] += 1
                here = connection.execute("SELECT known, test FROM cells WHERE identity = ?", row[:1]).fetchone()
                counts["different"] += here != (row[COLUMNS.index("known")], row[COLUMNS.index("test")])
        return counts

    def export(self, path: Path) -> int:
        """All cells as CSV, one row each; how many there were."""
        cells = self.cells()
        shown = [name for name in COLUMNS if name not in ("config", "result")]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, shown, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(cells)
        try:
            with written_whole(path) as handle:
                handle.write(text.getvalue().encode())
        except OSError as error:
            raise FedfluxError(f"cannot write {path}: {error.strerror}") from error
        return len(cells)


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
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open_elsewhere(path: Path) -> sqlite3.Connection:
    """A store that is only read; one on a read-only medium cannot have the helper files of WAL made beside it."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.DatabaseError as error:
        raise FedfluxError(f"{path} is no SQLite file: {error}") from error
    return connection


def _cell(config: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[Any, ...]:
    both = {**result, **config, **config["ran_on"], "grouped": config["group"], "rounds": result["rounds"]}
    both["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    both["run_dir"], both["config"], both["result"] = result["run_dir"], _text(config), _text(result)
    return tuple(both[name] for name in COLUMNS)


def _round(identity: str, record: Mapping[str, Any]) -> tuple[Any, ...]:
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


def _opened(row: tuple[Any, ...]) -> dict[str, Any]:
    cell = dict(zip(COLUMNS, row, strict=True))
    return {**cell, "config": loads(cell["config"]), "result": loads(cell["result"])}


def _text(content: Any) -> str:
    return dumps(jsonable(content), ensure_ascii=False)
