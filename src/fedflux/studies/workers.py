"""Runs in parallel processes: a killed worker costs the round it was in, not its cell and not the other workers."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

from fedflux.data.dataset import Dataset
from fedflux.data.sources import load
from fedflux.engine.allocator import keep_freed_memory
from fedflux.errors import FedfluxError, StoppedError
from fedflux.models import OwnModel
from fedflux.runs.config import RunConfig
from fedflux.runs.runner import run_config
from fedflux.runs.session import Progress
from fedflux.runs.storage.folder import BusyError

TRIES = 3
"""How often a cell is begun whose worker was killed."""
GRACE = 10.0
"""Seconds that a stopped worker has to end its run's trackers, before it is killed."""
RETRY = 1.0
"""Seconds until a cell is looked at again that another process works on."""

Kind = Literal["round", "done", "busy", "failed", "killed"]
Tell = Callable[[int, Kind, Any], None]
"""Index of the run; what happened; a Progress, the result, or words."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: int | None = None


@dataclass
class _Queue:
    """Tasks to do, some not before a moment, each with the times it was begun."""

    waiting: deque[tuple[float, int]]
    begun: dict[int, int] = field(default_factory=dict)

    def next(self) -> int | None:
        for _ in range(len(self.waiting)):
            moment, task = self.waiting.popleft()
            if moment <= monotonic():
                return task
            self.waiting.append((moment, task))
        return None

    def put_back(self, task: int, delay: float = 0.0) -> None:
        self.waiting.append((monotonic() + delay, task))


def work(runs: Sequence[RunConfig], jobs: int, tell: Tell) -> None:
    """Do all runs on `jobs` processes, each from its last checkpoint where it has one; `tell` hears of each step."""
    queue = _Queue(deque((0.0, task) for task in range(len(runs))))
    workers: list[_Worker] = []
    try:
        while queue.waiting or any(worker.task is not None for worker in workers):
            _hand_out(queue, workers, runs, min(jobs, len(runs)))
            busy = [worker for worker in workers if worker.task is not None]
            ready = wait([worker.connection for worker in busy], timeout=RETRY / 2)
            for worker in busy:
                if worker.connection in ready:
                    _listen(worker, workers, queue, tell)
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join(GRACE)
            worker.process.kill()
            worker.process.join()


def _hand_out(queue: _Queue, workers: list[_Worker], runs: Sequence[RunConfig], jobs: int) -> None:
    while len([w for w in workers if w.task is not None]) < jobs:
        task = queue.next()
        if task is None:
            return
        idle = next((worker for worker in workers if worker.task is None), None)
        if idle is None:
            idle = _start(1 / jobs)
            workers.append(idle)
        with suppress(OSError):  # it died while idle: listening finds out
            idle.connection.send((task, runs[task]))
        idle.task = task
        queue.begun[task] = queue.begun.get(task, 0) + 1


def _listen(worker: _Worker, workers: list[_Worker], queue: _Queue, tell: Tell) -> None:
    task = worker.task
    assert task is not None
    try:
        kind, content = worker.connection.recv()
    except (EOFError, OSError):
        workers.remove(worker)
        worker.process.join()
        if queue.begun[task] < TRIES:
            tell(task, "killed", "its process was killed; it is taken up again")
            queue.put_back(task)
        else:
            tell(task, "failed", f"its process was killed {TRIES} times")
        return
    tell(task, kind, content)
    if kind != "round":
        worker.task = None
    if kind == "busy":
        queue.begun[task] -= 1
        queue.put_back(task, RETRY)


def _start(share: float) -> _Worker:
    """A fresh interpreter: forking a process that has used torch or CUDA is not safe. It may take a share of a GPU."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, share), daemon=True)
    with _deaf_to_interrupts():
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Children started here inherit that Ctrl-C is held back, from their first moment on; their parent answers it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, share: float) -> None:
    """What a worker does: runs until nobody is there to give it any. Its parent alone answers Ctrl-C, and says stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    keep_freed_memory()
    datasets: dict[tuple[str, str | None], Dataset] = {}
    parent = os.getppid()
    while True:
        try:
            _, config = connection.recv()
            kind, content = do_cell(config, datasets, share, lambda progress: _report(connection, parent, progress))
            connection.send((kind, content))
        except (EOFError, OSError, _OrphanedError, _StoppedError):
            with suppress(_StoppedError):  # which may come just now
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is open any more: it may end at once
            return


class _OrphanedError(BaseException):
    """The process that asked for the run is gone: stop after the round that was just saved."""


class _StoppedError(BaseException):
    """The process that asked for the run wants it no more: whatever is open, such as a tracker's run, is closed."""


def _stop(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what is being closed must not be cut short
    raise _StoppedError


def _report(connection: Connection, parent: int, progress: Progress) -> None:
    try:
        connection.send(("round", progress))
    except OSError:
        raise _OrphanedError from None
    if os.getppid() != parent:
        raise _OrphanedError


def do_cell(
    config: RunConfig,
    datasets: dict[tuple[str, str | None], Dataset],
    share: float,
    on_round: Callable[[Progress], None],
) -> tuple[Kind, Any]:
    """One run, and what came of it; the dataset of the last one is kept in `datasets`."""
    key = (config.dataset, config.data_dir)

    def run() -> dict[str, Any]:
        if key not in datasets:
            datasets.clear()
            datasets[key] = load(config.dataset, Path(config.data_dir) if config.data_dir else None)
        return run_config(config, on_round, datasets[key], share)

    return _attempt(run)


def work_here(runs: Sequence[RunConfig], tell: Tell, dataset: Dataset | None, model: OwnModel | None) -> None:
    """Do all runs in this process, one after another: data, models and methods may be objects that live here alone."""
    for task, config in enumerate(runs):
        listener = partial(tell, task, "round")
        kind, content = _attempt(partial(run_config, config, listener, dataset, model=model))
        while kind == "busy":
            tell(task, kind, content)
            sleep(RETRY)
            kind, content = _attempt(partial(run_config, config, listener, dataset, model=model))
        tell(task, kind, content)


def _attempt(run: Callable[[], dict[str, Any]]) -> tuple[Kind, Any]:
    """What comes of a run, whatever comes of it."""
    try:
        return "done", run()
    except BusyError as error:
        return "busy", str(error)
    except (FedfluxError, StoppedError) as error:
        return "failed", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
