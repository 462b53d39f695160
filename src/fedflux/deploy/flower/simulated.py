"""Data of a simulated federation: every node is one client of a dataset that fedflux partitions under a shift."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.deploy.flower.node_data import NodeData
from fedflux.errors import FedfluxError


def data(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> NodeData:
    """Client `partition-id` of `clients` clients under `shift` at `level`, as `fedflux run` deals them."""
    if "partition-id" not in node_config:
        raise FedfluxError("a simulated node needs partition-id in its configuration")
    federation = dealt(
        str(run_config.get("dataset", "digits")),
        str(run_config.get("data-dir", "")),
        str(run_config.get("shift", "px")),
        int(run_config.get("level", 4)),
        int(run_config.get("clients", 10)),
        int(run_config.get("seed", 42)),
    )
    client = int(node_config["partition-id"])
    if not 0 <= client < len(federation):
        raise FedfluxError(f"partition-id {client} is outside 0 to {len(federation) - 1}")
    return NodeData(federation, client)


@lru_cache(maxsize=4)
def dealt(dataset: str, folder: str, shift: str, level: int, clients: int, seed: int) -> Federation:
    """The federation, without its truth: a node could read its own cluster there."""
    loaded = load(dataset, Path(folder) if folder else None)
    return partition(loaded, Partition(shift=shift, level=level, clients=clients, seed=seed)).blind()
