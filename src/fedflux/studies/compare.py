"""Algorithms × shifts × levels × seeds: every cell once, whoever runs it and however often it is stopped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from fedflux.algorithms import READS
from fedflux.data.dataset import Dataset
from fedflux.data.partition import count_clients
from fedflux.data.sources import load
from fedflux.data.sources.own import with_scale
from fedflux.errors import FedfluxError
from fedflux.models import OwnModel
from fedflux.runs.config import RunConfig, make_config
from fedflux.runs.identity import GRID, folder_name, group, identity, shift_words
from fedflux.runs.runner import check_start, decide_model
from fedflux.runs.storage.store import STORE_FILE, Store
from fedflux.studies.paper import figures
from fedflux.studies.summary import SPREAD, WORK, WORST, by_cell, by_shift, overall, paired
from fedflux.studies.workers import Kind, Tell, work

FIGURES = (
    *SPREAD, *WORST, "pairs_right", "clusters_found", "clusters_true", "seconds", "bytes_up", "bytes_down", *WORK,
)  # fmt: skip


Work = Callable[[Sequence[RunConfig], int, Tell], None]
"""What does the runs, on so many processes; `tell` hears of each step."""


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    config: RunConfig
    identity: str
    group: str

    @property
    def name(self) -> str:
        """What a person calls it."""
        c = self.config
        return f"{c.algorithm} {shift_words(c)} seed {c.seed}"


@dataclass
class Status:
    """How far a comparison is; a display reads it."""

    cells: list[Cell]
    results: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    before: int = 0
    """Cells that were finished when it began."""
    running: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """The finished cells, as the summaries want them, in the order of the grid."""
        return [
            {
                **{key: getattr(cell.config, key) for key in ("algorithm", "dataset", "shift", "level", "seed")},
                "group": "",
                **{key: self.results[index].get(key) for key in FIGURES},
            }
            for index, cell in enumerate(self.cells)
            if index in self.results
        ]


def compare(
    cells: list[Cell],
    store: Store,
    jobs: int,
    reference: str,
    on_change: Callable[[Status], None] | None = None,
    work: Work = work,
) -> dict[str, Any]:
    """Run what the store does not hold yet; the answer is what `fedflux compare --json` prints."""
    return _answer(run_cells(cells, store, jobs, on_change, work), store, reference)


def run_cells(
    cells: list[Cell], store: Store, jobs: int, on_change: Callable[[Status], None] | None = None, work: Work = work
) -> Status:
    """Run what the store does not hold yet; what came of all."""
    status = Status(cells)
    for index, cell in enumerate(cells):
        found = store.get(cell.identity)
        if found is not None:
            status.results[index] = found["result"]
    status.before = len(status.results)
    todo = [index for index in range(len(cells)) if index not in status.results]

    def tell(task: int, kind: Kind, content: Any) -> None:
        index = todo[task]
        status.running.pop(index, None)
        if kind == "round":
            status.running[index] = content.after or f"round {content.round}/{content.rounds}"
            status.notes += [f"{cells[index].name}: {event}" for event in content.events if "damaged" in event]
        elif kind == "done":
            status.results[index] = content
        elif kind == "failed":
            status.failed[index] = content
            status.notes.append(f"{cells[index].name} failed: {content}")
        elif kind == "killed":
            status.notes.append(f"{cells[index].name}: {content}")
        elif kind == "busy":
            status.running[index] = "waiting for another process"
        if on_change:
            on_change(status)

    if on_change:
        on_change(status)
    work([cells[index].config for index in todo], jobs, tell)
    return status


def plan(
    told: Mapping[str, Any],
    algorithms: Sequence[str],
    shifts: Sequence[str],
    levels: Sequence[int],
    seeds: Sequence[int],
    out: Path,
    dataset: Dataset | None = None,
    model: OwnModel | None = None,
) -> list[Cell]:
    """All cells, checked, in the order they are run: seed by seed, so that early figures cover the whole grid.

    Cells that would give the same numbers, such as two levels of no shift, are one. `dataset` and `model` are such as
    were handed in, under the names that the settings have.
    """
    for key in ("until", "resume", *GRID):
        if key in told:
            raise FedfluxError(f"'{key}' is for fedflux run; compare takes --algorithms, --shifts, --levels, --seeds")
    if str(told.get("store")) == "none":
        raise FedfluxError("--store none: a comparison needs a store to know what is finished")
    grid = [
        {"seed": seed, "level": level, "shift": shift, "algorithm": algorithm}
        for seed, level, shift, algorithm in product(seeds, levels, shifts, algorithms)
    ]
    configs = [make_config(_readable(told, place)) for place in grid]
    if dataset is None:
        dataset = load(configs[0].dataset, Path(configs[0].data_dir) if configs[0].data_dir else None)
    check_start(configs[: len(algorithms)], dataset, model)
    dataset = with_scale(dataset, configs[0].scale)
    cells: dict[str, Cell] = {}
    for config in configs:
        cell = ready(config, dataset, out, model)
        cells.setdefault(cell.identity, cell)
    check_out(out)
    return list(cells.values())


def ready(config: RunConfig, dataset: Dataset, out: Path, model: OwnModel | None = None) -> Cell:
    """The cell of a configuration, in a folder of its own that it goes on in; `dataset` is scaled as it asks."""
    decided, checksum, code = _decide(config, dataset), dataset.checksum, None if model is None else model.digest
    name, store = identity(decided, checksum, code), config.store or str(out / STORE_FILE)
    folder = str(out / folder_name(decided, checksum, code))
    return Cell(replace(decided, out=folder, store=store, resume=True), name, group(decided, checksum))


def check_out(out: Path) -> None:
    """Find out now whether folders can be made here."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=out, prefix=".", suffix=".tmp"):
            pass
    except OSError as error:
        raise FedfluxError(f"cannot write runs to {out}: {error.strerror}") from error


