"""Commands that use a finished run: `fedflux predict` and `fedflux export`."""

from pathlib import Path
from typing import Annotated

import typer

from fedflux.cli import display
from fedflux.cli.answers import finish
from fedflux.cli.display_predictions import show_predictions
from fedflux.cli.flags import Json
from fedflux.errors import FedfluxError
from fedflux.library.export import export_client
from fedflux.library.predict import predict_file
from fedflux.library.trained import load

app = typer.Typer()
Run = Annotated[Path, typer.Argument(help="folder of a finished run")]


@app.command()
def predict(
    run: Run,
    data: Annotated[Path, typer.Option("--data", help="the new clients: a .npz or .csv file, or a folder of images")],
    out: Annotated[Path | None, typer.Option("--out", help="a .npz or .csv file (default: beside DATA)")] = None,
    as_json: Json = False,
) -> None:
    """Place clients that a run has never seen by their features alone, and predict for each of their records."""
    with display.stderr.status("placing clients and predicting"):
        found = predict_file(load(run), data, out)
    finish(found, as_json, show_predictions)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option("--out", help="new or empty folder for the files, or a .zip for the bundle")],
    client: Annotated[
        str | None, typer.Option("--client", help="only the model of a client that trained, by name or number")
    ] = None,
    min_members: Annotated[
        int | None,
        typer.Option("--min-members", min=1, help="leave out clusters of fewer clients (default: the run's)"),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="PEM file of an ed25519 key that signs the bundle")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a bundle to place and serve new clients with; with --client one client's model, for plain PyTorch."""
    if client is None:
        from fedflux.serve.making import export_bundle

        with display.stderr.status("writing the bundle"):
            found = export_bundle(load(run), out, min_members, sign)
        words = "bundle of {count} models written to {path}"
        finish(found, as_json, lambda a: display.show_line(words.format(**a, count=len(a["models"]))))
        return
    if min_members is not None or sign is not None:
        raise FedfluxError("--min-members and --sign are of bundles: leave out --client")
    trained = load(run)
    chosen = int(client) if client.isdigit() and client not in trained.clients else client
    with display.stderr.status("writing the model"):
        found = export_client(trained, chosen, out)
    words = "the model of client {client} is in {path}: {files}"
    finish(found, as_json, lambda a: display.show_line(words.format(**a, files=", ".join(a["models"]))))
