"""The command line's flags, each defined once, and the decorator that gives some of them to a command."""

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from fedflux.algorithms import ALGORITHMS
from fedflux.clustering import CLUSTERERS
from fedflux.data.shifts.patterns import MIXES, SHIFTS
from fedflux.data.sources import SOURCES
from fedflux.models import MODELS
from fedflux.runs.config import RunConfig
from fedflux.runs.presets import COMMON, PRESETS
from fedflux.runs.storage.store import STORE_FILE
from fedflux.runs.tracking import TRACKERS


def by_dataset(key: str) -> str:
    """A preset's default and the datasets that have another, for --help."""
    others = [f"{name} {values[key]}" for name, values in PRESETS.items() if key in values]
    return f"(default: {COMMON[key]}" + (f"; {', '.join(others)})" if others else ")")


def default(key: str) -> str:
    """A setting's default, for --help."""
    return f"(default: {RunConfig.__dataclass_fields__[key].default})"


def flag(name: str, text: str) -> Any:
    """An option whose help says its default itself, since that depends on the dataset."""
    return typer.Option(name, help=text, show_default=False)


PARTITION: dict[str, tuple[Any, str]] = {
    "dataset": (str, f"{', '.join(SOURCES)} {default('dataset')}"),
    "data_dir": (Path, "folder of the dataset's files, or its parent (npz: the file)"),
    "shift": (str, f"{', '.join([*SHIFTS, *MIXES])} {default('shift')}"),
    "level": (int, f"strength of the shift, 1 to 8 {default('level')}"),
    "patterns": (str, f"pygx, pxgy, soft skews: independent draws, or shared from a bank {default('patterns')}"),
    "bank": (int, f"patterns in a bank {default('bank')}"),
    "strength": (float, "0 to 1: soft skew of px or py instead of a hard pattern"),
    "alpha": (float, "Dirichlet's concentration (default: by level)"),
    "quantity_skew": (float, f"0 to 1: unequal client sizes {default('quantity_skew')}"),
    "clients": (int, "number of clients (default: 10, or the data's own)"),
    "data_fraction": (float, f"share of the training data {default('data_fraction')}"),
    "duplicate": (int, f"times a client holds each of its training examples {default('duplicate')}"),
    "samples_per_client": (int, "examples each client draws, with reuse by others (default: all are dealt, each once)"),
    "seed": (int, f"the paper's folds are 42 to 46 {default('seed')}"),
}
CLUSTERING: dict[str, tuple[Any, str]] = {
    "clusters": (str, "number of clusters: of kmeans, or 'true'; of methods that need it (default: the true one)"),
    "clusterer": (str, f"{', '.join(CLUSTERERS)} {default('clusterer')}"),
    "significance": (float, f"calibrated: chance of splitting a uniform federation {default('significance')}"),
    "eps_scale": (float, f"adaptive-dbscan's factor on the radius {by_dataset('eps_scale')}"),
}
TRAINING: dict[str, tuple[Any, str]] = {
    "drift": (
        str,
        "when clients draw new patterns: after:4,7, gradual:4-7, recurring:3, test, after:4,7+test, … (default: never)",
    ),
    "participation": (float, f"share of clients in each round {default('participation')}"),
    "algorithm": (str, f"{', '.join(ALGORITHMS)} {default('algorithm')}"),
    "preset": (str, "tuned: each method's own learning rate; flux-paper: the choices of the paper's harness"),
    **CLUSTERING,
    "cluster_round": (str, "FedAvg rounds before clustering, or auto: when C(r) fires (default: auto)"),
    "assignment": (str, f"late and unseen clients: calibrated or euclidean {default('assignment')}"),
    "answer": (
        str,
        "cluster: the cluster's model alone; both: and a general one trained beside, as validation weighs them "
        + default("answer"),
    ),
    "novel": (str, f"unseen clients that fit no cluster: nearest cluster's model, or global {default('novel')}"),
    "novelty_level": (float, f"unseen clients of known patterns called novel, at most {default('novelty_level')}"),
    "components": (int, f"length l of the reduced latent {default('components')}"),
    "covariance": (str, f"diagonal or full {default('covariance')}"),
    "bounds": (str, f"S1 per coordinate, or the release's one scalar {default('bounds')}"),
    "projector": (str, f"S2: synthetic (the paper's) or discriminant, for few examples a class {default('projector')}"),
    "redescribe": (int, f"flux-dynamic, flux-soft: describe clients anew every so many rounds {default('redescribe')}"),
    "false_alarms": (
        float,
        f"flux-dynamic: drift found where there is none, a client and round {default('false_alarms')}",
    ),
    "dp": (
        str,
        "gaussian: one release with a real guarantee; paper: its noise on every coordinate (default: gaussian)",
    ),
    "epsilon": (float, "differential privacy of descriptors, not of models: the budget (default: none)"),
    "delta": (float, f"gaussian: the chance that the guarantee may fail {default('delta')}"),
    "model": (str, f"{', '.join(MODELS)} or package.module:factory {by_dataset('model')}"),
    "rounds": (int, f"communication rounds {by_dataset('rounds')}"),
    "epochs": (int, f"local epochs a round {by_dataset('epochs')}"),
    "batch_size": (int, by_dataset("batch_size")),
    "lr": (float, f"learning rate of SGD {by_dataset('lr')}"),
    "momentum": (float, by_dataset("momentum")),
    "clip": (float, "the largest norm of a step's gradient; longer ones are shortened to it (default: none)"),
    "server_momentum": (
        float,
        f"FedAvg, FLUX: how much of a round's movement models go on with in the next {default('server_momentum')}",
    ),
    "finetune": (
        int,
        f"epochs each client goes on alone with at the end, the best on validation kept {default('finetune')}",
    ),
    "engine": (str, "auto, loop, processes or stacked (default: auto)"),
    "device": (str, "auto, cpu, cuda or cuda:N (default: auto)"),
    "precision": (str, "fp32 (TF32 allowed on CUDA), fp32-strict or bf16 (default: fp32)"),
}
KEEPING: dict[str, tuple[Any, str]] = {
    "store": (Path, f"SQLite file that finished runs enter, or none (default: {STORE_FILE} beside the runs)"),
    "track": (str, f"{' or '.join(TRACKERS)}, or both with a comma between"),
}
FIDELITY = [
    *(name for name in PARTITION if name != "level"),
    *("components", "covariance", "bounds", "projector", "model", "rounds", "epochs", "batch_size", "lr", "momentum"),
    *("clip", "engine", "device", "precision"),
]
"""What `fedflux fidelity` reads; the levels are a list there."""
FLAGS = {**PARTITION, **TRAINING, **KEEPING}

Config = Annotated[Path | None, flag("--config", "TOML file with the same keys; flags win")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line of stdout")]


def takes(names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of these settings; it receives those that were told as one dict, `told`."""
    chosen = list(names)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**values: Any) -> None:
            told = {name: value for name in chosen if (value := values.pop(name)) is not None}
            command(told=told, **values)

        own = [p for p in signature(command).parameters.values() if p.name != "told"]
        shared = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[FLAGS[name][0] | None, flag(f"--{name.replace('_', '-')}", FLAGS[name][1])],
            )
            for name in chosen
        ]
        parameters = [*shared, *(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own)]
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate
