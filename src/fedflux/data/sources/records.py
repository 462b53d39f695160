"""Records of clients that are to be answered: like own data, but labels may be missing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedflux.data.sources.folder import images_below
from fedflux.data.sources.npz import read_arrays
from fedflux.errors import FedfluxError, unknown

KEYS = ("x", "y", "client", "group")
ONLY = "new"
"""What the client is called where the file names none."""


@dataclass(frozen=True, eq=False)
class Records:
    """One client's: inputs, and where they are known labels and groups."""

    x: NDArray[np.generic]
    y: NDArray[np.generic] | None = None
    group: NDArray[np.generic] | None = None


def read_records(path: Path, input_shape: tuple[int, ...]) -> dict[str, Records]:
    """The clients of an .npz file (x, and where they are known client, y and group), or of a folder of images.

    Images lie in a folder for each client, or all in one, and are brought to the shape that models were trained on.
    """
    if not path.exists():
        raise FedfluxError(f"{path} does not exist; give a .npz or .csv file, or a folder of images")
    if path.is_dir():
        return {name: Records(x) for name, x in images_below(path, input_shape).items()}
    arrays = read_arrays(path)
    for key in arrays:
        if key not in KEYS:
            raise FedfluxError(f"{path}: {unknown('key', key, KEYS)}")
    if "x" not in arrays:
        raise FedfluxError(f"{path}: 'x' is missing; found {', '.join(sorted(arrays)) or 'nothing'}")
    return by_client(path, arrays)


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
