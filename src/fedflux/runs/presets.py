"""Presets, which are named sets of settings: of every dataset, and those that `--preset` takes.

`0.1` is every default of that version, for good. `paper` is the paper's FLUX to the letter. `tuned` gives every method
the learning rate that suits it. `paper-baselines` changes no setting: it says what runs under the baselines' names.
"""

from functools import cache
from importlib.resources import files
from json import loads
from typing import Any

from fedflux.algorithms import READS
from fedflux.errors import FedfluxError
from fedflux.runs.settings import AllSettings
from fedflux.settings import defaults

OWN_DATA: dict[str, Any] = {"shift": "none", "batch_size": 32, "lr": 0.01}
"""What differs from the defaults on people's own data, and on datasets that are not listed below."""
CHEST: dict[str, Any] = {
    "model": "resnet9",
    "rounds": 20,
    "shift": "none",
    "level": 3,
    "clients": 20,
    "samples_per_client": 187,
}
"""150 images to train on and 37 to validate with, for each of 20 clients of the finest kind."""
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "batch_size": 16, "lr": 0.05},
    "mnist": {"model": "lenet5"},
    "fmnist": {"model": "lenet5", "eps_scale": 0.95},
    "emnist": {"model": "lenet5"},
    "cifar10": {"model": "lenet5"},
    "cifar100": {"model": "resnet9", "rounds": 15, "eps_scale": 0.98},
    "officehome": {"model": "resnet9", "rounds": 40, "shift": "none"},
    "chexpert": CHEST,
    "nih-cxr": CHEST,
    "heart-disease": {
        "model": "fedflux.models.linear:LogisticRegression",
        "shift": "none",
        "rounds": 15,
        "epochs": 4,
        "batch_size": 4,
        "lr": 0.0005,
        "momentum": 0.0,
    },
    "folder": OWN_DATA,
    "npz": OWN_DATA,
    "csv": OWN_DATA,
}
"""What differs from the defaults on a dataset: the paper's settings where it has them (App. "Models and Hyper-parameter
Settings").
"""


ADAMS_RATE = 0.001
"""Of Adam's authors, and PyTorch's."""


def preset(dataset: str) -> dict[str, Any]:
    """Every setting as it is on a dataset when nobody asks for another."""
    return {**defaults(AllSettings), **PRESETS.get(dataset, OWN_DATA), "dataset": dataset}


VERSION_0_1: dict[str, Any] = {
    "dataset": "digits",
    "data_dir": None,
    "shift": "px",
    "level": 4,
    "clients": None,
    "seed": 42,
    "patterns": "independent",
    "bank": 5,
    "strength": None,
    "alpha": None,
    "quantity_skew": 0.0,
    "data_fraction": 1.0,
    "duplicate": 1,
    "samples_per_client": None,
    "drift": None,
    "unseen": 0,
    "scale": "pixels",
    "participation": 1.0,
    "algorithm": "flux",
    "clusters": None,
    "clusterer": "calibrated",
    "significance": 0.01,
    "variation": "fixed",
    "assignment": "calibrated",
    "min_members": 1,
    "sharing": "none",
    "answer": "cluster",
    "novel": "nearest",
    "novelty_level": 0.05,
    "late": "regroup",
    "cluster_round": "trigger",
    "eps_scale": 1.0,
    "components": 10,
    "covariance": "diagonal",
    "bounds": "coordinate",
    "projector": "synthetic",
    "redescribe": 1,
    "false_alarms": 0.01,
    "drift_test": "chunk",
    "dp": None,
    "epsilon": None,
    "delta": 1e-5,
    "privacy_unit": "record",
    "model": "auto",
    "rounds": 10,
    "epochs": 2,
    "batch_size": 64,
    "lr": 0.005,
    "momentum": 0.9,
    "optimiser": "sgd",
    "weight_decay": 0.0,
    "schedule": "constant",
    "clip": None,
    "server_momentum": 0.0,
    "finetune": 0,
    "passes": None,
    "engine": "auto",
    "device": "auto",
    "precision": "fp32",
    "until": None,
    "out": None,
    "store": None,
    "samples": "keep",
    "track": None,
    "resume": False,
}
"""Every default of version 0.1. A setting that is newer stands here with the value that does what 0.1 did."""
DATASETS_0_1: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "batch_size": 16, "lr": 0.05},
    "mnist": {"model": "lenet5"},
    "fmnist": {"model": "lenet5", "eps_scale": 0.95},
    "emnist": {"model": "lenet5"},
    "cifar10": {"model": "lenet5"},
    "cifar100": {"model": "resnet9", "rounds": 15, "eps_scale": 0.98},
    "folder": {"batch_size": 32, "lr": 0.01},
    "npz": {"batch_size": 32, "lr": 0.01},
}
"""What differed from them on its datasets; newer ones keep what they have now."""
PAPER: dict[str, Any] = {
    "clusterer": "adaptive-dbscan",
    "cluster_round": "trigger",
    "late": "place",
    "assignment": "euclidean",
    "sharing": "none",
    "answer": "cluster",
    "novel": "nearest",
    "components": 10,
    "covariance": "diagonal",
    "bounds": "coordinate",
    "projector": "synthetic",
    "optimiser": "sgd",
    "weight_decay": 0.0,
    "schedule": "constant",
    "clip": None,
    "server_momentum": 0.0,
    "finetune": 0,
}
"""The paper's FLUX, on any dataset."""
_PAPER_TRAINING = {"rounds": 10, "epochs": 2, "batch_size": 64, "lr": 0.005, "momentum": 0.9, "eps_scale": 1.0}
PAPER_DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {**_PAPER_TRAINING, "model": "lenet5"},
    "fmnist": {**_PAPER_TRAINING, "model": "lenet5", "eps_scale": 0.95},
    "cifar10": {**_PAPER_TRAINING, "model": "lenet5"},
    "cifar100": {**_PAPER_TRAINING, "model": "resnet9", "rounds": 15, "eps_scale": 0.98},
    "chexpert": {**_PAPER_TRAINING, "model": "resnet9", "rounds": 20},
    "officehome": {**_PAPER_TRAINING, "model": "resnet9", "rounds": 40},
}
"""Its training, on its own datasets; on others it teaches nothing, so they keep theirs."""


