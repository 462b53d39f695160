"""Cells on many machines: a Dask cluster takes the place of worker processes, and the store stays with who asked.

`--on dask` starts a cluster here, `--on dask://HOST:PORT` asks one that is there. Its machines trust each other: Dask
sends pickles and runs what it is sent.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from re import fullmatch
from tempfile import TemporaryDirectory
from threading import Lock, Timer
from typing import Any
from uuid import uuid4

from fedflux.data.dataset import Dataset
from fedflux.errors import FedfluxError, StoppedError
from fedflux.files import read_lines, read_object
from fedflux.runs.config import RunConfig
from fedflux.runs.session import Progress
from fedflux.runs.storage.folder import CONFIG_FILE, ROUNDS_FILE
from fedflux.runs.storage.store import STORE_FILE, Store
from fedflux.studies.workers import RETRY, Kind, Tell, do_cell
from fedflux.version import __version__

LOCAL = "dask"
PATIENCE = 30
"""Seconds that a cluster has to show its first worker."""
LOOK = 0.5
"""Seconds between looks at whether the cluster is still there."""

_busy = Lock()
_datasets: dict[tuple[str, str | None], Dataset] = {}
Answer = tuple[Kind, Any, dict[str, Any] | None, list[Any]]
"""What happened; the result or words; the run's configuration and rounds, for the store."""


def on_cluster(where: str) -> Callable[[Sequence[RunConfig], int, Tell], None]:
    """What does runs on the cluster that `--on` names."""
    _distributed()
    if where != LOCAL and fullmatch(r"dask://[^\s/:]+:[0-9]{1,5}", where) is None:
        raise FedfluxError(f"--on {where}: give dask, for a cluster of this machine, or dask://HOST:PORT")
    return partial(_work, where)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise FedfluxError("--on needs dask.distributed: pip install 'fedflux[cluster]'") from error
    return distributed


def _work(where: str, runs: Sequence[RunConfig], jobs: int, tell: Tell) -> None:
    """Do all runs as tasks of the cluster; those whose worker dies are begun again elsewhere, by Dask itself."""
    if not runs:
        return
    heard: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    with _client(where, min(jobs, len(runs))) as (client, share), _mark(runs) as mark:
        topic = f"fedflux-{uuid4().hex}"
        client.subscribe_topic(topic, lambda event: heard.put(tuple(event[1])))
        waiting: dict[int, Any] = {}
        begun: dict[int, int] = {}

        def submit(task: int) -> None:
            future = client.submit(
                run_cell, runs[task], mark, topic, task, share, key=f"{topic}-{task}-{uuid4().hex}", priority=-task
            )
            waiting[task] = future
            future.add_done_callback(lambda future: heard.put(("end", task, future)))

        for task in range(len(runs)):
            submit(task)
        while waiting:
            try:
                kind, task, *content = heard.get(timeout=LOOK)
            except Empty:
                if client.status not in ("running", "connecting"):
                    raise StoppedError(f"the cluster {where} is gone; the same command goes on") from None
                continue
            if kind == "again":
                submit(task)
            elif kind == "begun" and task in waiting:
                begun[task] = begun.get(task, 0) + 1
                if begun[task] > 1:
                    tell(task, "killed", "its process was killed; it is taken up again")
            elif kind == "round" and task in waiting:
                tell(task, "round", Progress(*content[:4], *map(_tuples, content[4:])))
            elif kind == "end" and content[0] is waiting.get(task):
                waiting.pop(task)
                answer = _ended(content[0], runs[task])
                tell(task, *answer)
                if answer[0] == "busy":
                    begun[task] -= 1
                    waiting[task] = None
                    Timer(RETRY, heard.put, [("again", task)]).start()


def _tuples(value: Any) -> Any:
    """As they were before they were sent."""
    return tuple(value) if isinstance(value, list) else value


def _ended(future: Any, config: RunConfig) -> tuple[Kind, Any]:
    """What came of a task; a finished run enters the store here, once, however often it was begun."""
    try:
        kind, content, configured, rounds = future.result()
    except Exception as error:
        words = "its process was killed again and again" if type(error).__name__ == "KilledWorker" else str(error)
        return "failed", f"{type(error).__name__}: {words}"
    finally:
        future.release()
    if kind == "done":
        assert configured is not None
        here = {"command": config.command()}
        content = {**content, **here, "run_dir": config.out}
        kept = {**configured, **here, "out": config.out, "store": config.store}
        Store(Path(config.store or STORE_FILE)).add(kept, content, rounds)
    return kind, content


