"""Data of a simulated federation: every node is one client of a dataset that fedflux partitions under a shift."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedflux.data import Federation, Partition, partition
from fedflux.data.settings import DataSettings
from fedflux.data.sources import load
from fedflux.data.sources.own import with_scale
from fedflux.deploy.node import NodeData
from fedflux.errors import FedfluxError
from fedflux.settings import as_key, from_mapping


def data(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> NodeData:
    """Client `partition-id` of the federation that `fedflux run` deals with the same settings."""
    if "partition-id" not in node_config:
        raise FedfluxError("a simulated node needs partition-id in its configuration")
    federation = federation_of(run_config).blind()  # a node could read its own cluster there
    client = int(node_config["partition-id"])
    if not 0 <= client < len(federation):
        raise FedfluxError(f"partition-id {client} is outside 0 to {len(federation) - 1}")
    return NodeData(federation, client)


def with_truth(run_config: Mapping[str, Any], declared: Federation) -> Federation:
    """What nodes declared, with their clients' true clusters; as it was dealt where it drifts, since sizes may, too."""
    dealt = federation_of(run_config)
    if dealt.at(1) is not dealt:
        return dealt
    return replace(declared, _truth=None if dealt.truth is None else dealt.truth[: len(declared)])


def federation_of(run_config: Mapping[str, Any]) -> Federation:
    """All nodes' data, with the true clusters."""
    given = {key: value for key, value in run_config.items() if value != ""}
    given |= {"clients": ""} if given.get("clients") == 0 else {}
    return _dealt(from_mapping(DataSettings, given, as_key, strict=False))


@lru_cache(maxsize=4)
def _dealt(told: DataSettings) -> Federation:
    how = Partition(**{field.name: getattr(told, field.name) for field in fields(Partition)})
    dataset = load(told.dataset, Path(told.data_dir) if told.data_dir else None)
    return partition(with_scale(dataset, told.scale), how)
