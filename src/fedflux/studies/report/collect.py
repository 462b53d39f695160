"""Runs as one JSON-able value: everything the page shows, the same for the same runs."""

from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import Any, TypeVar

from fedflux.errors import FedfluxError
from fedflux.runs.storage.digests import check_files
from fedflux.runs.storage.folder import CONFIG_FILE, read_config
from fedflux.studies.report.colours import FEW, MANY
from fedflux.studies.report.detail import READ, Run, read_run, unfinished_detail
from fedflux.studies.report.folders import Folder, Kept, distinct, find_folders, read_folder, read_stores
from fedflux.studies.report.overview import overview
from fedflux.studies.report.samples import all_samples
from fedflux.version import __version__

S = TypeVar("S")
T = TypeVar("T")
FAULTS = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What reading files raises that are not as a run leaves them."""


def collect(paths: Sequence[Path], reference: str | None = None) -> dict[str, Any]:
    """Overview, runs, unfinished and damaged ones, images; `reference` is the algorithm others are compared with.

    What a repetition of the same runs would change (seconds, dates) sits under keys that `without_timings` removes.
    """
    folders = find_folders(paths)
    identities = {_identity(folder) for folder in folders if folder.finished}
    stored, unread = read_stores(paths, identities)
    runs, damaged = _whole([folder for folder in folders if folder.finished], _shown, lambda folder: folder.name)
    waiting = [folder for folder in folders if not folder.finished]
    unfinished, damaged_too = _whole(waiting, _unfinished, lambda folder: folder.name)
    known, damaged_there = _whole(stored, _checked, lambda kept: kept.name)
    runs, damaged = [*runs, *known], [*damaged, *damaged_too, *damaged_there, *unread]
    if not runs and not damaged:
        raise FedfluxError(f"{paths[0]} holds no finished run, and its store is empty; `fedflux run` makes one")
    if not runs:
        first = damaged[0]
        raise FedfluxError(f"no whole run is left: {first['name']} is damaged ({first['reason']})")
    samples, images = all_samples([(run.samples, run.groups.tolist()) for run in runs])
    taken: set[str] = set()
    names = [distinct(run.name, taken) for run in runs]
    return {
        "fedflux": __version__,
        "palette": {"few": FEW, "many": MANY},
        "overview": overview([run.row for run in runs], reference),
        "runs": [
            {"id": name, **run.detail, "samples": shown} for name, run, shown in zip(names, runs, samples, strict=True)
        ],
        "opens": next((name for name, run in zip(names, runs, strict=True) if run.detail["map"]), names[0]),
        "unfinished": unfinished,
        "damaged": damaged,
        "images": images,
    }


def _shown(folder: Folder) -> Run:
    """A run that JSON has words for."""
    config = _config(folder)
    check_files(folder.path, READ)
    return _checked(read_folder(folder, config))


def _checked(kept: Kept) -> Run:
    run = read_run(kept)
    dumps(run.detail, allow_nan=False)
    return run


def _unfinished(folder: Folder) -> dict[str, Any]:
    return unfinished_detail(folder, _config(folder))


def _config(folder: Folder) -> dict[str, Any]:
    config = read_config(folder.path)
    if config is None:
        raise FedfluxError(f"cannot read {CONFIG_FILE}")
    return config


def _identity(folder: Folder) -> str:
    return str((read_config(folder.path) or {}).get("identity"))


def _whole(
    sources: Sequence[S], read: Callable[[S], T], name: Callable[[S], str]
) -> tuple[list[T], list[dict[str, str]]]:
    """What can be read of the sources, and the name of each that cannot, with the reason."""
    answers: list[T] = []
    damaged: list[dict[str, str]] = []
    for source in sources:
        try:
            answers.append(read(source))
        except FAULTS as fault:
            reason = str(fault) if isinstance(fault, FedfluxError) else f"{type(fault).__name__}: {fault}"
            damaged.append({"name": name(source), "reason": reason})
    return answers, damaged


def without_timings(data: Any) -> Any:
    """The same value without seconds and dates."""
    if isinstance(data, dict):
        return {key: without_timings(item) for key, item in data.items() if not _is_timing(key)}
    return [without_timings(item) for item in data] if isinstance(data, list) else data


def _is_timing(key: str) -> bool:
    return key == "timings" or key.startswith("seconds")