@contextmanager
def _client(where: str, jobs: int) -> Iterator[tuple[Any, float]]:
    """A connection to the cluster, and the share of a GPU that a cell may take."""
    distributed = _distributed()
    with ExitStack() as stack:
        try:
            if where == LOCAL:
                gpus = _gpus()
                cluster = distributed.LocalCluster(
                    n_workers=jobs,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs="CRITICAL",
                )
                stack.enter_context(cluster)
                client = stack.enter_context(distributed.Client(cluster))
                share = min(1.0, gpus / jobs) if gpus else 1.0
            else:
                client = stack.enter_context(distributed.Client(_address(where), timeout=PATIENCE))
                share = 1.0
            client.wait_for_workers(1, timeout=PATIENCE)
        except (OSError, TimeoutError, ValueError) as error:
            words = str(error) or "no worker came"
            raise FedfluxError(f"--on {where}: cannot use this cluster: {' '.join(words.split())}") from error
        _check_workers(client, where)
        yield client, share


def _address(where: str) -> str:
    """Encrypted where Dask's own configuration has certificates."""
    import dask

    place = where.removeprefix("dask://")
    return f"{'tls' if dask.config.get('distributed.comm.tls.ca-file', None) else 'tcp'}://{place}"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _check_workers(client: Any, where: str) -> None:
    """One thread each, since torch's settings are a process's; and the version that is here."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    for address, told in workers.items():
        if told["nthreads"] != 1:
            words = f"worker {address} has {told['nthreads']} threads; start it with --nthreads 1"
            raise FedfluxError(f"--on {where}: {words}")
    for address, version in client.run(version_here).items():
        if version != __version__:
            raise FedfluxError(f"--on {where}: worker {address} has fedflux {version}, here is {__version__}")


def version_here() -> str:
    """Asked of every worker."""
    return __version__


@contextmanager
def _mark(runs: Sequence[RunConfig]) -> Iterator[tuple[str, str]]:
    """A file beside the runs: a worker that finds it shares the folder, so that a cell can go on where it stopped."""
    folder = Path(runs[0].out or ".").parent
    path, word = folder / f".cluster-{uuid4().hex}.tmp", uuid4().hex
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(word, encoding="utf-8")
        yield str(path.absolute()), word
    finally:
        with suppress(OSError):
            path.unlink()


def run_cell(config: RunConfig, mark: tuple[str, str], topic: str, task: int, share: float) -> Answer:
    """What a worker does: one run, in its own folder where that is shared, else in one that goes with it."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    worker.log_event(topic, ["begun", task])

    def tell(progress: Progress) -> None:
        state = worker.state.tasks.get(key)
        if state is None or state.state != "executing":
            raise _UnwantedError
        worker.log_event(topic, ["round", task, *(_lists(value) for value in astuple(progress))])

    with ExitStack() as stack:
        stack.enter_context(_busy)
        out = str(Path(config.out or ".").absolute()) if _is_shared(mark) else None
        out = out or str(Path(stack.enter_context(TemporaryDirectory(prefix="fedflux-"))) / "run")
        there = replace(_placed(config, worker.name), out=out, store="none", resume=True)
        kind, content = do_cell(there, _datasets, share, tell)
        configured = read_object(Path(out) / CONFIG_FILE) if kind == "done" else None
        rounds = read_lines(Path(out) / ROUNDS_FILE) if kind == "done" else []
    return kind, content, configured, rounds


class _UnwantedError(BaseException):
    """Whoever asked for the run is gone: stop after the round that was just saved."""


def _lists(value: Any) -> Any:
    """What can be sent."""
    return list(value) if isinstance(value, tuple) else value


def _is_shared(mark: tuple[str, str]) -> bool:
    try:
        return Path(mark[0]).read_text(encoding="utf-8") == mark[1]
    except (OSError, UnicodeDecodeError):
        return False


def _placed(config: RunConfig, name: object) -> RunConfig:
    """Workers of one machine with several GPUs take one each, in turn."""
    gpus = _gpus()
    if gpus > 1 and config.device in ("auto", "cuda") and isinstance(name, int):
        return replace(config, device=f"cuda:{name % gpus}")
    return config
