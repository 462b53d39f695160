"""Worker processes of one engine: started once, fed by their parent, gone with it."""

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ACKNOWLEDGE
from typing import Any

import torch

from fedflux.engine.allocator import keep_freed_memory
from fedflux.engine.base import DivergedError
from fedflux.engine.processes.result_buffer import ResultBuffer
from fedflux.engine.processes.schedule import Shares, deal
from fedflux.engine.processes.transfer import SharedMessage, receive, send

Do = Callable[[str, tuple[Any, ...], int], object]
"""(method, its arguments, position) → that position's part of the result."""
Prepare = Callable[[], Do]
"""Called once in every worker, with one torch thread."""
GOODBYE = 5.0
"""Seconds that an idle worker has to leave by itself."""
AHEAD = 1 if ACKNOWLEDGE else 2
"""Tasks that a worker has at a time; one on macOS, where an answer waits for a word that another task would precede."""


class WorkerDiedError(RuntimeError):
    """A worker process ended without an answer; the message names the clients it was at."""


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: "Connection[Any, Any]"
    holds: set[int] = field(default_factory=set)
    """Which of the pool's shared objects it was given."""
    call: int = -1
    tasks: deque[list[int]] = field(default_factory=deque)
    """The one it works on, and one that waits for it there, so that it never waits itself."""


class Pool:
    """Up to `limit` processes that answer calls position by position, with objects that all of them share."""

    def __init__(self, prepare: Prepare, limit: int) -> None:
        self._prepare = prepare
        self._limit = limit
        self._workers: list[_Worker] = []
        self._shared: dict[int, SharedMessage | ResultBuffer] = {}
        self._homes: dict[tuple[int, int], int] = {}
        self._calls = 0

    @property
    def pids(self) -> list[int]:
        """The process id of every worker."""
        return [worker.process.pid or 0 for worker in self._workers]

    def share(self, key: int, content: object) -> None:
        """Put an object where every worker can read it; calls name it by its key."""
        if key not in self._shared:
            self._shared[key] = content if isinstance(content, ResultBuffer) else SharedMessage(content)

    def forget(self, key: int) -> None:
        """Drop a shared object everywhere; its key may name another from then on."""
        self._shared.pop(key).close()
        for worker in self._workers:
            if key in worker.holds:
                worker.holds.remove(key)
                with suppress(OSError):  # it died while idle: listening finds out
                    send(worker.connection, ("forget", key))
        self._homes = {home: worker for home, worker in self._homes.items() if home[0] != key}

    def map(
        self,
        method: str,
        call: SharedMessage,
        uses: Sequence[int],
        clients: Sequence[int],
        weights: Sequence[float],
    ) -> list[Any]:
        """The result of every position, in order; the first error in that order is raised as it was.

        `uses` are the keys of the shared objects that the call names, first the one that its clients come from, if any.
        A client goes to the worker that had it before, since that one has its data made.
        """
        self._start(min(self._limit, len(clients)))
        self._calls += 1
        count = len(self._workers)
        places = [(uses[0] if uses else -1, client) for client in clients]
        homes = deal(weights, [self._homes.get(place) for place in places], count)
        if uses:
            self._homes.update(zip(places, homes, strict=True))
        shares = Shares(weights, homes, count)
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        try:
            for _ in range(AHEAD):
                for worker in self._workers:
                    self._give(worker, shares, method, call, uses)
            while busy := [worker for worker in self._workers if worker.tasks]:
                ready = wait([worker.connection for worker in busy])
                for worker in busy:
                    if worker.connection in ready:
                        self._answer(worker, method, clients, results, errors)
                        if errors:
                            shares.drop_after(_first(errors))
                        self._give(worker, shares, method, call, uses)
        except BaseException:
            self.kill()  # whatever a worker still does is for nobody
            raise
        if errors:
            raise errors[min(errors, key=lambda p: (isinstance(errors[p], DivergedError), p))]
        return [results[position] for position in range(len(clients))]

    def _give(self, worker: _Worker, shares: Shares, method: str, call: SharedMessage, uses: Sequence[int]) -> None:
        task = shares.take(self._workers.index(worker), [position for held in worker.tasks for position in held])
        if not task:
            return
        worker.tasks.append(task)
        with suppress(OSError):  # it died while idle: listening finds out
            for key in set(uses) - worker.holds:
                shared = self._shared[key]
                send(worker.connection, ("see" if isinstance(shared, ResultBuffer) else "hold", key))
                shared.send(worker.connection)
                worker.holds.add(key)
            if worker.call != self._calls:
                send(worker.connection, ("call", method))
                call.send(worker.connection)
                worker.call = self._calls
            send(worker.connection, ("do", task))

    def _answer(
        self,
        worker: _Worker,
        method: str,
        clients: Sequence[int],
        results: dict[int, Any],
        errors: dict[int, BaseException],
    ) -> None:
        try:
            done, failed = receive(worker.connection, own=True)
        except (EOFError, OSError):
            had = ", ".join(str(clients[position]) for position in sorted(worker.tasks[0]))
            raise WorkerDiedError(
                f"a worker process {_cause(worker.process)} while it had client {had} to {method}; "
                "engine loop needs no workers"
            ) from None
        results.update(done)
        errors.update(failed)
        worker.tasks.popleft()

    def _start(self, count: int) -> None:
        while len(self._workers) < count:
            self._workers.append(_start_worker(self._prepare))

    def close(self) -> None:
        """Let the workers leave, and end those that do not."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            if not worker.tasks:
                worker.process.join(GOODBYE)
        self.kill()
        for message in self._shared.values():
            message.close()
        self._shared.clear()

    def kill(self) -> None:
        """End the workers now; shared objects stay for those that come after."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers.clear()
        self._homes.clear()


