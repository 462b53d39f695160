"""What a deployed run is told beyond a run's own settings, and both from Flower's run config."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedflux.errors import FedfluxError
from fedflux.runs.config import SETTINGS, RunConfig, make_config
from fedflux.settings import Declared, above, as_key, at_least, between, declared, from_mapping, setting

SIMULATED = "fedflux.deploy.flower.simulated:data"
ROBUST = ("flux", "fedavg")
"""Methods whose mean a robust rule can replace."""


@dataclass(frozen=True)
class DeploymentSettings(Declared):
    """How nodes are reached, and what they are taken for."""

    data: str = setting(
        SIMULATED, "package.module:function that loads a node's data, called on every node", panel="Data"
    )
    aggregation: Literal["mean", "krum", "trimmed-mean"] = setting(
        "mean", "mean, or one of Flower's robust rules within each cluster", panel="Method"
    )
    malicious_nodes: int = setting(1, "krum: members of a cluster that may lie", panel="Method", check=at_least(0))
    trim: float = setting(0.2, "trimmed-mean: share cut off at both ends", panel="Method", check=between(0, 0.5, "[)"))
    min_nodes: int = setting(
        2, "labelled nodes that must be there before the first round", panel="Run", check=at_least(1), counts=False
    )
    expected_nodes: int = setting(
        0, "labelled nodes that are to come in all; 0: nobody knows", panel="Run", check=at_least(0)
    )
    wait: float = setting(600.0, "seconds to wait for the first nodes", panel="Run", check=above(0), counts=False)
    timeout: float = setting(600.0, "seconds to wait for an answer", panel="Run", check=above(0), counts=False)
    max_examples: int = setting(
        10_000_000, "a node that says it holds more is refused", panel="Run", check=at_least(1), counts=False
    )

    def counting(self) -> dict[str, Any]:
        """Those that determine a run's numbers."""
        return {one.key: getattr(self, one.name) for one in declared(type(self)) if one.counts}


def read_settings(run_config: Mapping[str, Any]) -> tuple[RunConfig, DeploymentSettings]:
    """Both from a run config; keys that are nobody's belong to the user's own functions.

    Flower's configuration has no null: empty text, and 0 where a number is not the default, stand for the default.
    """
    deployment = from_mapping(DeploymentSettings, run_config, as_key, strict=False)
    given = {key.replace("-", "_"): value for key, value in run_config.items()}
    options = {
        name: one.read(given[name], as_key)
        for name, one in SETTINGS.items()
        if name in given and given[name] != "" and not _stands_for_none(given[name], one.default)
    }
    if deployment.data != SIMULATED:
        options = {"shift": "none", **options}
    config = replace(make_config(options), engine="flower", store="none")
    if config.drift is not None and "test" in config.drift:
        raise FedfluxError(f"drift = {config.drift}: nodes are tested on what they hold; leave test out")
    if deployment.data != SIMULATED and _uses_truth(config):
        raise FedfluxError(f"{config.algorithm} needs the true clusters, which only data = '{SIMULATED}' has")
    if deployment.aggregation != "mean" and config.algorithm not in ROBUST:
        raise FedfluxError(f"aggregation = {deployment.aggregation} is for {', '.join(ROBUST)}, not {config.algorithm}")
    return config, deployment


def _stands_for_none(value: Any, default: Any) -> bool:
    return type(value) in (int, float) and value == 0 and not isinstance(default, int | float)


def _uses_truth(config: RunConfig) -> bool:
    from fedflux.algorithms.registry import make_algorithm

    return make_algorithm(config.algorithm, config.settings()).uses_truth
