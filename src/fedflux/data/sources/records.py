"""Records of clients that are to be answered: like own data, but labels may be missing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedflux.data.sources.folder import images_below
from fedflux.data.sources.npz import read_arrays
from fedflux.data.sources.table import inputs_of, read_cells
from fedflux.errors import FedfluxError, unknown

KEYS = ("x", "y", "client", "group")
COLUMNS = {"label": "y", "client": "client", "group": "group"}
"""Columns of a table that are no inputs, and what they are here."""
UNREAD = ("cluster", "part")
"""Columns that tables to train on may have, and that nobody needs here."""
ONLY = "new"
"""What the client is called where the file names none."""


@dataclass(frozen=True, eq=False)
class Records:
    """One client's: inputs, and where they are known labels and groups."""

    x: NDArray[np.generic]
    y: NDArray[np.generic] | None = None
    group: NDArray[np.generic] | None = None


def read_records(
    path: Path, input_shape: tuple[int, ...], features: tuple[str, ...] | None = None
) -> dict[str, Records]:
    """The clients of a .npz file (x, and where they are known client, y and group), a table or a folder of images.

    A table has the columns of inputs that models were trained on (`features`, in any order; without their names as many
    as there are) and, where they are known, client, group and label. Images lie in a folder for each client, or all in
    one, and are brought to the shape that models were trained on.
    """
    if not path.exists():
        raise FedfluxError(f"{path} does not exist; give a .npz or .csv file, or a folder of images")
    if path.is_dir():
        return {name: Records(x) for name, x in images_below(path, input_shape).items()}
    arrays = _columns(path, features) if path.suffix == ".csv" else read_arrays(path)
    for key in arrays:
        if key not in KEYS:
            raise FedfluxError(f"{path}: {unknown('key', key, KEYS)}")
    if "x" not in arrays:
        raise FedfluxError(f"{path}: 'x' is missing; found {', '.join(sorted(arrays)) or 'nothing'}")
    return by_client(path, arrays)


def _columns(path: Path, features: tuple[str, ...] | None) -> dict[str, NDArray[np.generic]]:
    """The arrays of a table."""
    table = read_cells(path)
    others = [name for name in table.columns if name not in (*COLUMNS, *UNREAD)]
    names = others if features is None else features
    for name in names:
        if name not in table.columns:
            raise FedfluxError(f"{path}: column '{name}', which the run was trained on, is missing")
    for name in others:
        if name not in names:
            raise FedfluxError(f"{path}: the run was not trained on column '{name}'; leave it out")
    if not names:
        raise FedfluxError(f"{path}: holds no column of inputs")
    told = {key: table.filled(name) for name, key in COLUMNS.items() if name in table.columns}
    return {"x": inputs_of(table, names), **told}


def by_client(path: Path, arrays: dict[str, NDArray[np.generic]]) -> dict[str, Records]:
    """The records of every client, in order of the clients' names."""
    for key, values in arrays.items():
        if values.ndim == 0 or len(values) != len(arrays["x"]):
            raise FedfluxError(f"{path}: {len(arrays['x'])} records in 'x' but {values.size} in '{key}'")
    owner = arrays.get("client")
    if owner is None:
        return {ONLY: Records(arrays["x"], arrays.get("y"), arrays.get("group"))}
    if owner.ndim != 1 or owner.dtype.kind not in "iuU":
        raise FedfluxError(f"{path}: 'client' is {owner.dtype} of shape {owner.shape}; give one id a record")
    found = {}
    for client in np.unique(owner):
        rows = owner == client
        y, group = (None if key not in arrays else arrays[key][rows] for key in ("y", "group"))
        found[str(client)] = Records(arrays["x"][rows], y, group)
    return found
