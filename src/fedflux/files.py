"""Files that are whole or absent: written under a temporary name beside the target and renamed."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import dumps, loads
from math import isnan
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np

from fedflux.errors import FedfluxError


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` only once everything has been written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """One JSON document, NaN as null."""
    with written_whole(path) as handle:
        handle.write((dumps(jsonable(content), indent=2, ensure_ascii=False) + "\n").encode())


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Named arrays."""
    with written_whole(path) as handle:
        np.savez_compressed(handle, **arrays)


def make_folder(path: Path, purpose: str, marker: str, keys: set[str]) -> Path:
    """A folder to write in: new, empty, or one of ours (its file `marker` has `keys`); anything else is left alone."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not _holds(path / marker, keys):
            raise FedfluxError(f"{path} holds other files and no {purpose}; name an empty or new folder")
        with NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        raise FedfluxError(f"cannot write {purpose} to {path}: {error.strerror}") from error
    return path


def _holds(path: Path, keys: set[str]) -> bool:
    """Whether a file is a JSON object with these keys: other programs, too, call their files config.json."""
    try:
        content = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and keys <= content.keys()


def jsonable(value: Any) -> Any:
    """Numbers and arrays of numpy as plain JSON values; NaN becomes null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and isnan(value):
        return None
    return value