def _cause(process: BaseProcess) -> str:
    process.join(GOODBYE)
    code = process.exitcode
    if code is not None and code < 0:
        return f"was killed ({signal.Signals(-code).name}; out of memory?)"
    return f"ended (exit status {code})"


def _start_worker(prepare: Prepare) -> _Worker:
    """Workers are forked from a server that has imported torch and used nothing of it, which is quick and safe."""
    context = multiprocessing.get_context("forkserver")
    known = [name for name in ("fedflux.cli.running",) if name in sys.modules]
    context.set_forkserver_preload(["torch", "fedflux.engine", *known])
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, prepare), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: "Connection[Any, Any]", prepare: Prepare) -> None:
    """What a worker does until its parent closes the connection; the parent alone answers Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    gc.freeze()  # what was imported stays: looking through it for garbage again and again takes 3 % of training
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    shared: dict[int, Any] = {}
    do: Do | None = None
    method, arguments = "", ()
    fault: Exception | None = None
    failed: dict[int, BaseException] = {}
    while True:
        try:
            order, value = receive(connection)
            if order == "hold":
                shared[value] = receive(connection)
            elif order == "see":
                shared[value] = ResultBuffer.receive(connection)
            elif order == "forget":
                del shared[value]
                arguments = ()  # which may still name it
            elif order == "call":
                fault, failed, method, arguments = None, {}, value, ()
                arguments = receive(connection, shared.__getitem__)
                do = do or prepare()
            elif do is None or fault is not None:
                send(connection, ({}, dict.fromkeys(value, fault)))
            else:
                done = _work(do, method, arguments, value, failed)
                send(connection, (done, failed))
        except (EOFError, OSError):
            return
        except Exception as error:  # what came cannot be made here: a class this process cannot import, say
            fault = _portable(error)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(
    do: Do, method: str, arguments: tuple[Any, ...], positions: Sequence[int], failed: dict[int, BaseException]
) -> dict[int, object]:
    """Results by position; errors join those that failed before, and what comes after one of them is left undone."""
    done: dict[int, object] = {}
    for position in positions:
        if position >= _first(failed):
            continue
        try:
            done[position] = do(method, arguments, position)
        except Exception as error:
            failed[position] = _portable(error)
    return done


def _first(failed: Mapping[int, BaseException]) -> float:
    """The first position whose error ends a call; that a model diverged is only found when all are trained."""
    return min((p for p, error in failed.items() if not isinstance(error, DivergedError)), default=inf)


def _portable(error: Exception) -> Exception:
    """The same exception if it survives pickling, otherwise its words; where it happened rides along as a note."""
    where = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is not type(error) or str(copy) != str(error):
            raise TypeError
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in a worker process:\n{where}")
    return error
