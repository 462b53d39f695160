"""Every table and figure of the paper by one call: ours beside the paper's, from cells that are run once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.runs.storage.store import Store
from fedflux.studies.compare import Cell, Status, Work, run_cells
from fedflux.studies.paper.study import Place, Study
from fedflux.studies.reproduce.asking import PRESETS, Asked, ask, key
from fedflux.studies.reproduce.cells import Prepared, prepare, wishes
from fedflux.studies.reproduce.distances import measure, measured
from fedflux.studies.reproduce.drawing import draw_lines
from fedflux.studies.reproduce.estimate import Estimate, estimated
from fedflux.studies.reproduce.outcome import Outcome, outcomes
from fedflux.studies.reproduce.pictures import draw_maps, draw_samples
from fedflux.studies.reproduce.rows import Kept, Row
from fedflux.studies.reproduce.tiers import Wanted, narrowed
from fedflux.studies.reproduce.writing import counted, write
from fedflux.studies.workers import work

__all__ = ["Plan", "Wanted", "Watcher", "listed", "make_plan", "reproduce"]


class Watcher:
    """Hears how far it is; a display is one."""

    def on_change(self, status: Status) -> None:
        """A cell got further."""

    def on_distance(self, words: str, share: float) -> None:
        """A measurement of distances got further."""


@dataclass(frozen=True)
class Plan:
    """What is to be done, before it is begun."""

    studies: list[Study]
    presets: tuple[str, ...]
    asked: Mapping[str, Asked]
    prepared: Prepared
    store: Store
    out: Path
    machine: Mapping[str, Any]
    jobs: int
    unfinished: list[Cell] = field(default_factory=list)
    estimate: Estimate | None = None

    def in_words(self) -> str:
        """How much it is."""
        cells, left = len(self.prepared.cells), len(self.unfinished)
        words = f"{cells} cells, {cells - left} of them finished before"
        measured = len(self.prepared.distances)
        words += f", and {measured} measurements of distances" if measured else ""
        if self.estimate is None or not left:
            return words
        hours = self.estimate.hours(self.unfinished, self.jobs)
        time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
        return f"{words}; about {time} on {self.jobs} processes, by {self.estimate.source}"


def listed() -> list[dict[str, Any]]:
    """Every table and figure, in the paper's order."""
    from fedflux.studies.paper.contents import STUDIES

    return [
        {"name": study.name, "kind": study.kind, "title": study.title, "datasets": list(study.datasets)}
        for study in STUDIES.values()
    ]


def make_plan(studies: Sequence[Study], wanted: Wanted, machine: Mapping[str, Any], out: Path, jobs: int) -> Plan:
    """Which cells there are, which are finished, and how long the others may take."""
    if any(study.kind == "description" for study in studies):
        name = next(study.name for study in studies if study.kind == "description")
        raise FedfluxError(f"{name} describes and has no results: nothing can be reproduced")
    chosen = [narrowed(study, wanted) for study in studies]
    asked = wishes(chosen, wanted.presets)
    prepared = prepare(asked, machine, out)
    store = Store(out)
    unfinished = [cell for cell in prepared.cells if store.get(cell.identity) is None]
    guess = estimated(unfinished, prepared.sizes, store) if unfinished and wanted.tier != "smoke" else None
    return Plan(chosen, wanted.presets, asked, prepared, store, out, machine, jobs, unfinished, guess)


def reproduce(plan: Plan, watcher: Watcher | None = None, work: Work = work) -> tuple[dict[str, Any], list[Row]]:
    """Run what is not finished, compare, write; what `fedflux reproduce --json` prints, and a row a finished cell."""
    watcher = watcher or Watcher()
    status = run_cells(plan.prepared.cells, plan.store, plan.jobs, watcher.on_change, work)
    kept = Kept(plan.store, plan.asked, plan.prepared.identities)
    why = {**plan.prepared.refused, **_failures(plan.prepared, status)}
    for asked in plan.prepared.distances:
        row = measured(asked, plan.out)
        try:
            kept.put(key(asked), row or measure(asked, plan.machine, plan.out, watcher.on_distance))
        except FedfluxError as error:
            why[key(asked)] = str(error)
    parts = [_written(study, outcomes(study, plan.presets, kept, why), plan) for study in plan.studies]
    cells = [cell for part in parts for cell in part["cells"]]
    answer = {
        "cells": cells,
        "path": parts[0]["path"] if len(parts) == 1 else str(plan.out),
        "studies": [{name: value for name, value in part.items() if name != "cells"} for part in parts],
        "verdicts": counted(cells),
        "planned": len(plan.prepared.cells),
        "finished_before": status.before,
        "ran": len(status.results) - status.before,
        "failed": [{"cell": status.cells[place].name, "why": words} for place, words in sorted(status.failed.items())],
        "hours_estimated": None if plan.estimate is None else plan.estimate.hours(plan.unfinished, plan.jobs),
        "store": str(plan.store.path),
    }
    return answer, kept.rows()


def finished(plan: Plan) -> list[Row]:
    """A row for each cell of a plan that is finished by now, as when it was stopped in the midst."""
    return Kept(plan.store, plan.asked, plan.prepared.identities).rows()


def _failures(prepared: Prepared, status: Status) -> dict[str, str]:
    """Why cells failed, by what was asked for."""
    by_identity = {status.cells[place].identity: words for place, words in status.failed.items()}
    return {name: by_identity[one] for name, one in prepared.identities.items() if one in by_identity}


def _written(study: Study, found: list[Outcome], plan: Plan) -> dict[str, Any]:
    """A study's files, and what the answer says of it."""
    folder = plan.out / "reproduced" / study.short
    files = write(study, found, folder)
    stem = folder / study.short
    if study.drawn == "lines":
        files += draw_lines(study, found, stem)
    elif study.drawn == "maps":
        files += draw_maps(study, {place: _folder(place, study, plan) for place in study.places}, stem)
    missing = None
    if study.drawn == "samples":
        try:
            files += draw_samples(study, plan.machine, stem)
        except FedfluxError as error:
            missing = str(error)
    return {
        "name": study.name,
        "title": study.title,
        "protocol": study.protocol,
        "seeds": list(study.seeds),
        "path": str(folder),
        "files": [path.name for path in files],
        "missing": missing,
        "cells": [one.as_dict(study.name) for one in found],
    }


def _folder(place: Place, study: Study, plan: Plan) -> Path | None:
    """Where the run of a map is."""
    name = key(ask(place.runs, *place.runs.grid[0], study.seeds[0], PRESETS[0]))
    identity = plan.prepared.identities.get(name)
    cell = next((cell for cell in plan.prepared.cells if cell.identity == identity), None)
    return None if cell is None or cell.config.out is None else Path(cell.config.out)
