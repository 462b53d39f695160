"""Defaults by dataset: the paper's settings where it has them (App. "Models and Hyper-parameter Settings")."""

from typing import Any

from fedflux.errors import unknown

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
