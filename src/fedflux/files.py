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

LOCK_FILE = ".lock"
"""Held by the process that works in a folder."""


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
        _keep_name(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep_name(folder: Path) -> None:
    """Have the folder's entries written too, so that a file renamed just before a power cut is not lost."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_line(path: Path, content: Any) -> bytes:
    """One JSON document as a line at the end of a file; what was written comes back.

    A line that a full disk or a kill cut off before stays alone: the new one begins after it.
    """
    line = (dumps(jsonable(content), ensure_ascii=False) + "\n").encode()
    with path.open("a+b") as handle:
        if handle.seek(0, os.SEEK_END):
            handle.seek(-1, os.SEEK_END)
            line = line if handle.read(1) == b"\n" else b"\n" + line
        handle.write(line)
        handle.flush()
        os.fsync(handle.fileno())
    return line


def read_lines(path: Path) -> list[Any]:
    """The documents of a file of JSON lines; lines that a full disk or a kill cut off are left out."""
    documents = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            documents.append(loads(line))
        except ValueError:
            continue
    return documents


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is missing, damaged or something else."""
    try:
        content = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: Any) -> None:
    """One JSON document, NaN as null."""
    write_bytes(path, as_json(content))


def as_json(content: Any) -> bytes:
    """One JSON document as it is written, NaN as null."""
    return (dumps(jsonable(content), indent=2, ensure_ascii=False) + "\n").encode()


def write_bytes(path: Path, content: bytes) -> None:
    """A file of these bytes."""
    with written_whole(path) as handle:
        handle.write(content)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Named arrays."""
    with written_whole(path) as handle:
        np.savez_compressed(handle, **arrays)


def make_folder(path: Path, purpose: str, marker: str, keys: set[str]) -> Path:
    """A folder to write in: new, empty, or one of ours (its file `marker` has `keys`); anything else is left alone.

    Keys are looked at since other programs, too, call their files config.json.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_ours(path, purpose, marker, keys)
        try_writing(path)
    except OSError as error:
        raise FedfluxError(f"cannot write {purpose} to {path}: {error.strerror}") from error
    return path


def check_ours(path: Path, purpose: str, marker: str, keys: set[str]) -> None:
    """Refuse a folder with files of others. Ours come after the marker, so it is looked for after them."""
    taken = [entry for entry in path.iterdir() if entry.name != LOCK_FILE and not is_remnant(entry)]
    if taken and not keys <= (read_object(path / marker) or {}).keys():
        raise FedfluxError(f"{path} holds other files and no {purpose}; name an empty or new folder")


def try_writing(folder: Path) -> None:
    """Raise OSError where no file can be made; the one that is tried looks like a remnant, not like another's file."""
    with NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp"):
        pass


def is_remnant(path: Path) -> bool:
    """Whether a file is what a killed process left of one it was writing."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


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
