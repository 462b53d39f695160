"""Flower's simulation on Ray: its FedAvg strategy and a client app as its tutorials write one, one core a client.

A client keeps its examples in memory from round to round, in whichever Ray worker has served it; the rest of a round
(messages, serialisation, scheduling, aggregation) is Flower's own.
"""

import os
import warnings
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from fedflux.models import MODELS
from fedflux.studies.bench.gate import Gate
from fedflux.studies.bench.naive import train_locally
from fedflux.studies.bench.per_core import cores
from fedflux.studies.bench.work import CLASSES, IMAGE, Work

ENDLESS = 10**9


class FlowerRunner:
    """Flower's own loop over rounds, held between them."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._gate = Gate(self._drive)
        self._state = work.build().state_dict()
        self._seen = 0
        self._peaks: dict[int, int] = {}

    def start(self) -> None:
        """Up to the first round; Ray comes up beside it, so the first round waits for it."""
        self._gate.start()

    def round(self) -> int:
        """One round of the strategy."""
        self._seen = 0
        self._gate.step()
        return self._seen

    def loss(self) -> float:
        """Of the aggregated model."""
        return self._work.loss(self._state)

    def device_peak(self) -> int | None:
        """What Ray's workers say of themselves, together."""
        return sum(self._peaks.values())

    def close(self) -> None:
        """End the simulation and Ray with it."""
        import ray

        self._gate.close(1.0)
        ray.shutdown()

    def take(self, state: dict[str, Any], metrics: list[dict[str, Any]]) -> None:
        """Keep what a round gave."""
        if len(metrics) < self._work.clients:
            raise RuntimeError(f"only {len(metrics)} of {self._work.clients} Flower clients answered")
        self._state = state
        self._seen = int(sum(one["seen"] for one in metrics))
        self._peaks |= {int(one["worker"]): int(one["peak"]) for one in metrics}

    def _drive(self) -> None:
        from flwr.simulation import run_simulation

        share = 1 / min(cores(), self._work.clients) if self._work.device.startswith("cuda") else 0.0
        config = {
            "client_resources": {"num_cpus": 1, "num_gpus": share},
            "init_args": {"num_cpus": cores(), "include_dashboard": False, "log_to_driver": False},
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_simulation(
                _server_app(self._work, self._gate, self), _client_app(self._work), self._work.clients, "ray", config
            )


def _server_app(work: Work, gate: Gate, runner: FlowerRunner) -> Any:
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    class Held(FedAvg):  # type: ignore[misc]
        def configure_train(self, *arguments: Any) -> Any:
            gate.arrive()
            return super().configure_train(*arguments)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            arrays, metrics = super().aggregate_train(server_round, replies)
            answered = [dict(reply.content["metrics"]) for reply in replies if not reply.has_error()]
            runner.take(arrays.to_torch_state_dict() if arrays else {}, answered)
            return arrays, metrics

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        strategy = Held(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        strategy.start(grid, ArrayRecord(work.build().state_dict()), num_rounds=ENDLESS)

    return app


def _client_app(work: Work) -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        work.allow_tf32()
        dataset = _examples(work, int(context.node_config["partition-id"]))
        model = MODELS[work.model](IMAGE, CLASSES)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        seen = train_locally(model.to(work.device), DataLoader(dataset, batch_size=work.batch_size, shuffle=True), work)
        peak = torch.cuda.max_memory_allocated() if work.device.startswith("cuda") else 0
        metrics = {"num-examples": len(dataset), "seen": seen, "worker": os.getpid(), "peak": peak}
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
        return Message(content=RecordDict(content), reply_to=message)

    return app


@cache
def _examples(work: Work, client: int) -> TensorDataset:
    return TensorDataset(*work.tensors(client))
