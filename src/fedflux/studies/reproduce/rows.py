"""What is kept of a finished cell: one row, from the run store or from CSV files that can be committed."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import write_bytes
from fedflux.runs.storage.store import Store
from fedflux.studies.reproduce.asking import Asked, key

Row = dict[str, Any]
ABOUT = ("asked", "identity", "dataset", "algorithm", "shift", "level", "preset", "seed")
SCORES = (
    *("known", "test", "known_worst", "test_worst", "pairs_right", "clusters_found", "clusters_true", "cluster_round"),
    *("rounds", "bytes_up", "bytes_down", "max", "min", "mean", "std", "seconds"),
)
CURVE = "validation"
MADE = (
    "no_test_phase",
    "engine",
    "device",
    "precision",
    "machine",
    "torch",
    "fedflux",
    "revision",
    "checksum",
    "finished",
)
COLUMNS = (*ABOUT, *SCORES, CURVE, *MADE)
DECIMALS = 2
"""Of curves, which are looked at and no more."""


def of_cell(asked: Asked, cell: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> Row:
    """The row of a cell as the run store has it."""
    result, ran_on = cell["result"], cell["config"]["ran_on"]
    curves = [[score for score in record[CURVE].values() if score is not None] for record in rounds]
    return {
        **{name: asked.get(name) for name in ABOUT},
        **{name: result.get(name) for name in SCORES},
        "asked": key(asked),
        "identity": cell["identity"],
        CURVE: [round(sum(scores) / len(scores), DECIMALS) for scores in curves if scores],
        "no_test_phase": result.get("no_test_phase"),
        **{name: ran_on.get(name) for name in ("engine", "device", "precision", "machine", "torch", "fedflux")},
        **{name: cell[name] for name in ("revision", "checksum", "finished")},
    }


class Kept:
    """Rows by what was asked for, of a run store; each is looked for once."""

    def __init__(self, store: Store, asked: Mapping[str, Asked], identities: Mapping[str, str]) -> None:
        self._store, self._asked, self._identities = store, asked, identities
        self._found: dict[str, Row | None] = {}

    def put(self, name: str, row: Row) -> None:
        """One that is no run."""
        self._found[name] = row

    def __call__(self, name: str) -> Row | None:
        """The row of what was asked for, None where it is not finished."""
        if name not in self._found and name in self._identities:
            identity = self._identities[name]
            cell = self._store.get(identity)
            rounds = [] if cell is None else self._store.rounds(identity)
            self._found[name] = None if cell is None else of_cell(self._asked[name], cell, rounds)
        return self._found.get(name)

    def rows(self) -> list[Row]:
        """All that are finished."""
        return [row for name in self._asked if (row := self(name)) is not None]


def read_rows(folder: Path) -> dict[str, Row]:
    """The rows of all CSV files in a folder, by what was asked for."""
    return {row["asked"]: row for path in sorted(folder.glob("*.csv")) for row in _read(path)}


def _read(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise FedfluxError(f"{path} is no table of finished cells: its first line is not as expected")
            return [{name: _value(name, text) for name, text in row.items()} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        if isinstance(error, FedfluxError):
            raise
        raise FedfluxError(f"{path} cannot be read: {error}") from error


def _value(name: str, text: str) -> Any:
    if name == CURVE:
        return [float(one) for one in text.split()]
    if not text:
        return None
    return float(text) if name in SCORES else text


def keep(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Put rows into the CSV file of their dataset; one that is there stays, unless its identity is another now."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = read_rows(folder)
        changed = set()
        for row in rows:
            before = known.get(row["asked"])
            if before is None or before["identity"] != row["identity"]:
                known[row["asked"]] = row
                changed.add(row["dataset"])
        written = []
        for name in sorted(changed):
            own = sorted((row for row in known.values() if row["dataset"] == name), key=lambda row: str(row["asked"]))
            write_bytes(folder / f"{name}.csv", table_text(own, COLUMNS).encode())
            written.append(folder / f"{name}.csv")
    except OSError as error:
        raise FedfluxError(f"cannot write results to {folder}: {error.strerror}") from error
    return written


def table_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV, with line feeds on every machine."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
