"""Our own engines as runners: FedAvg rounds as `fedflux run` does them, without its evaluation."""

from typing import ClassVar

import torch

from fedflux.data import Cohort
from fedflux.engine import Backend, Job, Key, Stack, make_backend
from fedflux.engine import Work as EngineWork
from fedflux.engine.allocator import keep_freed_memory
from fedflux.studies.bench.work import Work

LONG = 1000
"""Rounds that engines are told of: what is measured is a long run's speed."""


class EngineRunner:
    """An engine by name."""

    engine: ClassVar[str]
    threads: ClassVar[int | None] = 1
    """As `fedflux run` has it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._round = 0

    def start(self) -> None:
        """Make the federation, the engine and whatever it needs."""
        work = self._work
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        work.allow_tf32()
        keep_freed_memory()  # a runner has a process to itself, as a worker or a command has
        federation = work.federation()
        samples = sum(federation.size(client, "train") for client in range(work.clients)) / work.clients
        long = EngineWork(work.clients, samples, work.training.batch_size, work.epochs, rounds=LONG)
        self._engine: Backend = make_backend(
            self.engine, work.model, federation, work.seed, work.device, work.precision, long
        )
        self._cohort: Cohort = federation.cohort(range(work.clients))
        self._model: Stack = self._engine.initial()

    def round(self) -> int:
        """Local training of all clients, then their mean by size."""
        self._round += 1
        sizes = self._cohort.sizes("train")
        jobs = [Job(client) for client in self._cohort]
        key = Key(self._work.seed, self._round)
        trained = self._engine.train(self._model, self._cohort, jobs, self._work.training, key)
        self._model = trained.average(sizes[None])
        return int(sizes.sum()) * self._work.epochs

    def loss(self) -> float:
        """Of the global model."""
        return self._work.loss(self._model.row(0))

    def device_peak(self) -> int | None:
        """Engines use the device from this process."""
        return None

    def close(self) -> None:
        """End the engine's processes, where it has any."""
        close = getattr(self._engine, "close", None)
        if close is not None:
            close()


class LoopRunner(EngineRunner):
    """The reference of all ratios: the tuned loop on one thread."""

    engine = "loop"
    threads = 1


class ProcessesRunner(EngineRunner):
    """Clients spread over processes."""

    engine = "processes"


class StackedRunner(EngineRunner):
    """All clients in one batched model."""

    engine = "stacked"


class AutoRunner(EngineRunner):
    """What `--engine auto` chooses for this federation on this machine."""

    engine = "auto"
