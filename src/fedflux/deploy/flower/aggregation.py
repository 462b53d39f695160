"""One model from the updates of a cluster by one of Flower's robust rules, in place of the core's weighted mean."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedTrimmedAvg, Krum
from numpy.typing import NDArray

from fedflux.algorithms.base import Averaging
from fedflux.deploy.flower.records import pack, unpack
from fedflux.deploy.flower.settings import DeploymentSettings
from fedflux.deploy.node.arrays import model_arrays, parameters
from fedflux.engine.stack import Parameters, Stack

RULES: dict[str, Callable[[DeploymentSettings], Any]] = {
    "krum": lambda settings: Krum(num_malicious_nodes=settings.malicious_nodes),
    "trimmed-mean": lambda settings: FedTrimmedAvg(beta=settings.trim),
}


def robust_mean(deployment: DeploymentSettings) -> Averaging | None:
    """The rule that a deployment asks for, None for the weighted mean."""
    if deployment.aggregation == "mean":
        return None
    rule = RULES[deployment.aggregation](deployment)

    def average(models: Stack, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64]) -> Stack:
        for one in np.unique(cluster[sizes > 0]).tolist():  # a cluster nobody trained keeps its model
            members = np.flatnonzero((cluster == one) & (sizes > 0)).tolist()
            params = _aggregated(rule, [trained.row(row) for row in members], sizes[members].tolist())
            like = {name: params[name].to(tensor.dtype) for name, tensor in models.row(one).items()}
            models = models.put([one], Stack.join([like]))
        return models

    return average


def _aggregated(rule: Any, members: Sequence[Parameters], sizes: Sequence[float]) -> Parameters:
    """Flower's own rule on one cluster's updates; it averages integers as floats."""
    replies = []
    for params, size in zip(members, sizes, strict=True):
        content = {"model": pack(model_arrays(params)), "metrics": MetricRecord({"num-examples": int(size)})}
        replies.append(Message(RecordDict(content), dst_node_id=0, message_type="train"))
    return parameters(unpack(rule.aggregate_train(1, replies)[0]))
