"""Run folders as one JSON-able value: everything the page shows, the same for the same runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedflux import __version__
from fedflux.experiments.report.colours import FEW, MANY
from fedflux.experiments.report.detail import read_run, unfinished_detail
from fedflux.experiments.report.folders import distinct, find_folders, read_arrays, read_object
from fedflux.experiments.report.overview import overview
from fedflux.experiments.report.samples import all_samples
from fedflux.experiments.run_folder import CONFIG_FILE, SAMPLES_FILE


def collect(paths: Sequence[Path], reference: str | None = None) -> dict[str, Any]:
    """Overview, runs, unfinished runs and images; `reference` is the algorithm that the others are compared with.

    What a repetition of the same runs would change (seconds, dates) sits under keys that `without_timings` removes.
    """
    folders = find_folders(paths)
    configs = [read_object(folder.path / CONFIG_FILE) for folder in folders]
    both = list(zip(folders, configs, strict=True))
    runs = [read_run(folder, config) for folder, config in both if folder.finished]
    kept = [(read_arrays(run.folder.path / SAMPLES_FILE), run.groups.tolist()) for run in runs]
    samples, images = all_samples(kept)
    taken: set[str] = set()
    return {
        "fedflux": __version__,
        "palette": {"few": FEW, "many": MANY},
        "overview": overview([run.row for run in runs], reference),
        "runs": [
            {"id": distinct(run.folder.name, taken), **run.detail, "samples": shown}
            for run, shown in zip(runs, samples, strict=True)
        ],
        "unfinished": [unfinished_detail(folder, config) for folder, config in both if not folder.finished],
        "images": images,
    }


def without_timings(data: Any) -> Any:
    """The same value without seconds and dates."""
    if isinstance(data, dict):
        return {key: without_timings(item) for key, item in data.items() if not _is_timing(key)}
    return [without_timings(item) for item in data] if isinstance(data, list) else data


def _is_timing(key: str) -> bool:
    return key == "timings" or key.startswith("seconds")
