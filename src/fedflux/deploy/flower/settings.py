"""What a Flower run is told: the keys of `[tool.flwr.app.config]`, checked before the first message is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from fedflux.engine.base import Training
from fedflux.errors import FedfluxError, unknown

AGGREGATIONS = ("mean", "krum", "trimmed-mean")


@dataclass(frozen=True)
class FlowerSettings:
    """One field a key, underscores for hyphens. Flower's configuration has no null: 0 and "" stand for "none"."""

    model: str = "mlp"
    """A known model or `package.module:factory`, called with (image_shape, classes)."""
    data: str = "fedflux.deploy.flower.simulated:data"
    """`package.module:function`, called with (node_config, run_config) on every node."""
    rounds: int = 10
    epochs: int = 2
    batch_size: int = 16
    lr: float = 0.05
    momentum: float = 0.9
    clip: float = 0.0
    """The largest norm of a step's gradient; 0: none."""
    seed: int = 42
    clusterer: str = "calibrated"
    clusters: int = 0
    """The number of clusters for k-means; 0: not told."""
    significance: float = 0.01
    eps_scale: float = 1.0
    assignment: str = "calibrated"
    cluster_round: int = 0
    """After how many FedAvg rounds to cluster; 0: when C(r) fires."""
    components: int = 10
    covariance: str = "diagonal"
    bounds: str = "coordinate"
    aggregation: str = "mean"
    malicious_nodes: int = 1
    """For krum: how many members of a cluster may lie."""
    trim: float = 0.2
    """For trimmed-mean: the share cut off at both ends."""
    min_nodes: int = 2
    """Labelled nodes that must be there before the first round."""
    wait: float = 600.0
    """Seconds to wait for them."""
    timeout: float = 600.0
    """Seconds to wait for answers to one question."""
    max_examples: int = 10_000_000
    """A node that says it holds more is refused: its update would drown the others."""
    out: str = ""
    """Folder on the server for checkpoints, models and the result; "": none are kept."""
    resume: bool = False
    """Go on after the last checkpoint in `out`."""

    def __post_init__(self) -> None:
        for key, low in (("rounds", 1), ("epochs", 1), ("batch_size", 1), ("min_nodes", 1), ("components", 1)):
            if getattr(self, key) < low:
                raise FedfluxError(f"{key.replace('_', '-')} = {getattr(self, key)}: give {low} or more")
        for key in ("lr", "wait", "timeout"):
            if not (isfinite(getattr(self, key)) and getattr(self, key) > 0):
                raise FedfluxError(f"{key} = {getattr(self, key)}: give a value above 0")
        for key, choices in (
            ("aggregation", AGGREGATIONS),
            ("assignment", ("calibrated", "euclidean")),
            ("covariance", ("diagonal", "full")),
            ("bounds", ("coordinate", "scalar")),
        ):
            if getattr(self, key) not in choices:
                raise unknown(key, getattr(self, key), choices)
        if not (isfinite(self.clip) and self.clip >= 0):
            raise FedfluxError(f"clip = {self.clip}: give a value above 0, or 0 for none")
        if not 0 <= self.trim < 0.5:
            raise FedfluxError(f"trim = {self.trim} is outside 0 to 0.5")
        if not 0 <= self.cluster_round <= self.rounds:
            raise FedfluxError(f"cluster-round = {self.cluster_round} is outside the rounds 1 to {self.rounds}")
        if self.malicious_nodes < 0:
            raise FedfluxError(f"malicious-nodes = {self.malicious_nodes}: give 0 or more")
        if self.resume and not self.out:
            raise FedfluxError("resume = true needs out = FOLDER, where the checkpoints are")

    @property
    def folder(self) -> Path | None:
        """Where the run is kept."""
        return Path(self.out) if self.out else None

    @property
    def training(self) -> Training:
        """Local training as the engine is told it."""
        return Training(self.epochs, self.batch_size, self.lr, self.momentum, self.clip or None)


def read_settings(run_config: Mapping[str, Any]) -> FlowerSettings:
    """Settings from a run config; keys that are not ours belong to the user's own functions."""
    asked = [key for key in ("dp", "epsilon", "delta") if key in run_config]
    if asked:
        raise FedfluxError(f"{asked[0]}: descriptors on Flower have no differential privacy yet; leave it out")
    given = {}
    for field, kind in FlowerSettings.__annotations__.items():
        key = field.replace("_", "-")
        if key in run_config:
            given[field] = _typed(key, run_config[key], kind)
    return FlowerSettings(**given)


def _typed(key: str, value: Any, kind: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        wanted = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
        raise FedfluxError(f"{key} = {value!r} does not fit: give {wanted}")
    return value
