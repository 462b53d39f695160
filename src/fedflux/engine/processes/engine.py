"""Clients over the cores of one machine: each worker process runs the reference engine on one torch thread."""

import multiprocessing
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort, Features, Federation, Held, Split
from fedflux.engine.base import Job, Key, Statistic
from fedflux.engine.loop import LoopEngine, check_finite
from fedflux.engine.modes import one_thread
from fedflux.engine.predictor import Predictor
from fedflux.engine.processes.pool import Pool
from fedflux.engine.processes.result_buffer import ResultBuffer, ResultRows
from fedflux.engine.processes.transfer import SharedMessage
from fedflux.engine.recipe import Recipe
from fedflux.engine.rules import Extras, Rule
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.training import Training
from fedflux.errors import FedfluxError

T = TypeVar("T")
FEDERATIONS = 2
"""How many federations (a full and a blind view, say) stay shared at a time."""


class ProcessesEngine:
    """The results of `loop`, bit for bit, from one worker a core.

    Workers start at the first call with more than one client. Datasets and parameters lie in memory that all processes
    map; a client's examples are made in the worker that trains it. Where there can be no workers (one core, or inside a
    worker of a comparison) clients run one after another in this process.
    """

    name = "processes"
    device = "cpu"

    def __init__(
        self,
        recipe: Recipe,
        device: str = "cpu",
        precision: str = "fp32",
        pixels: tuple[float, float] | None = (0.5, 0.5),
        workers: int | None = None,
    ) -> None:
        if device != "cpu":
            raise FedfluxError(
                f"engine processes runs on the CPU, not on {device}: add --device cpu or leave --engine out"
            )
        if sys.platform == "win32":
            raise FedfluxError("engine processes needs Linux or macOS: use --engine loop")
        self.precision = precision
        self.workers = _cores() if workers is None else workers
        self._loop = LoopEngine(recipe.build(), "cpu", precision, pixels, recipe.task)
        self._loop.recipe = recipe
        self.trained_names = self._loop.trained_names
        self._pool = Pool(_Prepare(recipe, precision, pixels), self.workers)
        self._federations: dict[int, Federation] = {}
        self._buffer: ResultBuffer | None = None
        self._finalizer = weakref.finalize(self, _close, self._pool, os.getpid())

    def __enter__(self) -> "ProcessesEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and free the shared memory; a later call would start new ones."""
        self._federations.clear()
        self._buffer = None
        self._pool.close()

    @property
    def head_names(self) -> frozenset[str]:
        """The tensors of the last layer."""
        return self._loop.head_names

    def initial(self, count: int = 1) -> Stack:
        """Models as they are built."""
        return self._loop.initial(count)

    def train(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        key: Key,
        rule: Rule | None = None,
        extras: Sequence[Extras] | None = None,
    ) -> Stack:
        """Local training of every job."""
        clients = [job.client for job in jobs]
        weights = [float(cohort.federation.size(job.client, training.split) * len(job.models)) for job in jobs]
        arguments = (start, cohort, jobs, training, key, rule, extras)
        outlet = self._outlet(start.row(0), jobs) if self._has_workers(jobs) else None
        parts = self._map("train", arguments, clients, weights, cohort, outlet)
        trained = Stack.join([row for rows in parts for row in rows]) if outlet is None else outlet.collect(parts)
        check_finite(trained, jobs, key)
        return trained

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """Accuracy of every member on a split with each predictor."""
        arguments, sizes = (list(predictors), cohort, split), cohort.sizes(split).tolist()
        found = self._map("evaluate", arguments, cohort.ids, sizes, cohort)
        return np.array(found, dtype=np.float64).reshape(len(cohort), len(predictors)).T

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of every client's images."""
        return self._map("predict", (predictor, features), range(len(features)), [float(len(f)) for f in features])

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """Cross-entropy of every sample under every model."""
        return self._map("losses", (stack, cohort, split), cohort.ids, cohort.sizes(split).tolist(), cohort)

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """Stream every client's latents through a statistic."""
        arguments = (stack, clients, statistic)
        if isinstance(clients, Held):
            cohort = clients.cohort
            return self._map("reduce", arguments, cohort.ids, cohort.sizes(clients.split).tolist(), cohort)
        return self._map("reduce", arguments, range(len(clients)), [float(len(one)) for one in clients])

    def _map(
        self,
        method: str,
        arguments: tuple[Any, ...],
        clients: Sequence[int],
        weights: Sequence[float],
        cohort: Cohort | None = None,
        outlet: ResultRows | None = None,
    ) -> list[Any]:
        """One part of the result a position, from workers where there are several of both; None where it was left at
        the outlet.
        """
        if not self._has_workers(clients):
            with one_thread():
                return [getattr(self._loop, f"{method}_at")(*arguments, k) for k in range(len(clients))]
        uses = [] if cohort is None else [self._share(cohort.federation.origin)]
        if outlet is not None:
            uses.append(id(outlet.buffer))
        try:
            call = SharedMessage((outlet, arguments), self._known)
        except Exception as error:
            told = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise FedfluxError(
                f"engine processes cannot send what {method} was given to its workers ({told}): "
                "define rules and statistics at the top of a module, or use --engine loop"
            ) from error
        try:
            return self._pool.map(method, call, uses, clients, weights)
        finally:
            call.close()

    def _has_workers(self, positions: Sequence[Any]) -> bool:
        return len(positions) > 1 and self.workers > 1 and not multiprocessing.current_process().daemon

    def _outlet(self, model: Parameters, jobs: Sequence[Job]) -> ResultRows | None:
        """Where the models of these jobs go: the buffer of the call before, or a new one."""
        ends = list(accumulate(len(job.models) for job in jobs))
        old = self._buffer
        if old is None or not old.fits(model, ends[-1]):
            new = ResultBuffer.like(model, ends[-1])
            if new is not None:
                self._pool.share(id(new), new)
            self._buffer = new
            if old is not None:
                self._pool.forget(id(old))
        return None if self._buffer is None else ResultRows(self._buffer, [0, *ends])

    def _share(self, federation: Federation) -> int:
        key = id(federation)  # held below, so that no other can get this id
        if key not in self._federations:
            while len(self._federations) >= FEDERATIONS:
                oldest = next(iter(self._federations))
                self._pool.forget(oldest)
                del self._federations[oldest]
            self._pool.share(key, replace(federation, cache_bytes=federation.cache_bytes // self.workers))
            self._federations[key] = federation
        return key

    def _known(self, item: object) -> int | None:
        held = isinstance(item, Federation) and id(item) in self._federations
        return id(item) if held or (isinstance(item, ResultBuffer) and item is self._buffer) else None


@dataclass(frozen=True)
class _Prepare:
    """What a worker begins with: an engine of its own."""

    recipe: Recipe
    precision: str
    pixels: tuple[float, float] | None

    def __call__(self) -> "_Do":
        return _Do(LoopEngine(self.recipe.build(), "cpu", self.precision, self.pixels, self.recipe.task))


@dataclass(frozen=True)
class _Do:
    """One position of a call on the reference engine."""

    loop: LoopEngine

    def __call__(self, method: str, told: tuple[Any, ...], position: int) -> object:
        outlet, arguments = told
        part = getattr(self.loop, f"{method}_at")(*arguments, position)
        return None if outlet is not None and outlet.leave(position, part) else part


def _cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _close(pool: Pool, owner: int) -> None:
    """At the end of the engine or of the interpreter; a forked copy of this process leaves the workers alone."""
    if os.getpid() == owner:
        pool.close()
