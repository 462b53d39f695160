"""One door: `fedflux run | compare | report | cluster | partition | store | bench | fidelity | doctor`."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedflux.algorithms import ALGORITHMS, READS
from fedflux.cli import display, display_fidelity
from fedflux.cli.doctor import examine
from fedflux.cli.flags import CLUSTERING, FIDELITY, FLAGS, PARTITION, Config, Json, flag, takes
from fedflux.clustering.settings import ClusteringSettings, with_kmeans
from fedflux.data.export import MANIFEST, export_federation
from fedflux.data.shifts.patterns import MIXES, SHIFTS
from fedflux.errors import FedfluxError
from fedflux.files import make_folder
from fedflux.models import MODELS
from fedflux.runs.config import make_config, unread_in_words
from fedflux.runs.runner import build_federation, run_config
from fedflux.runs.session import StoppedError
from fedflux.runs.storage.folder import read_config
from fedflux.runs.storage.store import Store, export_store, merge_stores
from fedflux.settings import from_mapping
from fedflux.studies.bench import RUNNERS, Work, on_device
from fedflux.studies.bench import bench as run_bench
from fedflux.studies.compare import compare as run_comparison
from fedflux.studies.compare import plan
from fedflux.studies.fidelity import LEVELS, POINTS
from fedflux.studies.fidelity import fidelity as run_fidelity
from fedflux.studies.grid import comparison, names, numbers
from fedflux.studies.recluster import recluster
from fedflux.studies.report import write_report
from fedflux.version import __version__

app = typer.Typer(
    help="Clustered federated learning under distribution shift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
stores = typer.Typer(help="Join run stores, or turn one into CSV.", no_args_is_help=True)
app.add_typer(stores, name="store")
GRID = ("algorithm", "shift", "level", "seed")


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
    title = f"{settings.algorithm} · {settings.dataset} · {settings.shift} level {settings.level}"
    try:
        with display.rounds_bar(title, settings.rounds) as on_round:
            result = run_config(settings, on_round)
    except KeyboardInterrupt as stop:
        _fail(str(stop) or "stopped", 130)
    _answer(result, as_json, display.show_run)


@app.command()
@takes(name for name in FLAGS if name not in (*GRID, "until", "out", "resume"))
def compare(
    requested: dict[str, Any],
    algorithms: Annotated[
        str | None, flag("--algorithms", f"{', '.join(ALGORITHMS)}, with commas, or all (default: fedavg,flux)")
    ] = None,
    shifts: Annotated[
        str | None, flag("--shifts", f"{', '.join([*SHIFTS, *MIXES])}, with commas (default: px,py,pygx,pxgy)")
    ] = None,
    levels: Annotated[str | None, flag("--levels", "1 to 8: 4, or 1,3, or 1-8 (default: 4)")] = None,
    seeds: Annotated[str | None, flag("--seeds", "42, or 42-46 (default: 42)")] = None,
    jobs: Annotated[
        int | None, flag("--jobs", "processes that run at once, each with the data in its memory (default: 1)")
    ] = None,
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
    cells = plan(others, wanted.algorithms, wanted.shifts, wanted.levels, wanted.seeds, wanted.out)
    for line in unread_in_words(others, *(cell.config for cell in cells)):
        display.stderr.print(line, highlight=False)
    store = Store(Path(cells[0].config.store or wanted.out))
    try:
        with display.comparison_table() as on_change:
            answer = run_comparison(cells, store, wanted.jobs, wanted.reference, on_change)
    except KeyboardInterrupt:
        _fail(f"stopped: {len(store)} finished cells are kept in {store.path}; the same command goes on", 130)
    _answer(answer, as_json, display.show_comparison)
    if answer["failed"]:
        raise typer.Exit(1)


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="run folders, or folders that hold some")],
    out: Annotated[Path | None, typer.Option(help="the page (default: report.html in the first folder)")] = None,
    export: Annotated[Path | None, typer.Option(help="folder for the figures as PNG and SVG, tables as LaTeX")] = None,
    reference: Annotated[str | None, typer.Option(help="algorithm the others are compared with")] = None,
    as_json: Json = False,
) -> None:
    """Make one self-contained HTML page of runs: open it from disk, send it to a colleague."""
    with display.stderr.status("making the report"):
        page = write_report(paths, out, export, reference)
    answer = {"report": str(page), "export": None if export is None else str(export)}
    _answer(answer, as_json, lambda a: display.show_line(f"report written to {a['report']}"))


@stores.command()
def merge(
    store: Annotated[Path, typer.Argument(help="the store that takes the others in; made where it is missing")],
    others: Annotated[list[Path], typer.Argument(help="stores filled elsewhere, or their folders")],
    as_json: Json = False,
) -> None:
    """Take the cells of other stores into one; cells that are there already stay as they are."""
    answer = merge_stores(store, others)
    words = "{added} cells taken in, {known} known already ({different} of them with other numbers): {cells} in {path}"
    _answer(answer, as_json, lambda a: display.show_line(words.format(**a)))


@stores.command()
def export(
    store: Annotated[Path, typer.Argument(help="a store, or the folder it is in")],
    out: Annotated[Path, typer.Option(help="the CSV file")] = Path("cells.csv"),
    as_json: Json = False,
) -> None:
    """Write all cells of a store as CSV, one row a cell."""
    answer = {"cells": export_store(store, out), "path": str(out)}
    _answer(answer, as_json, lambda a: display.show_line(f"{a['cells']} cells written to {a['path']}"))


@app.command()
@takes(CLUSTERING)
def cluster(
    requested: dict[str, Any],
    run: Annotated[Path, typer.Argument(help="folder of a run that saved descriptors")],
    as_json: Json = False,
) -> None:
    """Cluster a run's descriptors again with another clusterer, in milliseconds."""
    how = from_mapping(ClusteringSettings, with_kmeans(requested))
    found = recluster(run, how.clusterer, how.clusters, how.eps_scale, how.significance)
    _answer(found, as_json, display.show_clusters)


