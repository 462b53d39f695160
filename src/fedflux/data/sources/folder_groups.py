"""Which images of a folder belong together: `groups.csv` beside its class folders, with the columns file and group."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError

FILE = "groups.csv"


def read_groups(folder: Path, images: Sequence[Path]) -> NDArray[np.int64] | None:
    """The group of every image, None without the file; `file` is an image's path as seen from the folder."""
    table = folder / FILE
    if not table.is_file():
        return None
    known = _read(table)
    names = [image.relative_to(folder).as_posix() for image in images]
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise FedfluxError(f"{table}: says nothing of {missing}; give every image a group, its own where it is alone")
    stray = next(iter(known.keys() - set(names)), None)
    if stray is not None:
        raise FedfluxError(f"{table}: names {stray}, which is no image of the folder; write paths as CLASS/IMAGE")
    return np.unique([known[name] for name in names], return_inverse=True)[1].astype(np.int64)


def _read(table: Path) -> dict[str, str]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedfluxError(f"{table}: cannot be read as CSV ({' '.join(str(error).split())})") from error
    if not rows or [name.strip() for name in rows[0]] != ["file", "group"]:
        raise FedfluxError(f"{table}: the first line must be file,group")
    known: dict[str, str] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != 2 or not row[0].strip() or not row[1].strip():
            raise FedfluxError(f"{table}, line {line}: give a file and its group, as in cats/1.png,anna")
        name = row[0].strip().replace("\\", "/").removeprefix("./")
        if known.setdefault(name, row[1].strip()) != row[1].strip():
            raise FedfluxError(f"{table}, line {line}: {name} is in a second group; an image has one")
    return known
