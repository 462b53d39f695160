"""The runs whose numbers are pinned: every method on every shift, and every setting that changes how it trains."""

from typing import Any

METHODS = [
    "local",
    "fedavg",
    "oracle",
    "flux",
    "flux-prior",
    "flux-dynamic",
    "flux-soft",
    "ifca",
    "fesem",
    "cfl",
    "haccs",
    "feddrift",
    "fedem",
    "fedrc",
    "apfl",
    "pfedme",
    "atp",
]
SHIFTS = ("px", "py", "pygx", "pxgy")
LEVEL, SEED = 4, 42
KEYS = (
    "known_per_client",
    "test_per_client",
    "assignment",
    "bytes_up",
    "bytes_down",
    "cluster_round",
)
"""What is kept of a result."""


def cells() -> dict[str, dict[str, Any]]:
    """Options of `fedflux.run` by a name that reads well."""
    found: dict[str, dict[str, Any]] = {
        f"{method} {shift}": {"algorithm": method, "shift": shift} for method in METHODS for shift in SHIFTS
    }
    for method in ("flux", "flux-dynamic", "flux-soft", "feddrift", "fedavg"):
        found[f"{method} drift"] = {"algorithm": method, "shift": "px", "drift": "after:5"}
    for method in METHODS:
        part = {"algorithm": method, "shift": "px", "clients": 20, "participation": 0.4}
        found[f"{method} partial"] = part
    found["flux grows"] = {"algorithm": "flux", "shift": "py", "clients": 30, "participation": 0.2, "cluster_round": 3}
    for method in ("flux", "fedem", "fedrc", "haccs", "apfl"):
        found[f"{method} copies"] = {"algorithm": method, "shift": "py", "duplicate": 3}
    for mix in ("px+py", "pxgy+py", "pygx+py"):
        found[f"flux {mix}"] = {"algorithm": "flux", "shift": mix}
    for method in ("fedavg", "flux", "ifca"):
        found[f"{method} finetune"] = {"algorithm": method, "shift": "py", "finetune": 3}
    for shift in ("pygx", "pxgy"):
        found[f"flux both {shift}"] = {"algorithm": "flux", "shift": shift, "answer": "both"}
    for method in ("fedavg", "flux", "flux-soft"):
        found[f"{method} momentum"] = {"algorithm": method, "shift": "px", "server_momentum": 0.7}
        found[f"{method} clip"] = {"algorithm": method, "shift": "px", "clip": 0.5}
    for shift in ("px", "pxgy"):
        found[f"flux discriminant {shift}"] = {"algorithm": "flux", "shift": shift, "projector": "discriminant"}
    found["flux novel"] = {"algorithm": "flux", "shift": "pxgy", "novel": "global"}
    found["flux euclidean"] = {"algorithm": "flux", "shift": "px", "assignment": "euclidean"}
    found["flux kmeans"] = {"algorithm": "flux", "shift": "px", "clusters": "true"}
    found["flux dbscan"] = {"algorithm": "flux", "shift": "px", "clusterer": "adaptive-dbscan"}
    found["flux full scalar"] = {"algorithm": "flux", "shift": "px", "covariance": "full", "bounds": "scalar"}
    for method in ("ifca", "cfl", "feddrift", "fedem", "fedrc", "apfl", "pfedme"):
        found[f"{method} harness"] = {"algorithm": method, "shift": "px", "preset": "flux-paper"}
    for method in ("flux", "flux-soft", "flux-dynamic"):
        found[f"{method} private"] = {"algorithm": method, "shift": "py", "epsilon": 20.0}
    found["flux paper noise"] = {"algorithm": "flux", "shift": "px", "epsilon": 50.0, "dp": "paper"}
    return {name: {"dataset": "digits", "level": LEVEL, "seed": SEED, **told} for name, told in found.items()}


MNIST = {"dataset": "mnist", "shift": "px", "level": LEVEL, "seed": SEED, "data_fraction": 0.1, "lr": 0.03, "rounds": 6}
"""The one cell with convolutions, where the dataset is at hand."""
