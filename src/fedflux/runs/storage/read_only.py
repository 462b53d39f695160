"""A store of others' that is only read, wherever it lies."""

import sqlite3
from pathlib import Path

from fedflux.errors import FedfluxError

PATIENCE = 60.0
"""Seconds to wait for another process's write."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """A store that is only read; one on a read-only medium cannot have the helper files of WAL made beside it.

    It is then taken as it is, which would pass over what is still in a write-ahead log: that is refused.
    """
    address = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=PATIENCE)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            words = f"{path} cannot be read without {log.name}, which needs a writable folder: copy both into one"
            raise FedfluxError(words) from error
        return sqlite3.connect(f"{address}&immutable=1", uri=True)
    except BaseException:
        connection.close()
        raise
    return connection
