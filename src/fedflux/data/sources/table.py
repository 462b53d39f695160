"""A user's own table: a CSV file with a line a record: columns of numbers, a label, and where known a client."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset
from fedflux.data.scaling import Requested
from fedflux.data.sources.files import only_file
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.errors import FedfluxError, unknown

ROLES = ("label", "client", "group", "cluster", "part")
"""Columns that are no inputs, by the names that they have where nobody gives others; only the label is needed."""
OWNERS = ("client", "group", "cluster")
PARTS = ("train", "test")
DELIMITERS = (",", ";", "\t")
Array = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of a file as texts, a list a column, and the line that each record stands on."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    def filled(self, name: str) -> Array:
        """A column in which no cell may be empty."""
        cells = self.columns[name]
        if "" in cells:
            line = self.lines[cells.index("")]
            raise FedfluxError(f"{self.path}, line {line}: column '{name}' is empty; fill it or drop the line")
        return as_text_or_whole(cells)


def load_csv(data_dir: Path | None = None) -> Dataset:
    """The dataset of a CSV file; `data_dir` is its path, or a folder that holds exactly one."""
    return read_table(only_file("csv", data_dir))


def read_table(
    path: Path,
    columns: Mapping[str, str | None] | None = None,
    features: Sequence[str] | None = None,
    test: Path | None = None,
    class_names: Sequence[str] | None = None,
    scale: Requested = "auto",
) -> Dataset:
    """The dataset of a table whose columns play these roles; `test` is a table of the same columns."""
    table = read_cells(path)
    roles = _roles(table, columns or {})
    names = _features(table, roles, features)
    whole = _part(table, roles, names)
    if test is not None:
        if "part" in roles:
            raise FedfluxError(f"{path}: column '{roles['part']}' says what is the test part; leave out test=")
        other = read_cells(test)
        for name in (*names, *(name for role, name in roles.items() if role != "cluster")):
            if name not in other.columns:
                raise FedfluxError(f"{test}: column '{name}' of {path.name} is missing")
        tests = replace(_part(other, roles, names), ending=f" of {test.name}")
        parts = [whole, tests]
    else:
        parts = _cut(table, roles, whole)
    dataset = make_dataset("csv", str(path), *parts, class_names=class_names, scale=scale)
    return replace(dataset, feature_names=tuple(names))


def read_cells(path: Path) -> Table:
    """The table of a file, after checking that every line has as many cells as the first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            file.seek(0)
            rows = csv.reader(file, delimiter=max(DELIMITERS, key=header.count), strict=True)
            names = [name.strip() for name in next(rows, [])]
            _check_names(path, names)
            cells, lines = [], []
            for row in rows:
                if not row:
                    continue
                if len(row) != len(names):
                    words = f"{len(row)} cells, but the first line names {len(names)} columns"
                    raise FedfluxError(f"{path}, line {rows.line_num}: {words}")
                cells.append(row)
                lines.append(rows.line_num)
    except OSError as error:
        raise FedfluxError(f"{path}: cannot be read: {error.strerror}; give a CSV file") from error
    except UnicodeDecodeError as error:
        raise FedfluxError(f"{path}: is not UTF-8 text; save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise FedfluxError(f"{path}, line {rows.line_num}: no CSV ({error})") from error
    if not cells:
        raise FedfluxError(f"{path}: holds no record below its first line")
    columns = zip(*cells, strict=True)
    texts = {name: [cell.strip() for cell in column] for name, column in zip(names, columns, strict=True)}
    return Table(path, texts, np.array(lines, np.int64))


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise FedfluxError(f"{path}: is empty; the first line names the columns")
    for place, name in enumerate(names):
        if not name:
            words = "has no name; name it (pandas writes such a column unless index=False)"
            raise FedfluxError(f"{path}: column {place + 1} {words}")
        if name in names[:place]:
            raise FedfluxError(f"{path}: two columns are called '{name}'; every column needs a name of its own")


def _roles(table: Table, given: Mapping[str, str | None]) -> dict[str, str]:
    """The column of every role that the table has."""
    roles = {}
    for role in ROLES:
        name = given.get(role)
        if (name is not None or role == "label") and (name or role) not in table.columns:
            raise FedfluxError(f"{table.path}: {unknown('column', name or role, table.columns)}")
        if (name or role) in table.columns:
            roles[role] = name or role
    for role, name in roles.items():
        double = [other for other, column in roles.items() if column == name and other != role]
        if double:
            raise FedfluxError(f"{table.path}: column '{name}' cannot be both {role} and {double[0]}")
    return roles


def _features(table: Table, roles: Mapping[str, str], given: Sequence[str] | None) -> list[str]:
    if isinstance(given, str):
        raise FedfluxError(f"{table.path}: features is one text; give a list of columns")
    names = [name for name in table.columns if name not in roles.values()] if given is None else list(given)
    for name in names:
        if name not in table.columns:
            raise FedfluxError(f"{table.path}: {unknown('column', name, table.columns)}")
        if name in roles.values():
            raise FedfluxError(f"{table.path}: column '{name}' is no input: it says the {_role(roles, name)}")
    if not names:
        raise FedfluxError(f"{table.path}: has no column of inputs beside {', '.join(roles.values())}")
    return names


def _role(roles: Mapping[str, str], name: str) -> str:
    return next(role for role, column in roles.items() if column == name)


def _part(table: Table, roles: Mapping[str, str], names: Sequence[str]) -> Part:
    ids = {
        role: table.filled(roles[role]) for role in ("client", "group", "cluster") if roles.get(role) in table.columns
    }
    return Part(
        inputs_of(table, names),
        _labels(table.columns[roles["label"]]),
        *(ids.get(role) for role in OWNERS),
        row=table.lines,
        unit="line",
    )


def inputs_of(table: Table, names: Sequence[str]) -> Array:
    """Columns of numbers side by side, as integers where all are."""
    columns = [_numbers(table, name) for name in names]
    return (
        np.stack(columns, axis=1)
        if len({one.dtype for one in columns}) == 1
        else np.stack([one.astype(np.float64) for one in columns], axis=1)
    )


def _numbers(table: Table, name: str) -> Array:
    """A column of integers, else of floating point; true and false are 1 and 0."""
    cells = np.array(table.columns[name])
    for kind in (np.int64, np.float64):
        try:
            values = cells.astype(kind)
        except (ValueError, OverflowError):
            continue
        break
    else:
        lower = np.char.lower(cells)
        if np.isin(lower, ("true", "false")).all():
            return np.asarray(lower == "true").astype(np.int64)
        raise _no_number(table, name)
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        raise FedfluxError(f"{_line(table, place)}: column '{name}' holds {cells[place]}; fill it or drop the line")
    return values


def _no_number(table: Table, name: str) -> FedfluxError:
    """Say which cell of a column is no number, and what to do about it."""
    for place, cell in enumerate(table.columns[name]):
        if not cell:
            return FedfluxError(f"{_line(table, place)}: column '{name}' is empty; fill it or drop the line")
        try:
            float(cell)
        except ValueError:
            words = "encode the column as numbers, or leave it out (features=)"
            return FedfluxError(f"{_line(table, place)}: column '{name}' holds text ('{cell[:30]}'); {words}")
    return FedfluxError(f"{table.path}: column '{name}' holds no numbers")


def _line(table: Table, place: int) -> str:
    client = table.columns.get("client")
    return f"{table.path}, line {table.lines[place]}{'' if client is None else f' (client {client[place]!r})'}"


def _labels(cells: Sequence[str]) -> Array:
    """Whole numbers where all are, NaN among them where one is missing; else text."""
    if "" not in cells:
        return as_text_or_whole(cells)
    told = as_text_or_whole([cell for cell in cells if cell])
    if told.dtype.kind == "U" or not len(told):
        return np.array(cells)
    values = np.full(len(cells), np.nan)
    values[[bool(cell) for cell in cells]] = told
    return values


def as_text_or_whole(cells: Sequence[str]) -> Array:
    """Integers where all cells are whole numbers, so that 10 comes after 9; else the texts."""
    texts = np.array(cells)
    try:
        values = texts.astype(np.float64)
    except ValueError:
        return texts
    whole = np.isfinite(values).all() and (values == np.round(values)).all() and (np.abs(values) < 2**53).all()
    return values.astype(np.int64) if whole else texts


def _cut(table: Table, roles: Mapping[str, str], whole: Part) -> list[Part]:
    """The training and the test part where a column tells them apart."""
    if "part" not in roles:
        return [whole]
    said = [cell.lower() for cell in table.columns[roles["part"]]]
    odd = next((place for place, cell in enumerate(said) if cell not in PARTS), None)
    if odd is not None:
        words = f"column '{roles['part']}' is '{said[odd]}'; give train or test"
        raise FedfluxError(f"{table.path}, line {table.lines[odd]}: {words}")
    rows = [np.flatnonzero(np.array(said) == part) for part in PARTS]
    if not len(rows[0]):
        raise FedfluxError(f"{table.path}: no line is of the training part")
    return [whole.take(rows[0]), replace(whole.take(rows[1]), cluster=None)] if len(rows[1]) else [whole]
