"""What a measurement was made on: figures of speed say little without it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedflux.studies.bench.per_core import cores

PACKAGES = ("torch", "flwr", "ray", "pfl")


def describe(device: str) -> dict[str, Any]:
    """Cores, processor, device, library versions, and how busy the machine is already."""
    return {
        "cores": cores(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "threads": torch.get_num_threads(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def busy(machine: dict[str, Any]) -> bool:
    """Whether others use more than half a core; runners with several threads suffer most from that, many times over."""
    return machine["load"] is not None and machine["load"][0] > 0.5


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
