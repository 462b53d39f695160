"""Runs: the folders they are in, or a store that knows them, and what is read from these."""

import os
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import sub
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.files import read_lines, read_object
from fedflux.runs.storage.folder import (
    CONFIG_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    PLACEMENTS_FILE,
    RESULT_FILE,
    ROUNDS_FILE,
    SAMPLES_FILE,
    read_config,
)
from fedflux.runs.storage.store import STORE_FILE, kept_runs

ARRAYS = (DESCRIPTOR_FILE, SAMPLES_FILE, PLACEMENTS_FILE)
LOST = "the map of descriptors, sample images and the dates of events"
"""What a store does not keep."""


@dataclass(frozen=True)
class Folder:
    """A run folder with its name among the paths that were asked for."""

    path: Path
    name: str
    finished: bool


@dataclass(frozen=True)
class Kept:
    """What is known of a finished run; `arrays` has what its folder held, by file name."""

    name: str
    config: Mapping[str, Any]
    result: dict[str, Any] | None
    rounds: Sequence[Any]
    events: Sequence[Any]
    arrays: Mapping[str, dict[str, NDArray[Any]] | None]
    missing: str | None = None
    """What cannot be shown, in words, where only a store knows the run."""


def read_folder(folder: Folder, config: Mapping[str, Any]) -> Kept:
    """All that a run's folder holds and a report shows."""
    path = folder.path
    return Kept(
        folder.name,
        config,
        read_object(path / RESULT_FILE),
        read_lines(path / ROUNDS_FILE),
        read_lines(path / EVENTS_FILE),
        {name: read_arrays(path / name) for name in ARRAYS},
    )


def read_stores(paths: Sequence[Path], identities: Collection[str]) -> tuple[list[Kept], list[dict[str, str]]]:
    """The runs that stores at or below the paths know, and whose folders are not among those with these identities;
    and the stores that cannot be read, but for those that were named.
    """
    found: dict[str, Kept] = {}
    damaged = []
    for file in dict.fromkeys(file for path in paths for file in _stores(path)):
        try:
            cells = kept_runs(file)
        except FedfluxError as error:
            if file in paths:
                raise
            damaged.append({"name": file.name, "reason": str(error)})
            continue
        for config, result, rounds in cells:
            name = str(config.get("identity"))
            if name not in identities:
                found.setdefault(name, _of_cell(file, config, result, rounds))
    return list(found.values()), damaged


def _of_cell(file: Path, config: dict[str, Any], result: dict[str, Any], rounds: list[Any]) -> Kept:
    folder = str(result.get("run_dir") or "unknown")
    words = f"Known from the store {file.name} alone: the run's folder {folder} is not here, and with it {LOST}."
    return Kept(Path(folder).name, config, result, rounds, (), {}, words)


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
        if not any(folder.finished for folder in here) and not _stores(path):
            raise FedfluxError(
                f"{path} holds no finished run (a folder with {CONFIG_FILE} and {RESULT_FILE}) and no {STORE_FILE}; "
                "`fedflux run` makes one"
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


def _stores(root: Path) -> list[Path]:
    """The stores at or below a path; nothing is looked for inside a run, in hidden folders or behind links."""
    if root.is_file():
        return [root]
    found = []
    for place, folders, files in os.walk(root):
        if CONFIG_FILE in files:
            folders.clear()
        elif STORE_FILE in files:
            found.append(Path(place) / STORE_FILE)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return found


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
