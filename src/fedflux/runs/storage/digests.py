"""What the files of a finished run are: `files.json` names each with its digest.

Whoever reads a run, at once or years later, knows by it that nothing was lost, changed or taken from another run.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json
from fedflux.runs.storage.folder import FILES_FILE, RESULT_FILE, TRAINED_FILE

FORMAT = 1
"""Raised when the files of a run can no longer be read as before."""


def save_digests(folder: Path, names: Sequence[str], result: bytes) -> None:
    """Write down what the files of a finished run are; its result is about to be written."""
    digests = {name: sha256((folder / name).read_bytes()).hexdigest() for name in names if (folder / name).is_file()}
    told = {"format": FORMAT, "files": {**digests, RESULT_FILE: sha256(result).hexdigest()}}
    write_json(folder / FILES_FILE, {**told, "digest": _digest(told)})


def kept_files(folder: Path, needed: Iterable[str] = ()) -> dict[str, str]:
    """The digest of every file that the run wrote, by name; those that are needed must be among them."""
    told = read_object(folder / FILES_FILE)
    if told is None:
        raise FedfluxError(f"{folder / FILES_FILE} is missing or damaged: the run cannot be trusted; run it again")
    if told.get("format") != FORMAT:
        raise newer(folder, told.get("format"))
    if told.pop("digest", None) != _digest(told):
        raise FedfluxError(f"{folder / FILES_FILE} was changed: the run cannot be trusted; run it again")
    files: dict[str, str] = told["files"]
    for name in needed:
        if name not in files:
            raise FedfluxError(f"{folder}: {name} is not among the run's files; run it again")
    return files


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which one of these files is not as the run left it; runs of version 0.1 kept no digests."""
    if not has_digests(folder):
        return
    files = kept_files(folder)
    for name in names:
        if name in files:
            check_file(folder, name, files[name])
        elif (folder / name).exists():
            raise FedfluxError(f"{folder / name} is none of this run's files; take it away")


def has_digests(folder: Path) -> bool:
    """Whether the run in a folder said what its files are."""
    return (folder / FILES_FILE).exists() or (folder / TRAINED_FILE).exists()


def check_file(folder: Path, name: str, digest: str) -> None:
    """Refuse a file that is not as the run left it."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise FedfluxError(f"{folder / name} cannot be read: {error.strerror}") from error
    if sha256(content).hexdigest() != digest:
        raise FedfluxError(f"{folder / name} was changed or cut off since the run; run it again")


def newer(folder: Path, format: object) -> FedfluxError:
    """The error for a run that another version wrote."""
    words = "update fedflux" if isinstance(format, int) and format > FORMAT else "run it again"
    return FedfluxError(f"{folder} has format {format} of finished runs, this version reads {FORMAT}: {words}")


def _digest(told: Mapping[str, Any]) -> str:
    return sha256(dumps(told, sort_keys=True).encode()).hexdigest()
