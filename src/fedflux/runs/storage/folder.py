"""A run's folder: its files by name, the lock that one process holds, and the logs that grow with the run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from json import loads
from pathlib import Path
from shutil import rmtree
from time import sleep
from typing import Any

from filelock import FileLock, Timeout

from fedflux.errors import FedfluxError
from fedflux.files import LOCK_FILE, append_line, check_ours, is_remnant, read_object, try_writing

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
ROUNDS_FILE = "rounds.jsonl"
EVENTS_FILE = "events.jsonl"
ATTEMPTS_FILE = "attempts.jsonl"
"""Which rounds a private run began, those that were lost among them."""
DESCRIPTOR_FILE = "descriptors.npz"
SAMPLES_FILE = "samples.npz"
SCALING_FILE = "scaling.json"
"""What is done to inputs before models see them."""
PLACEMENTS_FILE = "placements.npz"
"""Where the test phase put everyone, of federations too large to list it in the result."""
MODEL_FILE = "models.safetensors"
GENERAL_FILE = "general.safetensors"
"""The one model for everyone of methods that train it beside the clusters'."""
TRUNK_FILE = "trunk.safetensors"
"""Clusters' models whose trunk is shared, of methods that train them beside models of their own."""
MODEL_FILES = {"models": MODEL_FILE, "general": GENERAL_FILE, "trunk": TRUNK_FILE}
"""What a method calls its models, and where they are kept."""
PERSONAL_FILE = "personal-{slot}.safetensors"
"""Models that simulated clients keep to themselves, a row a client of `clients`."""
TRAINED_FILE = "trained.json"
TRAINED_TENSORS = "trained.safetensors"
"""The last state: what answers for known and for new clients."""
FILES_FILE = "files.json"
"""The digests of all files of a finished run."""
CHECKPOINTS = "checkpoints"
MADE = (
    *(RESULT_FILE, ROUNDS_FILE, EVENTS_FILE, ATTEMPTS_FILE, DESCRIPTOR_FILE, SAMPLES_FILE, SCALING_FILE),
    *(PLACEMENTS_FILE, TRAINED_FILE, TRAINED_TENSORS, FILES_FILE),
    *MODEL_FILES.values(),
)
KEPT_AS_WRITTEN = sorted({CONFIG_FILE, *MADE} - {RESULT_FILE, FILES_FILE})
"""What does not change any more once a run is finished, besides its result."""
CONFIG_KEYS = {"algorithm", "command"}
OURS = ("fedflux run", CONFIG_FILE, CONFIG_KEYS)
FINISHED = "finished"
"""The last event of a run."""
TRIES = 200
"""How often a folder is entered that others remove at the same moment."""


class BusyError(FedfluxError):
    """Another process works in this folder."""


@contextmanager
def held(path: Path) -> Iterator[Path]:
    """The folder, made where it is missing and locked while the context lasts; the lock dies with its process."""
    try:
        lock = _enter(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        try:
            check_ours(path, *OURS)
            try_writing(path)
            _sweep(path)
        except OSError as error:
            raise _cannot_write(path, error) from error
        yield path
    finally:
        _leave(path, lock)


def _cannot_write(path: Path, error: OSError) -> FedfluxError:
    return FedfluxError(f"cannot write {OURS[0]} to {path}: {error.strerror}")


def _enter(folder: Path) -> FileLock:
    """Make and lock the folder. One whose user removes it just now is entered again; one of others is not touched."""
    for left in reversed(range(TRIES)):
        lock = FileLock(folder / LOCK_FILE)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_ours(folder, *OURS)
            lock.acquire(timeout=0)
        except Timeout:
            if (folder / LOCK_FILE).exists():
                words = f"another process is working in {folder}: wait for it, or name another --out"
                raise BusyError(words) from None
        except (FileNotFoundError, FileExistsError):
            if not left or (folder.exists() and not folder.is_dir()):  # a folder there now was made by others meanwhile
                raise
        else:
            if _is_on_disk(lock, folder / LOCK_FILE):
                return lock
            lock.release()
        sleep(0.005)
    raise BusyError(f"other processes keep making and removing {folder}: name another --out")


def _is_on_disk(lock: FileLock, path: Path) -> bool:
    """Whether the file that is locked is still the one by that name; a removed one guards nothing."""
    handle = lock._context.lock_file_fd
    assert handle is not None
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sweep(folder: Path) -> None:
    """Remove what a killed process left of the files it was writing."""
    for place in (folder, folder / CHECKPOINTS):
        for entry in place.glob(".*.tmp"):
            if is_remnant(entry):
                entry.unlink()


def _leave(folder: Path, lock: FileLock) -> None:
    """Give the lock back; a folder of which nothing came goes first, unless somebody else entered it meanwhile."""
    try:
        with suppress(OSError):
            if all(entry.name == LOCK_FILE for entry in folder.iterdir()):
                (folder / LOCK_FILE).unlink()
                folder.rmdir()
    finally:
        lock.release()


def clear(folder: Path) -> None:
    """Remove what an earlier run left; the result goes first, so that half of it is never taken for a finished run."""
    for name in MADE:
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob(PERSONAL_FILE.format(slot="*")):
        path.unlink()
    rmtree(folder / CHECKPOINTS, ignore_errors=True)


def record_event(folder: Path, words: str) -> None:
    """Add a dated line to the run's events."""
    append_line(folder / EVENTS_FILE, {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": words})


def read_config(folder: Path) -> dict[str, Any] | None:
    """What a run folder says it was told, None where it is no run folder."""
    content = read_object(folder / CONFIG_FILE)
    return content if content is not None and content.keys() >= CONFIG_KEYS else None


class RoundLog:
    """`rounds.jsonl`: one line a round, on disk before the round's checkpoint is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROUNDS_FILE
        self._digest = sha256()
        self.size = 0
        self.records: list[dict[str, Any]] = []

    def content(self) -> bytes:
        """What is on disk."""
        return self._path.read_bytes() if self._path.exists() else b""

    def go_back(self, size: int) -> None:
        """Cut off what was written after a checkpoint; everything before it stays where it is."""
        kept = self.content()[:size]
        if self._path.exists():
            with self._path.open("r+b") as handle:
                handle.truncate(size)
        self._digest = sha256(kept)
        self.size = len(kept)
        self.records = [loads(line) for line in kept.splitlines()]

    def append(self, record: dict[str, Any]) -> None:
        """One more round."""
        line = append_line(self._path, record)
        self._digest.update(line)
        self.size += len(line)
        self.records.append(record)

    def digest(self) -> str:
        """SHA-256 of all lines."""
        return self._digest.hexdigest()
