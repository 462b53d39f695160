"""Defaults by dataset, the paper's settings where it has them (App. "Models and Hyper-parameter Settings"), and others
by name: `tuned` gives every method the learning rate that suits it, `flux-paper` the choices of the paper's harness.
"""

from functools import cache
from importlib.resources import files
from json import loads
from typing import Any

from fedflux.errors import FedfluxError, unknown

COMMON: dict[str, Any] = {
    "model": "lenet5",
    "rounds": 10,
    "epochs": 2,
    "batch_size": 64,
    "lr": 0.005,
    "momentum": 0.9,
    "eps_scale": 1.0,
}
OWN_DATA: dict[str, Any] = {"model": "auto", "batch_size": 32, "lr": 0.01}

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "batch_size": 16, "lr": 0.05},
    "mnist": {},
    "fmnist": {"eps_scale": 0.95},
    "emnist": {},
    "cifar10": {},
    "cifar100": {"model": "resnet9", "rounds": 15, "eps_scale": 0.98},
    "folder": OWN_DATA,
    "npz": OWN_DATA,
}


def preset(dataset: str) -> dict[str, Any]:
    """The defaults of one dataset."""
    if dataset not in PRESETS:
        raise unknown("dataset", dataset, PRESETS)
    return {**COMMON, **PRESETS[dataset]}


TRAINS_AS = {"flux-soft": "flux", "flux-dynamic": "flux"}
"""Variants that differ in who shares a model, not in how it is trained; they take the rate of the method they vary."""


def tuned_rate(dataset: str, algorithm: str) -> float:
    """The learning rate chosen for a method on a dataset, by validation at level 4, seed 42 (see tuned.json)."""
    rates = tuned().get(dataset, {}).get("rates", {})
    name = TRAINS_AS.get(algorithm, algorithm)
    if name not in rates:
        known = ", ".join(data for data, found in tuned().items() if name in found["rates"]) or "nothing"
        raise FedfluxError(f"--preset tuned has no rate for {algorithm} on {dataset}: it was tuned on {known}")
    return float(rates[name])


@cache
def tuned() -> dict[str, Any]:
    """The file of tuned rates: by dataset, the rates and the validation accuracies that decided them."""
    found: dict[str, Any] = loads(files("fedflux.runs").joinpath("tuned.json").read_text(encoding="utf-8"))
    return found
