"""From what studies ask for to cells that can be run: each once, and why some cannot be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedflux.data.dataset import Dataset
from fedflux.data.sources import load
from fedflux.data.sources.own import with_scale
from fedflux.errors import FedfluxError
from fedflux.runs.config import make_config
from fedflux.runs.runner import check_start
from fedflux.studies.compare import Cell, check_out, ready
from fedflux.studies.paper.study import Study
from fedflux.studies.reproduce.asking import DISTANCES, Asked, key, presets_of, wanted_by


@dataclass(frozen=True)
class Prepared:
    """What is to be run, and what every wish comes to."""

    cells: list[Cell]
    """Each once, however many studies want it."""
    identities: Mapping[str, str]
    """Of the wishes that can be run."""
    refused: Mapping[str, str]
    """Why the others cannot."""
    distances: list[Asked] = field(default_factory=list)
    """Wishes that `fedflux fidelity` fulfils."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Training examples by dataset."""


def wishes(studies: Sequence[Study], presets: tuple[str, ...]) -> dict[str, Asked]:
    """All that some studies ask for, by key: dataset by dataset and seed by seed, so that early results are of all."""
    found: dict[str, Asked] = {}
    for study in studies:
        for seed in study.seeds:
            for place in study.places:
                for preset in presets_of(place.runs.algorithm, presets):
                    for asked in wanted_by(place, seed, preset):
                        found.setdefault(key(asked), asked)
    datasets = list(dict.fromkeys(asked["dataset"] for asked in found.values()))
    order = sorted(found, key=lambda name: (datasets.index(found[name]["dataset"]), found[name]["seed"]))
    return {name: found[name] for name in order}


def prepare(found: Mapping[str, Asked], machine: Mapping[str, Any], out: Path) -> Prepared:
    """Cells in folders under `out`; `machine` says how and where they are run."""
    cells: dict[str, Cell] = {}
    identities: dict[str, str] = {}
    refused: dict[str, str] = {}
    sizes: dict[str, int] = {}
    distances = [asked for asked in found.values() if asked["algorithm"] == DISTANCES]
    trained = {name: asked for name, asked in found.items() if asked["algorithm"] != DISTANCES}
    for name in dict.fromkeys(asked["dataset"] for asked in trained.values()):
        own = {one: asked for one, asked in trained.items() if asked["dataset"] == name}
        try:
            dataset = _dataset(name, machine)
        except FedfluxError as error:
            refused.update(dict.fromkeys(own, str(error)))
            continue
        sizes[name] = len(dataset.train)
        for one, asked in own.items():
            try:
                cell = ready(make_config({**machine, **asked}), dataset, out)
            except FedfluxError as error:
                refused[one] = str(error)
                continue
            if not cells:
                check_start([cell.config], dataset)
            identities[one] = cell.identity
            cells.setdefault(cell.identity, cell)
    check_out(out)
    return Prepared(list(cells.values()), identities, refused, distances, sizes)


def _dataset(name: str, machine: Mapping[str, Any]) -> Dataset:
    folder = machine.get("data_dir")
    return with_scale(load(name, Path(folder) if folder else None), "auto")
