"""Commands that use a finished run: `fedflux predict` and `fedflux export`."""

from pathlib import Path
from typing import Annotated

import typer

from fedflux.cli import display
from fedflux.cli.answers import finish
from fedflux.cli.display_predictions import show_predictions
from fedflux.cli.flags import Json
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
    client: Annotated[str, typer.Option("--client", help="a client that trained, by name or number")],
    out: Annotated[Path, typer.Option("--out", help="new or empty folder for the files")],
    as_json: Json = False,
) -> None:
    """Write one client's model, fine-tuned where it was, for use without fedflux: a program, a state dict, a card."""
    trained = load(run)
    chosen = int(client) if client.isdigit() and client not in trained.clients else client
    with display.stderr.status("writing the model"):
        found = export_client(trained, chosen, out)
    words = "the model of client {client} is in {path}: {files}"
    finish(found, as_json, lambda a: display.show_line(words.format(**a, files=", ".join(a["models"]))))