def _readable(told: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one cell; the number of clusters is only told to algorithms that take it."""
    cell = {**told, **place}
    if "clusters" not in READS[place["algorithm"]]:
        cell.pop("clusters", None)
    return cell


def _decide(config: RunConfig, dataset: Dataset) -> RunConfig:
    """What `build_federation` decides, without making the federation."""
    clients = count_clients(dataset, config.partition())
    return replace(config, model=decide_model(config, dataset.input_shape), clients=clients)


def _answer(status: Status, store: Store, reference: str) -> dict[str, Any]:
    rows = status.rows()
    first = status.cells[0].config
    shifts = sorted({cell.config.shift for cell in status.cells})
    algorithms = {cell.config.algorithm for cell in status.cells}
    found = figures(first.dataset, first.clients or 10, participation=first.participation, shifts=shifts)
    printed = [figure.as_dict() for figure in found if figure.algorithm in algorithms]
    return {
        "cells": _bare(by_cell(rows)),
        "shifts": _bare(by_shift(rows)),
        "overall": _bare(overall(rows)),
        "differences": {score: _bare(paired(rows, reference, score)) for score in ("known", "test")},
        "reference": reference,
        "no_test_phase": _without_test_phase(status),
        "paper": printed,
        "group": status.cells[0].group,
        "planned": len(status.cells),
        "finished_before": status.before,
        "ran": len(status.results) - status.before,
        "failed": [{"cell": status.cells[index].name, "why": why} for index, why in sorted(status.failed.items())],
        "store": str(store.path),
        "out": str(Path(first.out or ".").parent),
    }


def _without_test_phase(status: Status) -> list[dict[str, str]]:
    """Why algorithms have no test phase under a shift, each reason once."""
    told = {
        (cell.config.algorithm, cell.config.shift, str(words)): None
        for index, cell in enumerate(status.cells)
        if (words := status.results.get(index, {}).get("no_test_phase"))
    }
    return [{"algorithm": algorithm, "shift": shift, "words": words} for algorithm, shift, words in told]


def _bare(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "group"} for line in lines]
