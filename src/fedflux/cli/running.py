"""Commands that train: `fedflux run` and `fedflux compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux.algorithms import ALGORITHMS, READS
from fedflux.cli import display, display_run
from fedflux.cli.answers import fail, finish
from fedflux.cli.flags import FLAGS, Config, Json, On, flag, takes
from fedflux.data.shifts.patterns import MIXES, SHIFTS
from fedflux.errors import FedfluxError
from fedflux.runs.config import make_config, unread_in_words
from fedflux.runs.identity import shift_words
from fedflux.runs.runner import run_config
from fedflux.runs.storage.folder import read_config
from fedflux.runs.storage.store import Store
from fedflux.studies.cluster import on_cluster
from fedflux.studies.compare import compare as run_comparison
from fedflux.studies.compare import plan
from fedflux.studies.grid import OF_OWN_DATA, SIMULATED, comparison
from fedflux.studies.workers import work as on_processes

app = typer.Typer()
GRID = ("algorithm", "shift", "level", "seed")
SHIFTS_HELP = f"{', '.join([*SHIFTS, *MIXES])}, with commas (default: {SIMULATED}; of your own data: {OF_OWN_DATA})"


@app.command()
@takes(FLAGS)
def run(requested: dict[str, Any], config: Config = None, as_json: Json = False) -> None:
    """Train one algorithm on one federation and evaluate it twice: clients known from training, and unseen ones."""
    settings = make_config({**requested, "resume": requested.get("resume") or None}, config)
    if requested.get("finetune") and "finetune" not in READS[settings.algorithm]:
        others = ", ".join(name for name in ALGORITHMS if "finetune" in READS[name])
        raise FedfluxError(f"--finetune: {settings.algorithm} has no one model a client to go on with; {others} have")
    if requested.get("epsilon") and "epsilon" not in READS[settings.algorithm]:
        raise FedfluxError(f"--epsilon protects descriptors, and {settings.algorithm} sends none; use flux")
    for line in unread_in_words(settings.given(), settings):
        display.stderr.print(line, highlight=False)
    if settings.resume and settings.out and read_config(Path(settings.out)) is None:
        display.stderr.print("nothing to resume there: starting", highlight=False)
    title = f"{settings.algorithm} · {settings.dataset} · {shift_words(settings)}"
    try:
        with display.rounds_bar(title, settings.rounds) as on_round:
            result = run_config(settings, on_round)
    except KeyboardInterrupt as stop:
        fail(str(stop) or "stopped", 130)
    finish(result, as_json, display_run.show_run)


@app.command()
@takes(name for name in FLAGS if name not in (*GRID, "until", "out", "resume"))
def compare(
    requested: dict[str, Any],
    algorithms: Annotated[
        str | None, flag("--algorithms", f"{', '.join(ALGORITHMS)}, with commas, or all (default: fedavg,flux)")
    ] = None,
    shifts: Annotated[str | None, flag("--shifts", SHIFTS_HELP)] = None,
    levels: Annotated[str | None, flag("--levels", "1 to 8: 4, or 1,3, or 1-8 (default: 4)")] = None,
    seeds: Annotated[str | None, flag("--seeds", "42, or 42-46 (default: 42)")] = None,
    jobs: Annotated[
        int | None, flag("--jobs", "processes that run at once, each with the data in its memory (default: 1)")
    ] = None,
    on: On = None,
    reference: Annotated[
        str | None, flag("--reference", "algorithm the others are compared with (default: fedavg, else the first)")
    ] = None,
    out: Annotated[Path | None, flag("--out", "folder of the runs and their store (default: runs/compare)")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run a grid of algorithms, shifts, levels and seeds; finished cells are never repeated, stopped ones go on."""
    grid = {"algorithms": algorithms, "shifts": shifts, "levels": levels, "seeds": seeds, "jobs": jobs}
    given = {**grid, "reference": reference, "out": out}
    wanted, others = comparison(given, requested, config)
    work = on_cluster(on) if on else on_processes
    cells = plan(others, wanted.algorithms, wanted.shifts, wanted.levels, wanted.seeds, wanted.out)
    for line in unread_in_words(others, *(cell.config for cell in cells)):
        display.stderr.print(line, highlight=False)
    store = Store(Path(cells[0].config.store or wanted.out))
    try:
        with display.comparison_table() as on_change:
            answer = run_comparison(cells, store, wanted.jobs, wanted.reference, on_change, work)
    except KeyboardInterrupt:
        fail(f"stopped: {len(store)} finished cells are kept in {store.path}; the same command goes on", 130)
    finish(answer, as_json, display.show_comparison)
    if answer["failed"]:
        raise typer.Exit(1)