def usual(
    dataset: str | None = None, name: str | None = None, algorithm: str | None = None, optimiser: str | None = None
) -> dict[str, Any]:
    """Every setting as it is on a dataset under a named preset; what somebody asks for wins over it.

    The learning rates of presets are SGD's: Adam has its own, where the method reads that it is asked for.
    """
    version = VERSION_0_1 if name == "0.1" else defaults(AllSettings)
    chosen = preset(dataset or version["dataset"])
    method = algorithm or version["algorithm"]
    adam = optimiser in ("adam", "adamw") and "optimiser" in READS[method]
    return {**chosen, **_named(name, chosen["dataset"], method), **({"lr": ADAMS_RATE} if adam else {})}


def _named(name: str | None, dataset: str, algorithm: str) -> dict[str, Any]:
    """What a named preset sets."""
    if name == "0.1":
        return {**VERSION_0_1, **DATASETS_0_1.get(dataset, PRESETS.get(dataset, OWN_DATA)), "dataset": dataset}
    if name == "paper":
        return {**PAPER, **PAPER_DATASETS.get(dataset, {})}
    if name == "tuned":
        return {"lr": tuned_rate(dataset, algorithm)}
    return {}


TRAINS_AS = {
    **dict.fromkeys(("flux-soft", "flux-dynamic"), "flux"),
    **dict.fromkeys(("feroma", "pacfl", "ditto", "fedper", "fedrep", "fedbn"), "fedavg"),
}
"""Methods that were not tuned on a dataset themselves, and by whose rate they go: that of the method whose clients
train as theirs do.
"""


def tuned_rate(dataset: str, algorithm: str) -> float:
    """The learning rate chosen for a method on a dataset, by validation at level 4, seed 42 (see tuned.json)."""
    rates = tuned().get(dataset, {}).get("rates", {})
    name = algorithm if algorithm in rates else TRAINS_AS.get(algorithm, algorithm)
    if name not in rates:
        known = ", ".join(data for data, found in tuned().items() if name in found["rates"]) or "nothing"
        raise FedfluxError(f"--preset tuned has no rate for {algorithm} on {dataset}: it was tuned on {known}")
    return float(rates[name])


@cache
def tuned() -> dict[str, Any]:
    """The file of tuned rates: by dataset, the rates and the validation accuracies that decided them."""
    found: dict[str, Any] = loads(files("fedflux.runs").joinpath("tuned.json").read_text(encoding="utf-8"))
    return found
