"""Commands about runs and federations on disk: `fedflux report`, `store`, `cluster` and `partition`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux.cli import display, display_run
from fedflux.cli.answers import finish
from fedflux.cli.flags import CLUSTERING, PARTITION, Config, Json, takes
from fedflux.clustering.settings import ClusteringSettings, with_kmeans
from fedflux.data.export import MANIFEST, export_federation
from fedflux.errors import FedfluxError
from fedflux.files import make_folder
from fedflux.runs.config import make_config
from fedflux.runs.runner import build_federation
from fedflux.runs.storage.store import export_store, merge_stores
from fedflux.settings import from_mapping
from fedflux.studies.recluster import recluster
from fedflux.studies.report import write_report

app = typer.Typer()
stores = typer.Typer(help="Join run stores, or turn one into CSV.", no_args_is_help=True)
app.add_typer(stores, name="store")


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="run folders, folders that hold some, or stores")],
    out: Annotated[Path | None, typer.Option(help="the page (default: report.html in the first folder)")] = None,
    export: Annotated[Path | None, typer.Option(help="folder for the figures as PNG and SVG, tables as LaTeX")] = None,
    reference: Annotated[str | None, typer.Option(help="algorithm the others are compared with")] = None,
    as_json: Json = False,
) -> None:
    """Make one self-contained HTML page of runs: open it from disk, send it to a colleague."""
    with display.stderr.status("making the report"):
        page = write_report(paths, out, export, reference)
    answer = {"report": str(page), "export": None if export is None else str(export)}
    finish(answer, as_json, lambda a: display.show_line(f"report written to {a['report']}"))


@stores.command()
def merge(
    store: Annotated[Path, typer.Argument(help="the store that takes the others in; made where it is missing")],
    others: Annotated[list[Path], typer.Argument(help="stores filled elsewhere, or their folders")],
    as_json: Json = False,
) -> None:
    """Take the cells of other stores into one; cells that are there already stay as they are."""
    answer = merge_stores(store, others)
    words = "{added} cells taken in, {known} known already ({different} of them with other numbers): {cells} in {path}"
    finish(answer, as_json, lambda a: display.show_line(words.format(**a)))


@stores.command()
def export(
    store: Annotated[Path, typer.Argument(help="a store, or the folder it is in")],
    out: Annotated[Path, typer.Option(help="the CSV file")] = Path("cells.csv"),
    as_json: Json = False,
) -> None:
    """Write all cells of a store as CSV, one row a cell."""
    answer = {"cells": export_store(store, out), "path": str(out)}
    finish(answer, as_json, lambda a: display.show_line(f"{a['cells']} cells written to {a['path']}"))


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
    finish(found, as_json, display_run.show_clusters)


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
    finish(answer, as_json, lambda a: display.show_line(f"{a['clients']} clients written to {a['path']}"))
