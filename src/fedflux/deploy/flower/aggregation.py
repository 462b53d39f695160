"""One model from the updates of a cluster by one of Flower's robust rules, in place of the core's weighted mean."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedTrimmedAvg, Krum
from numpy.typing import NDArray

from fedflux.algorithms.base import Averaging
from fedflux.deploy.flower.records import model_arrays, pack, unpack
from fedflux.deploy.flower.settings import DeploymentSettings
from fedflux.engine.stack import Parameters, Stack

RULES: dict[str, Callable[[DeploymentSettings], Any]] = {
    "krum": lambda settings: Krum(num_malicious_nodes=settings.malicious_nodes),
    "trimmed-mean": lambda settings: FedTrimmedAvg(beta=settings.trim),
}


def robust(settings: DeploymentSettings) -> Averaging | None:
    """The rule that was asked for, None for the mean."""
    if settings.aggregation == "mean":
        return None
    rule = RULES[settings.aggregation](settings)

    def average(models: Stack, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64]) -> Stack:
        """θ_m from the updates of each cluster, in client order; a cluster nobody trained keeps its model."""
        for one in np.unique(cluster[sizes > 0]).tolist():
            rows = np.flatnonzero((cluster == one) & (sizes > 0)).tolist()
            params = _aggregated(rule, [trained.row(row) for row in rows], sizes[rows], models.row(one))
            models = models.put([one], Stack.join([params]))
        return models

    return average


def _aggregated(
    rule: Any, members: list[Parameters], sizes: NDArray[np.float64], start: Parameters
) -> Parameters:
    """Flower's own rule on one cluster; types stay those of the model (Flower averages integers as floats)."""
    replies = []
    for params, size in zip(members, sizes.tolist(), strict=True):
        content = {"model": pack(model_arrays(params)), "metrics": MetricRecord({"num-examples": int(size)})}
        replies.append(Message(RecordDict(content), dst_node_id=0, message_type="train"))
    found = unpack(rule.aggregate_train(1, replies)[0])
    return {name: torch.from_numpy(np.array(found[name])).to(tensor.dtype) for name, tensor in start.items()}
