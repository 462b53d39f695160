"""The audit log: who was placed where, and when. Of the data it holds a p-value, no feature and no posterior.

SQLite with a write-ahead log: an entry is whole or absent, whatever kills the process, and the database opens.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from fedflux.errors import FedfluxError

TABLE = """
CREATE TABLE IF NOT EXISTS assignments (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, key TEXT NOT NULL, bundle TEXT NOT NULL, cluster TEXT NOT NULL,
    novel INTEGER NOT NULL, score REAL
)
"""
KEPT = 100_000
"""Assignments by a bundle that its watch is begun from."""


@dataclass(frozen=True)
class Entry:
    """One assignment."""

    time: float
    key: str
    bundle: str
    cluster: str
    novel: bool
    score: float | None
    """None where it means nothing."""


class Audit:
    """The log of a service; every entry is written before its answer is sent."""

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(TABLE)
        except (sqlite3.Error, OSError) as error:
            raise FedfluxError(f"{path} cannot be used as an audit log: {error}") from error

    def write(self, entry: Entry) -> None:
        """One more entry."""
        values = (entry.time, entry.key, entry.bundle, entry.cluster, int(entry.novel), entry.score)
        words = "INSERT INTO assignments (time, key, bundle, cluster, novel, score) VALUES (?, ?, ?, ?, ?, ?)"
        try:
            with self._lock:
                self._database.execute(words, values)
        except sqlite3.Error as error:  # a full disk, or somebody holds the database
            raise FedfluxError(f"the audit log cannot be written: {error}") from error

    def of_bundle(self, bundle: str) -> list[Entry]:
        """The last assignments by a bundle, oldest first."""
        words = (
            "SELECT time, key, bundle, cluster, novel, score FROM assignments WHERE bundle = ? ORDER BY id DESC LIMIT ?"
        )
        with self._lock:
            rows = self._database.execute(words, (bundle, KEPT)).fetchall()
        return [
            Entry(time, key, of, cluster, bool(novel), score) for time, key, of, cluster, novel, score in rows[::-1]
        ]

    def close(self) -> None:
        """Write everything and let go."""
        with self._lock:
            self._database.close()
