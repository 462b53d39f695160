"""Commands that measure and check: `fedflux bench`, `fidelity` and `doctor`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux.cli import display, display_fidelity
from fedflux.cli.answers import finish
from fedflux.cli.doctor import examine
from fedflux.cli.flags import FIDELITY, Json, takes
from fedflux.models import MODELS
from fedflux.studies.bench import RUNNERS, Work, on_device
from fedflux.studies.bench import bench as run_bench
from fedflux.studies.fidelity import LEVELS, POINTS
from fedflux.studies.fidelity import fidelity as run_fidelity
from fedflux.studies.grid import names, numbers

app = typer.Typer()


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
    finish(answer, as_json, display.show_bench)


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
    finish(answer, as_json, display_fidelity.show_fidelity)


@app.command()
def doctor(
    out: Annotated[Path, typer.Option("--out", help="folder that runs would be written to")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Check this machine: versions, devices, extras, write access, and a short run."""
    checks = examine(out)
    ok = all(check["ok"] for check in checks if check["needed"])
    finish({"ok": ok, "checks": checks}, as_json, lambda a: display.show_checks(a["checks"]))
    if not ok:
        raise typer.Exit(1)
