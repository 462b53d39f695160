"""`fedflux reproduce`: the paper's tables and figures, ours beside them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux.algorithms import ALGORITHMS
from fedflux.cli import display
from fedflux.cli.answers import fail, finish
from fedflux.cli.flags import Json, On, flag, takes
from fedflux.cli.reproducing import shown
from fedflux.errors import FedfluxError
from fedflux.studies.cluster import on_cluster
from fedflux.studies.grid import names, numbers
from fedflux.studies.paper.contents import STUDIES, find_study
from fedflux.studies.reproduce import Wanted, finished, listed, make_plan
from fedflux.studies.reproduce import reproduce as run_studies
from fedflux.studies.reproduce.asking import PRESETS
from fedflux.studies.reproduce.pages import write_pages
from fedflux.studies.reproduce.rows import keep
from fedflux.studies.reproduce.tiers import TIERS
from fedflux.studies.reproduce.verify import verify as run_again
from fedflux.studies.workers import work as on_processes

app = typer.Typer()
MACHINE = ("data_dir", "device", "engine", "samples")
RESULTS = [name for name, study in STUDIES.items() if study.kind != "description"]


@app.callback()
def of_its_own() -> None:
    """A list of commands with one in it, as the others are."""


@app.command()
@takes(MACHINE)
def reproduce(
    requested: dict[str, Any],
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="tables and figures (see --list), or all")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="name every table and figure, and end")] = False,
    tier: Annotated[
        str, typer.Option(help="smoke: seconds, on digits; quick: one seed, few levels; full: as in the paper")
    ] = "quick",
    dataset: Annotated[
        str | None, flag("--dataset", "only these of its datasets; nih-cxr takes CheXpert's place")
    ] = None,
    algorithms: Annotated[
        str | None, flag("--algorithms", "only these methods, with commas, or all; also such as the paper has not")
    ] = None,
    rows: Annotated[str | None, flag("--rows", "only rows whose name has one of these words: 4%,8%")] = None,
    levels: Annotated[str | None, flag("--levels", "only these levels: 4, or 2,4, or 1-8")] = None,
    seeds: Annotated[str | None, flag("--seeds", "42, or 42-46 (default: the tier's)")] = None,
    presets: Annotated[
        str | None,
        flag("--presets", "default, paper, or both with a comma: FLUX as it is, to the letter (default: both)"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes that run at once")] = 1,
    on: On = None,
    out: Annotated[Path, typer.Option(help="folder of the runs, their store and what is made of them")] = Path(
        "runs/reproduce"
    ),
    results: Annotated[
        Path | None,
        flag("--results", "folder of CSV files: finished cells go in, and its pages are made anew; alone: pages only"),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="run one finished cell again and compare: bits on CPU, 0.5 points on CUDA")
    ] = False,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper: ours beside the paper's, with a verdict; no cell is run twice."""
    if show:
        finish({"studies": listed()}, as_json, shown.show_list)
        return
    if not studies:
        if results is None:
            raise FedfluxError(f"name a table or figure, or all; --list shows them ({', '.join(TIERS)}: --tier)")
        pages = {"pages": [str(path) for path in write_pages(results)], "path": str(results)}
        finish(pages, as_json, lambda a: display.show_line(f"{len(a['pages'])} pages written to {a['path']}"))
        return
    chosen = [find_study(one) for name in studies for one in (RESULTS if name == "all" else [name])]
    wanted = Wanted(
        tier,
        _several(dataset),
        None if algorithms is None else tuple(names(algorithms, list(ALGORITHMS), "algorithms")),
        None if levels is None else tuple(numbers(levels, "levels")),
        None if seeds is None else tuple(numbers(seeds, "seeds")),
        _several(presets) or PRESETS,
        _several(rows),
    )
    work = on_cluster(on) if on else on_processes
    with display.stderr.status("looking at what is finished"):
        plan = make_plan(list(dict.fromkeys(chosen)), wanted, requested, out, jobs)
    if verify:
        with display.stderr.status("running a finished cell again"):
            answer = run_again(plan.prepared.cells, plan.store)
        finish(answer, as_json, shown.show_verified)
        if not answer["verified"]:
            raise typer.Exit(1)
        return
    display.stderr.print(plan.in_words(), highlight=False, soft_wrap=True)
    try:
        with shown.cells_bar(plan) as watcher:
            answer, rows_made = run_studies(plan, watcher, work)
    except KeyboardInterrupt:
        if results is not None:
            keep(finished(plan), results)
            write_pages(results)
        fail(f"stopped: {len(plan.store)} finished cells are kept in {plan.store.path}; the same command goes on", 130)
    if results is not None:
        keep(rows_made, results)
        answer["pages"] = [str(path) for path in write_pages(results)]
    finish(answer, as_json, shown.show_reproduced)
    if answer["failed"]:
        raise typer.Exit(1)


def _several(told: str | None) -> tuple[str, ...] | None:
    return None if told is None else tuple(one.strip() for one in told.split(",") if one.strip())
