"""A user's own arrays: one .npz file with x and y, and, where they are known, client, group and cluster."""

import zlib
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.splits import hold_out
from fedflux.data.truth import UNKNOWN
from fedflux.errors import FedfluxError, unknown

_KEYS = ("x", "y", "client", "group", "cluster", "x_test", "y_test", "client_test", "group_test")

Array = NDArray[np.generic]
Labels = NDArray[np.int64]


def load_npz(data_dir: Path | None = None) -> Dataset:
    """The dataset of an .npz file; `data_dir` is its path, or a folder that holds exactly one."""
    file = _file(data_dir)
    arrays = _read(file)
    _check_keys(file, arrays)
    train, names, clusters = _train(file, arrays)
    groups, tested_groups = _groups(file, arrays)
    train = replace(train, group=groups)
    if "x_test" in arrays:
        test, alone = _test(file, arrays, names)
        test = replace(test, group=tested_groups)
        names = None if names is None else (*names, *alone)
        clusters = None if clusters is None else np.concatenate([clusters, np.full(len(alone), UNKNOWN)])
        if test.x.dtype != train.x.dtype:
            raise FedfluxError(f"{file}: x is {train.x.dtype} but x_test is {test.x.dtype}; store both alike")
    else:
        train, test = hold_out(train)
    classes = 1 + int(max(train.y.max(), test.y.max(initial=0)))
    return Dataset("npz", train, test, classes, names, clusters)


def _file(data_dir: Path | None) -> Path:
    if data_dir is None:
        raise FedfluxError("npz: no data folder given; give the path of the .npz file or of the folder that holds it")
    if not data_dir.exists():
        raise FedfluxError(f"npz: {data_dir} does not exist; give an .npz file or the folder that holds it")
    if not data_dir.is_dir():
        return data_dir
    files = sorted(file for file in data_dir.glob("*.npz") if not file.name.startswith("."))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise FedfluxError(f"npz: {data_dir} must hold exactly one .npz file, found {found}")
    return files[0]


def _read(file: Path) -> dict[str, Array]:
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
    needs += [("client_test", "x_test"), ("client_test", "client"), ("cluster", "client")]
    needs += [("group_test", "x_test"), ("group_test", "group")]
    needs += [("x_test", f"{key}_test") for key in ("client", "group") if key in arrays]
    for key, partner in needs:
        if (not key or key in arrays) and partner not in arrays:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise FedfluxError(
                f"{file}: '{partner}' is missing{f', which {key!r} needs' if key else ''}; found {found}"
            )


def _train(file: Path, arrays: dict[str, Array]) -> tuple[Examples, tuple[str, ...] | None, Labels | None]:
    x, y = _pixels(file, "x", arrays["x"]), _labels(file, "y", arrays["y"])
    _same_length(file, arrays, "x", "y")
    if len(x) == 0:
        raise FedfluxError(f"{file}: 'x' holds no example")
    if "client" not in arrays:
        return Examples(x, y), None, None
    _same_length(file, arrays, "x", "client")
    ids, client = np.unique(_ids(file, "client", arrays["client"]), return_inverse=True)
    names = tuple(str(value) for value in ids.tolist())
    client = client.astype(np.int64)
    clusters = _clusters(file, arrays, client, names) if "cluster" in arrays else None
    return Examples(x, y, client), names, clusters


def _test(file: Path, arrays: dict[str, Array], names: tuple[str, ...] | None) -> tuple[Examples, tuple[str, ...]]:
    """The test part, and the names of the clients that are in it alone: they are numbered behind the others."""
    x, y = _pixels(file, "x_test", arrays["x_test"]), _labels(file, "y_test", arrays["y_test"])
    _same_length(file, arrays, "x_test", "y_test")
    if names is None:
        return Examples(x, y), ()
    _same_length(file, arrays, "x_test", "client_test")
    ids, client = np.unique(_ids(file, "client_test", arrays["client_test"]), return_inverse=True)
    owners = [str(value) for value in ids.tolist()]
    known = set(names)
    alone = tuple(owner for owner in owners if owner not in known)
    number = {name: index for index, name in enumerate((*names, *alone))}
    return Examples(x, y, np.array([number[owner] for owner in owners], np.int64)[client]), alone


