"""What the cells of a store are: a digest of each, so that a store that was damaged is not taken for a whole one.

Stores that older versions filled have cells without digests; those are read as they are.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from fedflux.errors import FedfluxError

MAKE = "CREATE TABLE IF NOT EXISTS digests (identity, digest, PRIMARY KEY (identity)) WITHOUT ROWID"

Row = tuple[Any, ...]


def note_digest(connection: sqlite3.Connection, identity: str) -> None:
    """Write down what a cell is that was just put in, as it is read again."""
    connection.execute(MAKE)
    cell = connection.execute("SELECT * FROM cells WHERE identity = ?", (identity,)).fetchone()
    lines = connection.execute("SELECT * FROM rounds WHERE identity = ?", (identity,)).fetchall()
    connection.execute("INSERT OR REPLACE INTO digests VALUES (?, ?)", (identity, digest_of(cell, lines)))


def read_digests(connection: sqlite3.Connection) -> dict[str, str]:
    """The digest of every cell that has one."""
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'digests'").fetchone()
    return {} if there is None else dict(connection.execute("SELECT identity, digest FROM digests").fetchall())


def check_cells(path: Path, cells: Sequence[Row], rounds: Iterable[Row], digests: Mapping[str, str]) -> None:
    """Refuse a store with a cell that is not as it was put in, or from which one is gone."""
    lines: dict[str, list[Row]] = {}
    for line in rounds:
        lines.setdefault(line[0], []).append(line)
    named = {cell[0] for cell in cells}
    for cell in cells:
        if cell[0] in digests and digest_of(cell, lines.get(cell[0], [])) != digests[cell[0]]:
            raise _damaged(path, f"cell {_shown(cell[0])} was changed")
    for lost in sorted((digests.keys() | lines.keys()) - named, key=str):
        raise _damaged(path, f"cell {_shown(lost)} is gone")


def digest_of(cell: Row, rounds: Iterable[Row]) -> str:
    """Of a cell with its rounds, whatever order they come in."""
    content = [list(cell), sorted((list(line) for line in rounds), key=lambda line: str(line[1]))]
    return sha256(dumps(content, default=repr).encode()).hexdigest()


def _damaged(path: Path, words: str) -> FedfluxError:
    return FedfluxError(f"{path} is damaged: {words}; take a copy of the store, or fill another from the run folders")


def _shown(identity: object) -> str:
    return repr(identity)[:20]
