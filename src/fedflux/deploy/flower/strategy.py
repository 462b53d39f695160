"""FluxStrategy: FedAvg until C(r) fires, then one model per cluster of descriptors, as a Flower strategy.

It holds the protocol: who is asked what, and what becomes of answers. The formulas are the core's.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO, getLogger
from typing import Any

import numpy as np
import torch
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedflux.deploy.flower.aggregation import Update, combine
from fedflux.deploy.flower.assigning import Placement, assign_unlabelled
from fedflux.deploy.flower.checkpoint import forget_checkpoints, load_checkpoint, save_checkpoint
from fedflux.deploy.flower.checks import accuracy_fault, first_fault, shape_fault, update_fault, version_fault
from fedflux.deploy.flower.describing import ask_descriptors, describe_all, read
from fedflux.deploy.flower.exchange import Exchange
from fedflux.deploy.flower.records import ABOUT, EXAMPLES, METRICS, MODEL, model_arrays, model_stack, pack, unpack
from fedflux.deploy.flower.roster import Node, Roster
from fedflux.deploy.flower.settings import FlowerSettings
from fedflux.deploy.flower.state import FederationState, fires, with_clusters, with_newcomers
from fedflux.engine.modes import one_thread
from fedflux.engine.stack import Stack
from fedflux.errors import FedfluxError

POLL = 1.0
"""Seconds between looks at who has come."""

Build = Callable[[tuple[int, int, int], int], nn.Module]


class FluxStrategy(Strategy):  # type: ignore[misc]
    """Clustered federated learning over a Grid; `build` makes the model from (image_shape, classes)."""

    def __init__(self, settings: FlowerSettings, build: Build) -> None:
        self.settings = settings
        self.state: FederationState
        """Everything the run knows, after `start` has begun."""
        self.events: list[str] = []
        """What happened, in words: refusals, failures, clusters."""
        self.validation: dict[int, dict[int, float]] = {}
        """By round and client."""
        self.known: dict[int, float] = {}
        """Accuracy on the test part after the last round, by client."""
        self.placements: dict[int, Placement] = {}
        """Where unlabelled clients were put."""
        self.roster = Roster(settings.max_examples, self._tell)
        self.exchange: Exchange
        self._build = build
        self._width = 0

    def start(
        self,
        grid: Any,
        initial_arrays: Any = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: Any = None,
        evaluate_config: Any = None,
        evaluate_fn: Any = None,
    ) -> Any:
        """All rounds from the last checkpoint (or the first) to the end; then test accuracies and unlabelled nodes."""
        if train_config is not None or evaluate_config is not None or evaluate_fn is not None:
            raise FedfluxError(
                "FluxStrategy reads its settings alone: leave out train_config, evaluate_config, evaluate_fn"
            )
        with one_thread():
            self.settings = replace(self.settings, rounds=num_rounds or self.settings.rounds)
            self.exchange = Exchange(grid, self.roster, timeout or self.settings.timeout)
            self.state = self._resumed() or FederationState(Stack({}), self.settings.seed)
            self.roster.refused |= {int(client): reason for client, reason in self.state.refused.items()}
            self._gather(self.settings.min_nodes)
            self._make_model(initial_arrays)
            result = Result()
            self.summary()
            for round in range(self.state.round + 1, self.settings.rounds + 1):
                self._round(round, result)
                self._save()
            self._finish(result)
        return result

    def summary(self) -> None:
        """One line on what is about to happen."""
        told = self.settings
        rule = f"cluster after round {told.cluster_round}" if told.cluster_round else "cluster when C(r) fires"
        self._tell(f"{told.rounds} rounds, {rule} with {told.clusterer}, {told.aggregation} within clusters")

    def _round(self, round: int, result: Any) -> None:
        self.exchange.begin(round)
        self._gather(1)
        self._place_newcomers()
        self.state = replace(self.state, round=round)
        arrays, metrics = self.aggregate_train(round, self.exchange.send(self.configure_train(round)))
        result.arrays, result.train_metrics_clientapp[round] = arrays, metrics
        replies = self.exchange.send(self.configure_evaluate(round))
        result.evaluate_metrics_clientapp[round] = self.aggregate_evaluate(round, replies)
        if self.state.clusters is None:
            scores = list(self.validation[round].values())
            self.state = replace(
                self.state, accuracies=(*self.state.accuracies, float(np.mean(scores)) if scores else 0.0)
            )
            if fires(self.state, self.settings):
                self._cluster()

    def configure_train(self, server_round: int, arrays: Any = None, config: Any = None, grid: Any = None) -> list[Any]:
        """Everyone who is placed trains from its cluster's model."""
        offered = self.exchange.offer(self.state.models)
        return [
            self.exchange.message(node.id, "train", model=offered[self.state.cluster(node.client)])
            for node in self._members()
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Average per cluster what passes the checks; whoever sent something else is out."""
        offered = self.exchange.offer(self.state.models)
        updates = []
        for reply in replies:
            node, content = self.roster.nodes[reply.metadata.src_node_id], reply.content
            cluster = self.state.cluster(node.client)
            start = model_arrays(self.state.models.row(cluster))
            arrays, fault = read(content, MODEL, lambda _: None)
            examples = content.get(METRICS, {}).get(EXAMPLES)
            if arrays is not None:
                limit = self.settings.max_examples
                fault = update_fault(arrays, content[ABOUT], examples, start, offered[cluster], node.examples, limit)
            if fault is not None or arrays is None:
                self.roster.refuse(node, fault or "no update")
            else:
                updates.append(Update(node.client, cluster, arrays, node.examples))
        models = combine(self.state.models, updates, self.settings, server_round)
        self.state = replace(self.state, models=models)
        return self._all_models(), _metrics({EXAMPLES: sum(update.examples for update in updates)})

    def configure_evaluate(
        self, server_round: int, arrays: Any = None, config: Any = None, grid: Any = None, split: str = "validation"
    ) -> list[Any]:
        """Everyone who is placed scores its cluster's model."""
        offered = self.exchange.offer(self.state.models)
        messages = []
        for node in self._members():
            cluster = self.state.cluster(node.client)
            ask = {"split": split, "cluster": cluster, "keep": split == "test"}
            messages.append(self.exchange.message(node.id, "evaluate", ask, offered[cluster]))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """The mean over clients, and each client's own in `validation`."""
        self.validation[server_round] = self._scores(replies)
        scores = list(self.validation[server_round].values())
        return _metrics({"accuracy": float(np.mean(scores))} if scores else {})

    def _scores(self, replies: Iterable[Any]) -> dict[int, float]:
        offered = self.exchange.offer(self.state.models)
        scores = {}
        for reply in replies:
            node, content = self.roster.nodes[reply.metadata.src_node_id], reply.content
            metrics, about = content.get(METRICS, {}), content.get(ABOUT, {})
            accuracy, wanted = metrics.get("accuracy"), offered[self.state.cluster(node.client)]
            fault = first_fault((accuracy_fault(accuracy), version_fault(about.get("base"), wanted, "its accuracy")))
            if fault is not None:
                self.roster.refuse(node, fault)
            elif metrics.get(EXAMPLES) and accuracy is not None:
                scores[node.client] = float(accuracy)
        return dict(sorted(scores.items()))

    def _cluster(self) -> None:
        found = describe_all(self.exchange, self._members(), self.state.models, self._width, self.settings)
        if found is None:
            self._tell(f"round {self.state.round}: nobody could be described; clustering waits for the next round")
            return
        self.state = with_clusters(
            self.state, found.extractor, found.version, found.clients, found.descriptors, self.settings
        )
        self._tell(f"round {self.state.round}: {len(self.state.models)} clusters of {len(found.clients)} clients")

    def _place_newcomers(self) -> None:
        """Labelled nodes that were not there at clustering are put where their descriptor fits best."""
        state = self.state
        late = [node for node in self._labelled() if not state.placed(node.client)]
        if not late or state.extractor is None:
            return
        found = ask_descriptors(self.exchange, late, state.extractor, state.bounds_version, self.settings)
        clients = [node.client for node, _ in found]
        before = len(state.models)
        self.state = with_newcomers(state, clients, [arrays for _, arrays in found], self.settings)
        for client in clients:
            self._tell(f"client {client} joined cluster {self.state.cluster(client)}")
        if len(self.state.models) != before:
            self._tell(f"{len(self.state.models)} clusters of {len(self.state.described)} clients, found anew")

    def _finish(self, result: Any) -> None:
        """Test accuracies of everyone who is there, late ones placed first; then the unlabelled nodes' models."""
        self.exchange.begin(self.state.round + 1)
        self._gather(0)
        self._place_newcomers()
        self.known = self._scores(self.exchange.send(self.configure_evaluate(self.state.round, split="test")))
        unlabelled = self.roster.present(self.exchange.grid.get_node_ids(), labelled=False)
        self.placements = assign_unlabelled(self.exchange, unlabelled, self.state, self.settings)
        for client, placement in self.placements.items():
            self._tell(f"client {client} was given cluster {placement.cluster} at distance {placement.distance:.3g}")
        result.arrays = self._all_models()
        self._save()

    def _members(self) -> list[Node]:
        return [node for node in self._labelled() if self.state.placed(node.client)]

    def _labelled(self) -> list[Node]:
        return self.roster.present(self.exchange.grid.get_node_ids(), labelled=True)

    def _gather(self, wanted: int) -> None:
        """Meet whoever has come, and wait until enough labelled nodes are there."""
        deadline = time.monotonic() + self.settings.wait
        while True:
            strangers = self.roster.unknown(self.exchange.grid.get_node_ids())
            replies = self.exchange.send(self.exchange.message(id, "query.hello") for id in strangers)
            self.roster.admit({reply.metadata.src_node_id: reply.content.get(ABOUT, {}) for reply in replies})
            there = len(self._labelled())
            if there >= wanted:
                return
            if time.monotonic() > deadline:
                raise FedfluxError(f"{there} of {wanted} labelled nodes came within {self.settings.wait:.0f} s")
            time.sleep(POLL)

    def _make_model(self, initial_arrays: Any) -> None:
        assert self.roster.kind is not None  # enough nodes are there
        shape, classes = self.roster.kind
        model = self._build((shape[0], shape[1], shape[2]), classes)
        with torch.no_grad():
            self._width = int(model.eval().encode(torch.zeros(1, *shape)).shape[1])  # type: ignore[operator]
        if not self.state.models.tensors:
            initial = Stack.of(model) if initial_arrays is None else model_stack(unpack(initial_arrays))
            self.state = replace(self.state, models=initial)
        fault = shape_fault(model_arrays(self.state.models.row(0)), model_arrays(Stack.of(model).row(0)), "the start")
        if fault is not None:
            raise FedfluxError(f"{fault}; model = '{self.settings.model}'")

    def _all_models(self) -> Any:
        """The one model, or all clusters' with `cluster-M/` before each name."""
        models = self.state.models
        if len(models) == 1:
            return pack(model_arrays(models.row(0)))
        rows = enumerate(models.row(row) for row in range(len(models)))
        return pack({f"cluster-{m}/{name}": a for m, row in rows for name, a in model_arrays(row).items()})

    def _resumed(self) -> FederationState | None:
        folder = self.settings.folder
        if folder is None:
            return None
        if not self.settings.resume:
            forget_checkpoints(folder)
            return None
        state, complaints = load_checkpoint(folder)
        for complaint in complaints:
            self._tell(complaint)
        if state is not None:
            if state.seed != self.settings.seed:
                raise FedfluxError(f"{folder} was begun with seed {state.seed}, not {self.settings.seed}")
            self._tell(f"resumed after round {state.round}")
        return state

    def _save(self) -> None:
        self.state = replace(self.state, refused={str(k): reason for k, reason in self.roster.refused.items()})
        if self.settings.folder is not None:
            save_checkpoint(self.settings.folder, self.state)

    def _tell(self, words: str) -> None:
        self.events.append(words)
        getLogger("flwr").log(INFO, "fedflux: %s", words)


def _metrics(values: dict[str, Any]) -> Any:
    from flwr.app import MetricRecord

    return MetricRecord(values)