def _groups(file: Path, arrays: dict[str, Array]) -> tuple[Labels | None, Labels | None]:
    """The groups of the training and of the test part, numbered together: one id is one group in both."""
    if "group" not in arrays:
        return None, None
    _same_length(file, arrays, "x", "group")
    ids = [_ids(file, "group", arrays["group"])]
    if "group_test" in arrays:
        _same_length(file, arrays, "x_test", "group_test")
        ids.append(_ids(file, "group_test", arrays["group_test"]))
    if len({one.dtype.kind == "U" for one in ids}) > 1:
        ids = [one.astype(np.str_) for one in ids]
    numbers = np.unique(np.concatenate(ids), return_inverse=True)[1].astype(np.int64)
    train = numbers[: len(ids[0])]
    return train, numbers[len(train) :] if len(ids) > 1 else None


def _clusters(file: Path, arrays: dict[str, Array], client: Labels, names: tuple[str, ...]) -> Labels:
    """Each client's cluster, numbered in sorted order."""
    _same_length(file, arrays, "x", "cluster")
    values = _ids(file, "cluster", arrays["cluster"])
    ids, cluster = np.unique(values, return_inverse=True)
    of_client = np.full(len(names), -1, np.int64)
    for index, name in enumerate(names):
        held = np.unique(cluster[client == index])
        if len(held) > 1:
            examples = " and ".join(str(ids[number]) for number in held[:2])
            raise FedfluxError(f"{file}: client '{name}' lies in clusters {examples}; a client has one cluster")
        of_client[index] = held[0]
    return of_client


def _pixels(file: Path, key: str, x: Array) -> Array:
    """Images as (N, channels, height, width), uint8 or float32; a feature vector is an image one pixel high."""
    if x.ndim == 2:
        x = x[:, None, None, :]
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4:
        raise FedfluxError(f"{file}: '{key}' has shape {x.shape}; give (N, d), (N, H, W), (N, C, H, W) or (N, H, W, C)")
    if x.size == 0 and len(x):
        raise FedfluxError(f"{file}: '{key}' has shape {x.shape}: images without a pixel")
    if x.dtype.kind in "iu":
        if x.size and (x.min() < 0 or x.max() > 255):
            limits = f"{x.min()} to {x.max()}"
            raise FedfluxError(f"{file}: integers in '{key}' run from {limits}; give 0 to 255, or floating point")
        return np.ascontiguousarray(x, np.uint8)
    if x.dtype.kind not in "fb":
        raise FedfluxError(f"{file}: '{key}' holds {x.dtype}; give integers 0 to 255, or floating point")
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which the dataset check reports
        return np.ascontiguousarray(x, np.float32)


def _labels(file: Path, key: str, y: Array) -> Labels:
    if y.ndim != 1:
        raise FedfluxError(f"{file}: '{key}' has shape {y.shape}; give one label per example, shape (N,)")
    if y.dtype.kind not in "iu":
        raise FedfluxError(f"{file}: labels in '{key}' are {y.dtype}; give integers from 0")
    labels = y.astype(np.int64)
    negative = np.flatnonzero(labels < 0)
    if len(negative):
        raise FedfluxError(f"{file}: label {y[negative[0]]} of example {negative[0]} in '{key}'; give integers from 0")
    return labels


def _ids(file: Path, key: str, values: Array) -> Array:
    if values.dtype.kind not in "iuUS" or values.ndim != 1:
        form = f"{values.dtype} of shape {values.shape}"
        raise FedfluxError(f"{file}: '{key}' is {form}; give one integer or string per example")
    try:
        return values.astype(np.str_) if values.dtype.kind == "S" else values
    except UnicodeDecodeError as error:
        raise FedfluxError(f"{file}: '{key}' holds bytes beyond ASCII; store it as strings") from error


def _same_length(file: Path, arrays: dict[str, Array], key: str, other: str) -> None:
    if np.shape(arrays[key])[:1] != np.shape(arrays[other])[:1]:
        raise FedfluxError(f"{file}: {len(arrays[key])} examples in '{key}' but {arrays[other].size} in '{other}'")
