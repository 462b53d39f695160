"""A run's folder: its files by name, the lock that one process holds, and the logs that grow with the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from json import loads
from pathlib import Path
from shutil import rmtree
from typing import Any

from filelock import FileLock, Timeout

from fedflux.errors import FedfluxError
from fedflux.files import LOCK_FILE, append_line, is_remnant, make_folder, read_object

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
ROUNDS_FILE = "rounds.jsonl"
EVENTS_FILE = "events.jsonl"
DESCRIPTOR_FILE = "descriptors.npz"
SAMPLES_FILE = "samples.npz"
PLACEMENTS_FILE = "placements.npz"
"""Where the test phase put everyone, of federations too large to list it in the result."""
MODEL_FILE = "models.safetensors"
CHECKPOINTS = "checkpoints"
MADE = (RESULT_FILE, ROUNDS_FILE, EVENTS_FILE, DESCRIPTOR_FILE, SAMPLES_FILE, PLACEMENTS_FILE, MODEL_FILE)
CONFIG_KEYS = {"algorithm", "command"}


class BusyError(FedfluxError):
    """Another process works in this folder."""


@contextmanager
def held(path: Path) -> Iterator[Path]:
    """The folder, made where it is missing and locked while the context lasts; the lock dies with its process."""
    folder = make_folder(path, "fedflux run", CONFIG_FILE, CONFIG_KEYS)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BusyError(f"another process is working in {folder}: wait for it, or name another --out") from None
    try:
        for entry in folder.iterdir():
            if is_remnant(entry):
                entry.unlink()
        yield folder
    finally:
        if all(entry.name == LOCK_FILE for entry in folder.iterdir()):  # nothing came of it
            rmtree(folder, ignore_errors=True)
        lock.release()


def clear(folder: Path) -> None:
    """Remove what an earlier run left; the result goes first, so that half of it is never taken for a finished run."""
    for name in MADE:
        (folder / name).unlink(missing_ok=True)
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
