"""One model from the updates of a cluster: the core's weighted mean, or one of Flower's robust rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedTrimmedAvg, Krum

from fedflux.algorithms.base import aggregate
from fedflux.deploy.flower.records import EXAMPLES, METRICS, MODEL, Arrays, model_stack, pack, unpack
from fedflux.deploy.flower.settings import FlowerSettings
from fedflux.engine.stack import Parameters, Stack

ROBUST: dict[str, Callable[[FlowerSettings], Any]] = {
    "krum": lambda settings: Krum(num_malicious_nodes=settings.malicious_nodes),
    "trimmed-mean": lambda settings: FedTrimmedAvg(beta=settings.trim),
}


@dataclass(frozen=True)
class Update:
    """A checked update: which client, from which cluster's model, how many examples."""

    client: int
    cluster: int
    arrays: Arrays
    examples: int


def combine(models: Stack, updates: Sequence[Update], settings: FlowerSettings, round: int) -> Stack:
    """θ_m from the updates of each cluster, in client order; a cluster nobody trained keeps its model."""
    if not updates:
        return models
    ordered = sorted(updates, key=lambda update: update.client)
    if settings.aggregation == "mean":
        trained = Stack.together([model_stack(update.arrays) for update in ordered])
        sizes = np.array([update.examples for update in ordered], dtype=np.float64)
        return aggregate(models, trained, np.array([update.cluster for update in ordered]), sizes)
    rule = ROBUST[settings.aggregation](settings)
    for cluster in sorted({update.cluster for update in ordered}):
        members = [update for update in ordered if update.cluster == cluster]
        params = _robust(rule, members, models.row(cluster), round)
        models = models.put([cluster], Stack.join([params]))
    return models


def _robust(rule: Any, members: Sequence[Update], start: Parameters, round: int) -> Parameters:
    """Flower's own rule on one cluster; types stay those of the model (Flower averages integers as floats)."""
    replies = [_reply(update) for update in members]
    record, _ = rule.aggregate_train(round, replies)
    found = unpack(record)
    return {name: torch.from_numpy(np.array(found[name])).to(tensor.dtype) for name, tensor in start.items()}


def _reply(update: Update) -> Any:
    """An update in the form that Flower's strategies read."""
    content = {MODEL: pack(update.arrays), METRICS: MetricRecord({EXAMPLES: update.examples})}
    return Message(RecordDict(content), dst_node_id=0, message_type="train")
