"""A user's own arrays: one .npz file with x and y, and, where they are known, client, group and cluster."""

import zlib
from pathlib import Path
from typing import get_args
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset
from fedflux.data.scaling import Requested
from fedflux.data.sources.files import only_file
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.errors import FedfluxError, unknown

_KEYS = (
    *("x", "y", "client", "group", "cluster", "x_test", "y_test", "client_test", "group_test"),
    *("class_names", "client_names", "scale"),
)

Array = NDArray[np.generic]


def load_npz(data_dir: Path | None = None) -> Dataset:
    """The dataset of an .npz file; `data_dir` is its path, or a folder that holds exactly one."""
    file = only_file("npz", data_dir)
    arrays = read_arrays(file)
    _check_keys(file, arrays)
    train = Part(arrays["x"], arrays["y"], arrays.get("client"), arrays.get("group"), arrays.get("cluster"))
    test = None
    if "x_test" in arrays:
        owners, groups = (arrays.get(f"{key}_test") for key in ("client", "group"))
        test = Part(arrays["x_test"], arrays["y_test"], owners, groups, ending="_test")
    class_names, client_names = (_names(file, arrays, key) for key in ("class_names", "client_names"))
    return make_dataset(
        *("npz", str(file), train, test),
        class_names=class_names,
        client_names=client_names,
        scale=_scale(file, arrays),
    )


def _names(file: Path, arrays: dict[str, Array], key: str) -> list[str] | None:
    if key not in arrays:
        return None
    names = arrays[key]
    if names.ndim != 1 or names.dtype.kind not in "iuU":
        raise FedfluxError(f"{file}: '{key}' is {names.dtype} of shape {names.shape}; give a list of strings")
    return [str(name) for name in names.tolist()]


def _scale(file: Path, arrays: dict[str, Array]) -> Requested:
    scale = str(arrays.get("scale", "auto"))
    for known in get_args(Requested):
        if scale == known:
            return known  # type: ignore[no-any-return]
    raise FedfluxError(f"{file}: 'scale' is '{scale}'; give {', '.join(get_args(Requested))}")


def read_arrays(file: Path) -> dict[str, Array]:
    """Every array of an .npz file by its name."""
    damaged = (BadZipFile, OSError, EOFError, ValueError, SyntaxError, RuntimeError, MemoryError, zlib.error)
    try:
        archive = np.load(file, allow_pickle=False)
    except damaged as error:
        raise FedfluxError(f"{file}: not a readable .npz file; it may be cut short or not come from numpy") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise FedfluxError(f"{file}: a single array; store x and y together with numpy.savez")
    arrays: dict[str, Array] = {}
    with archive:
        for key in archive.files:
            try:
                value = archive[key]
            except damaged as error:
                reason = " ".join(str(error).split())
                raise FedfluxError(f"{file}: cannot read '{key}' ({reason}); store plain arrays") from error
            if not isinstance(value, np.ndarray):
                raise FedfluxError(f"{file}: '{key}' is not an array; write the file with numpy.savez")
            arrays[key] = value
    return arrays


def _check_keys(file: Path, arrays: dict[str, Array]) -> None:
    """Refuse missing partners and unknown keys: a misspelt `client` must not silently lose the split."""
    for key in arrays:
        if key not in _KEYS:
            raise FedfluxError(f"{file}: {unknown('key', key, _KEYS)}")
    needs = [("", "x"), ("", "y"), ("x_test", "y_test"), ("y_test", "x_test")]
    needs += [("client_test", "x_test"), ("client_test", "client"), ("cluster", "client"), ("client_names", "client")]
    needs += [("group_test", "x_test"), ("group_test", "group")]
    needs += [("x_test", f"{key}_test") for key in ("client", "group") if key in arrays]
    for key, partner in needs:
        if (not key or key in arrays) and partner not in arrays:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise FedfluxError(
                f"{file}: '{partner}' is missing{f', which {key!r} needs' if key else ''}; found {found}"
            )
