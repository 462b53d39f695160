"""Run folders: where they are, and what is read from them."""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import sub
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.runs.storage.folder import CONFIG_FILE, RESULT_FILE, read_config


@dataclass(frozen=True)
class Folder:
    """A run folder with its name among the paths that were asked for."""

    path: Path
    name: str
    finished: bool


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Finished runs: the paths themselves, or whatever lies below them, in order of their names."""
    return [folder.path for folder in find_folders(paths) if folder.finished]


def find_folders(paths: Sequence[Path]) -> list[Folder]:
    """Runs, finished or not, each once; every path must hold a finished one."""
    found: dict[Path, Folder] = {}
    for path in paths:
        if not path.exists():
            raise FedfluxError(f"{path} does not exist; name a run folder or a folder of runs")
        here = list(_below(path))
        if not any(folder.finished for folder in here):
            raise FedfluxError(
                f"{path} holds no finished run (a folder with {CONFIG_FILE} and {RESULT_FILE}); `fedflux run` makes one"
            )
        for folder in here:
            found.setdefault(folder.path.resolve(), folder)
    return list(found.values())


def _below(root: Path) -> Iterator[Folder]:
    """The runs at or below a folder. Nothing is looked for inside a run, in hidden folders or behind links."""
    for place, folders, files in os.walk(root):
        path = Path(place)
        if CONFIG_FILE in files and read_config(path) is not None:
            name = path.resolve().name if path == root else path.relative_to(root).as_posix()
            yield Folder(path, name, RESULT_FILE in files)
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def read_arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    """Named arrays, None where there is no file."""
    if not path.exists():
        return None
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, NpzFile):
            with content as file:
                return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise FedfluxError(f"cannot read {path.name}: {error}") from error
    raise FedfluxError(f"cannot read {path.name}: it holds no named arrays")


def distinct(name: str, taken: set[str]) -> str:
    """The name as it fits a link or a file, told apart from those taken before, which it joins."""
    plain = sub("[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    number, answer = 1, plain
    while answer in taken:
        number += 1
        answer = f"{plain}-{number}"
    taken.add(answer)
    return answer
