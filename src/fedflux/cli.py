"""One door: `fedflux run | cluster | partition | doctor`."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux import __version__, display
from fedflux.algorithms import ALGORITHMS
from fedflux.data.export import MANIFEST, export_federation
from fedflux.data.patterns import MIXES, SHIFTS
from fedflux.data.sources import SOURCES
from fedflux.errors import FedfluxError
from fedflux.experiments.config import RunConfig, make_config
from fedflux.experiments.doctor import examine
from fedflux.experiments.presets import COMMON, PRESETS
from fedflux.experiments.recluster import recluster
from fedflux.experiments.runner import build_federation, run_config
from fedflux.files import make_folder
from fedflux.flux.clustering import ALPHA, CLUSTERERS
from fedflux.models import MODELS

app = typer.Typer(
    help="Clustered federated learning under distribution shift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _by_dataset(key: str) -> str:
    """A preset's default and the datasets that have another, for --help."""
    others = [f"{name} {values[key]}" for name, values in PRESETS.items() if key in values]
    return f"(default: {COMMON[key]}" + (f"; {', '.join(others)})" if others else ")")


def _default(key: str) -> str:
    return f"(default: {RunConfig.__dataclass_fields__[key].default})"


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text, show_default=False)


Dataset = Annotated[str | None, _flag("--dataset", f"{', '.join(SOURCES)} {_default('dataset')}")]
DataDir = Annotated[Path | None, _flag("--data-dir", "folder of the dataset's files, or its parent (npz: the file)")]
Shift = Annotated[str | None, _flag("--shift", f"{', '.join([*SHIFTS, *MIXES])} {_default('shift')}")]
Level = Annotated[int | None, _flag("--level", f"strength of the shift, 1 to 8 {_default('level')}")]
Patterns = Annotated[
    str | None,
    _flag("--patterns", f"pygx, pxgy, soft skews: independent draws, or shared from a bank {_default('patterns')}"),
]
Bank = Annotated[int | None, _flag("--bank", f"patterns in a bank {_default('bank')}")]
Strength = Annotated[float | None, _flag("--strength", "0 to 1: soft skew of px or py instead of a hard pattern")]
Alpha = Annotated[float | None, _flag("--alpha", "Dirichlet's concentration (default: by level)")]
Quantity = Annotated[
    float | None, _flag("--quantity-skew", f"0 to 1: unequal client sizes {_default('quantity_skew')}")
]
Clients = Annotated[int | None, _flag("--clients", "number of clients (default: 10, or the data's own)")]
Fraction = Annotated[float | None, _flag("--data-fraction", f"share of the training data {_default('data_fraction')}")]
Seed = Annotated[int | None, _flag("--seed", f"the paper's folds are 42 to 46 {_default('seed')}")]
Config = Annotated[Path | None, _flag("--config", "TOML file with the same keys; flags win")]
Clusters = Annotated[str | None, _flag("--clusters", "number of clusters for kmeans, or 'true'")]
ClustererName = Annotated[str | None, _flag("--clusterer", f"{', '.join(CLUSTERERS)} {_default('clusterer')}")]
EpsScale = Annotated[
    float | None, _flag("--eps-scale", f"adaptive-dbscan's factor on the radius {_by_dataset('eps_scale')}")
]
Significance = Annotated[
    float | None,
    _flag("--significance", f"calibrated: chance of splitting a uniform federation {_default('significance')}"),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line of stdout")]


@app.command()
def run(
    dataset: Dataset = None,
    data_dir: DataDir = None,
    shift: Shift = None,
    level: Level = None,
    patterns: Patterns = None,
    bank: Bank = None,
    strength: Strength = None,
    alpha: Alpha = None,
    quantity_skew: Quantity = None,
    clients: Clients = None,
    data_fraction: Fraction = None,
    participation: Annotated[
        float | None, _flag("--participation", f"share of clients in each round {_default('participation')}")
    ] = None,
    algorithm: Annotated[str | None, _flag("--algorithm", f"{', '.join(ALGORITHMS)} {_default('algorithm')}")] = None,
    clusters: Clusters = None,
    clusterer: ClustererName = None,
    significance: Significance = None,
    eps_scale: EpsScale = None,
    cluster_round: Annotated[
        str | None,
        _flag("--cluster-round", "FedAvg rounds before clustering, or auto: when C(r) fires (default: auto)"),
    ] = None,
    assignment: Annotated[
        str | None, _flag("--assignment", f"late and unseen clients: calibrated or euclidean {_default('assignment')}")
    ] = None,
    components: Annotated[
        int | None, _flag("--components", f"length l of the reduced latent {_default('components')}")
    ] = None,
    covariance: Annotated[str | None, _flag("--covariance", f"diagonal or full {_default('covariance')}")] = None,
    bounds: Annotated[
        str | None, _flag("--bounds", f"S1 per coordinate, or the release's one scalar {_default('bounds')}")
    ] = None,
    model: Annotated[
        str | None, _flag("--model", f"{', '.join(MODELS)} or package.module:factory {_by_dataset('model')}")
    ] = None,
    rounds: Annotated[int | None, _flag("--rounds", f"communication rounds {_by_dataset('rounds')}")] = None,
    epochs: Annotated[int | None, _flag("--epochs", f"local epochs a round {_by_dataset('epochs')}")] = None,
    batch_size: Annotated[int | None, _flag("--batch-size", _by_dataset("batch_size"))] = None,
    lr: Annotated[float | None, _flag("--lr", f"learning rate of SGD {_by_dataset('lr')}")] = None,
    momentum: Annotated[float | None, _flag("--momentum", _by_dataset("momentum"))] = None,
    seed: Seed = None,
    engine: Annotated[str | None, _flag("--engine", "auto or loop (default: auto)")] = None,
    device: Annotated[str | None, _flag("--device", "auto, cpu, cuda or cuda:N (default: auto)")] = None,
    precision: Annotated[
        str | None, _flag("--precision", "fp32 (TF32 allowed on CUDA), fp32-strict or bf16 (default: fp32)")
    ] = None,
    until: Annotated[str | None, _flag("--until", "'clustered' stops once the clusters are found")] = None,
    out: Annotated[
        Path | None, _flag("--out", "folder of the run (default: runs/ and a name made of the settings)")
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train one algorithm on one federation and evaluate it twice: clients known from training, and unseen ones."""
    told = {k: v for k, v in locals().items() if k not in ("config", "as_json")}
    settings = make_config(told, config)
    title = f"{settings.algorithm} · {settings.dataset} · {settings.shift} level {settings.level}"
    with display.rounds_bar(title, settings.rounds) as on_round:
        result = run_config(settings, on_round)
    _answer(result, as_json, display.show_run)


@app.command()
def cluster(
    run: Annotated[Path, typer.Argument(help="folder of a run that saved descriptors")],
    clusterer: ClustererName = None,
    clusters: Clusters = None,
    significance: Significance = None,
    eps_scale: EpsScale = None,
    as_json: Json = False,
) -> None:
    """Cluster a run's descriptors again with another clusterer, in milliseconds."""
    level = ALPHA if significance is None else significance
    name = clusterer or str(RunConfig.__dataclass_fields__["clusterer"].default)
    _answer(
        recluster(run, name, clusters, 1.0 if eps_scale is None else eps_scale, level), as_json, display.show_clusters
    )


@app.command()
def partition(
    out: Annotated[Path, typer.Option("--out", help="new or empty folder for the clients' files")],
    dataset: Dataset = None,
    data_dir: DataDir = None,
    shift: Shift = None,
    level: Level = None,
    patterns: Patterns = None,
    bank: Bank = None,
    strength: Strength = None,
    alpha: Alpha = None,
    quantity_skew: Quantity = None,
    clients: Clients = None,
    data_fraction: Fraction = None,
    seed: Seed = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write a shifted federation to disk: one .npz per client and a JSON manifest."""
    told = {k: v for k, v in locals().items() if k not in ("config", "as_json", "out")}
    federation, settings = build_federation(make_config(told, config))
    folder = make_folder(out, "partition", MANIFEST, {"checksum", "clients"})
    with display.stderr.status("writing clients"):
        export_federation(federation, settings.partition(), folder)
    answer = {"clients": len(federation), "path": str(folder)}
    _answer(answer, as_json, lambda a: display.show_line(f"{a['clients']} clients written to {a['path']}"))


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
        if os.environ.get("FEDFLUX_DEBUG"):
            traceback.print_exc()
        _fail(f"{type(error).__name__}: {error} (FEDFLUX_DEBUG=1 shows where)", 1)


def _fail(message: str, status: int) -> None:
    print(f"fedflux: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
