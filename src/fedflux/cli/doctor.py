"""Is this machine fit? Versions, devices, extras, write access, and a short run that must learn."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import torch

from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

NEEDED = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "rich", "typer")
HELPERS = {"kneed": "the clusterer adaptive-dbscan", "pooch": "downloads", "plotly": "reports"}
FEATURES = {
    "real nodes (Flower)": ("flower", ("flwr",)),
    "privacy (--epsilon)": ("privacy", ("opendp",)),
    "bundles and serving": (
        "serve",
        ("onnx", "onnxruntime", "fastapi", "uvicorn", "httpx", "prometheus-client", "cryptography"),
    ),
    "tracking (--track)": ("track", ("tensorboard", "mlflow-skinny")),
    "distance to W2 (fidelity)": ("fidelity", ("POT",)),
    "Hugging Face datasets": ("huggingface", ("datasets",)),
    "grids on many machines (--on)": ("cluster", ("distributed",)),
    "peers in bench": ("peers", ("flwr", "ray", "pfl")),
    "the documents as a site": ("docs", ("mkdocs-material", "mkdocstrings-python", "jupytext")),
}
"""What extras are for, and the packages that each needs."""


def examine(folder: Path) -> list[dict[str, Any]]:
    """Every check with its outcome; `needed` tells a fault from a mere absence."""
    return [
        _check("python", sys.version_info >= (3, 11), platform.python_version()),
        *(_package(name, needed=True) for name in NEEDED),
        *(_package(name, needed=False, use=use) for name, use in HELPERS.items()),
        *(_feature(name, extra, packages) for name, (extra, packages) in FEATURES.items()),
        _check("device", True, _devices()),
        _writable(folder),
        _self_test(),
    ]


def _check(name: str, ok: bool, detail: str, needed: bool = True) -> dict[str, Any]:
    return {"check": name, "ok": bool(ok), "needed": needed, "detail": detail}


def _package(name: str, needed: bool, use: str = "") -> dict[str, Any]:
    try:
        found = version(name)
    except PackageNotFoundError:
        return _check(name, False, "not installed" + (f" (for {use})" if use else ""), needed)
    return _check(name, True, found, needed)


def _feature(name: str, extra: str, packages: tuple[str, ...]) -> dict[str, Any]:
    """Whether all that a feature needs is there; if not, what is missing and how to get it."""
    found, missing = [], []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        return _check(name, False, f"no {', '.join(missing)}: pip install 'fedflux[{extra}]'", needed=False)
    return _check(name, True, ", ".join(found), needed=False)


def _devices() -> str:
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(i) for i in range(count)]
    return ", ".join([f"cpu ({torch.get_num_threads()} threads)", *names])


def _writable(folder: Path) -> dict[str, Any]:
    """Can runs be written here? Looks at the nearest folder that exists, and makes none."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    try:
        with NamedTemporaryFile(dir=place):
            pass
    except OSError as error:
        return _check("write access", False, f"{place}: {error.strerror}")
    return _check("write access", True, str(place))


def _self_test() -> dict[str, Any]:
    """FLUX on `digits` under P(X), three rounds: it must cluster and beat chance clearly."""
    with TemporaryDirectory() as folder:
        try:
            result = run_config(
                make_config(
                    {
                        "shift": "px",
                        "level": 1,
                        "clients": 4,
                        "rounds": 3,
                        "clusterer": "hdbscan",
                        "out": f"{folder}/run",
                    }
                )
            )
        except Exception as error:
            return _check("self-test", False, f"{type(error).__name__}: {error}")
    return _check("self-test", result["known"] > 30, f"known association {result['known']:.1f} % after 3 rounds")