@app.command()
@takes(PARTITION)
def partition(
    requested: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", help="new or empty folder for the clients' files")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write a shifted federation to disk: one .npz per client and a JSON manifest."""
    asked = make_config(requested, config)
    if asked.drift is not None:
        raise FedfluxError("partition writes clients as they are at one moment: leave out drift")
    federation, settings = build_federation(asked)
    folder = make_folder(out, "partition", MANIFEST, {"checksum", "clients"})
    with display.stderr.status("writing clients"):
        export_federation(federation, settings.partition(), folder)
    answer = {"clients": len(federation), "path": str(folder)}
    _answer(answer, as_json, lambda a: display.show_line(f"{a['clients']} clients written to {a['path']}"))


@app.command()
def bench(
    clients: Annotated[str, typer.Option(help="numbers of clients: 10, or 10,100")] = "10",
    runners: Annotated[str, typer.Option(help=f"{', '.join(RUNNERS)}, with commas, or all")] = "all",
    samples: Annotated[int, typer.Option(min=1, help="examples a client")] = Work.samples,
    uneven: Annotated[bool, typer.Option("--uneven", help="client sizes from half to one and a half of that")] = False,
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}, on 28×28 images")] = Work.model,
    epochs: Annotated[int, typer.Option(min=1, help="local epochs a round")] = Work.epochs,
    batch_size: Annotated[int, typer.Option(min=1)] = Work.batch_size,
    repeats: Annotated[int, typer.Option(min=1, help="timed rounds of each runner; the median counts")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, fp32-strict or bf16")] = Work.precision,
    out: Annotated[Path | None, typer.Option(help="folder for bench.json and bench.png")] = None,
    as_json: Json = False,
) -> None:
    """Measure the engines on this machine, side by side with a plain loop, Flower on Ray, and pfl."""
    chosen, place = names(runners, list(RUNNERS), "runners"), on_device(device)
    works = [
        Work(count, samples, model, epochs, batch_size, uneven=uneven, device=place, precision=precision)
        for count in numbers(clients, "clients")
    ]
    with display.steps() as tell:
        answer = run_bench(works, chosen, repeats, out, tell)
    _answer(answer, as_json, display.show_bench)


@app.command()
@takes(FIDELITY)
def fidelity(
    requested: dict[str, Any],
    levels: Annotated[str, typer.Option(help="strengths of the shift: 3, or 3,5,7")] = LEVELS,
    points: Annotated[int, typer.Option(help="examples a client whose W2 is found")] = POINTS,
    out: Annotated[Path, typer.Option(help="folder for the figures, all pairs and a picture")] = Path("runs/fidelity"),
    as_json: Json = False,
) -> None:
    """Measure how far descriptor distances are from W2 (default: pygx, 30 clients, 10 rounds: 44,850 pairs a level)."""
    with display_fidelity.share_bar("fidelity") as tell:
        answer = run_fidelity(requested, numbers(levels, "levels"), points, out, tell)
    _answer(answer, as_json, display_fidelity.show_fidelity)


@app.command()
def doctor(
    out: Annotated[Path, typer.Option("--out", help="folder that runs would be written to")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Check this machine: versions, devices, extras, write access, and a short run."""
    checks = examine(out)
    ok = all(check["ok"] for check in checks if check["needed"])
    _answer({"ok": ok, "checks": checks}, as_json, lambda a: display.show_checks(a["checks"]))
    if not ok:
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Clustered federated learning under distribution shift."""
    if show:
        print(__version__)
        raise typer.Exit


def _answer(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    if as_json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
    else:
        show(result)


def main() -> None:
    """Run the command line: 0 on success, 2 on bad input, 130 on Ctrl-C, 1 otherwise; errors in one line."""
    try:
        status = app(standalone_mode=False)
        if status == 130:  # how newer versions of the parser report Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except FedfluxError as error:
        _fail(str(error), 2)
    except Exception as error:
        if type(error).__name__ == "Abort":
            _fail("stopped", 130)
        if hasattr(error, "format_message"):  # the command-line parser's own errors
            message = error.format_message()
            if not message:  # called without a command: the help is on the screen already
                sys.exit(2)
            _fail(f"{message} (see fedflux --help)", 2)
        if isinstance(error, StoppedError):
            _fail(str(error), 1)
        if os.environ.get("FEDFLUX_DEBUG"):
            traceback.print_exc()
        _fail(f"{type(error).__name__}: {error} (FEDFLUX_DEBUG=1 shows where)", 1)


def _fail(message: str, status: int) -> NoReturn:
    print(f"fedflux: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
