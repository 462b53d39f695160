"""Optional: a run's curves in TensorBoard or MLflow (`--track tensorboard,mlflow`; the extra `track`)."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from fedflux.errors import FedfluxError, unknown
from fedflux.files import read_object, write_json

MLFLOW_FILE = "mlflow.json"
SCORES = (
    *("known", "known_worst", "test", "test_worst", "unseen", "unseen_worst", "pairs_right", "ari", "clusters_found"),
)
Stopped = Literal["KILLED", "FAILED"]
"""By a person, or by an error; MLflow's words."""


class Tracker(Protocol):
    """What is told of a run while it lasts."""

    def round(self, record: Mapping[str, Any]) -> None:
        """One line of the round log."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The result."""

    def close(self, stopped: Stopped | None) -> None:
        """The end of a session, and what stopped a run that has no result."""


class Several:
    """Tells each in turn; nobody, where nothing is tracked. One that fails is heard of once and told no more."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._complain = complain
        self._faults: list[str] = []

    def start(self, name: str, make: Callable[[], Tracker]) -> None:
        """One more."""
        with self._going_on(name):
            self._trackers[name] = make()

    def round(self, record: Mapping[str, Any]) -> list[str]:
        """One line of the round log; what went wrong since the one before it."""
        self._each(lambda tracker: tracker.round(record))
        faults, self._faults = self._faults, []
        return faults

    def finish(self, result: Mapping[str, Any]) -> None:
        """The result."""
        self._each(lambda tracker: tracker.finish(result))

    def close(self, stopped: Stopped | None) -> None:
        """The end of a session."""
        self._each(lambda tracker: tracker.close(stopped))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._going_on(name):
                tell(tracker)

    @contextmanager
    def _going_on(self, name: str) -> Iterator[None]:
        """A library or server of others must not end a run: whatever it raises ends its tracking."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            words = " ".join(f"tracking with {name} stopped: {type(error).__name__}: {error}".split())
            self._faults.append(words)
            self._complain(words)


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, config: Mapping[str, Any], done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
        if not done:
            self._writer.add_text("command", f"`{config['command']}`")

    def round(self, record: Mapping[str, Any]) -> None:
        """Mean and worst validation accuracy, bytes, seconds."""
        for name, value in curves(record).items():
            self._writer.add_scalar(name, value, record["round"])
        for words in record["events"]:
            self._writer.add_text("events", words, record["round"])
        self._writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        """The final scores, at the last round."""
        for name in SCORES:
            if result.get(name) is not None:
                self._writer.add_scalar(f"final/{name}", result[name], result["rounds"])

    def close(self, stopped: Stopped | None) -> None:
        """End the event file."""
        self._writer.close()


class MLflow:
    """A run in MLflow: MLFLOW_TRACKING_URI where it is set, else the folder `mlruns` beside the run folders."""

    def __init__(self, folder: Path, config: Mapping[str, Any], done: int) -> None:
        from mlflow.tracking import MlflowClient

        if "MLFLOW_TRACKING_URI" not in os.environ:
            # files need no server and no database driver; newer versions want to be told that they are meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            self._client = MlflowClient((folder.parent / "mlruns").resolve().as_uri())
        else:
            self._client = MlflowClient()
        self._finished = False
        known = read_object(folder / MLFLOW_FILE) if done else None
        if known is not None:
            self._run = known["run_id"]
            self._client.update_run(self._run, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name("fedflux")
        number = experiment.experiment_id if experiment else self._client.create_experiment("fedflux")
        self._run = self._client.create_run(number, run_name=folder.name).info.run_id
        try:
            write_json(folder / MLFLOW_FILE, {"run_id": self._run})
            for key, value in config.items():
                if value is not None and not isinstance(value, dict):
                    self._client.log_param(self._run, key, value)
        except BaseException as error:  # nobody holds this tracker yet, so nobody else would end its run
            self.close("FAILED" if isinstance(error, Exception) else "KILLED")
            raise

    def round(self, record: Mapping[str, Any]) -> None:
        """Mean and worst validation accuracy, bytes, seconds."""
        for name, value in curves(record).items():
            self._client.log_metric(self._run, name, value, step=record["round"])

    def finish(self, result: Mapping[str, Any]) -> None:
        """The final scores; from here on the run is finished, whatever interrupts the telling."""
        self._finished = True
        for name in SCORES:
            if result.get(name) is not None:
                self._client.log_metric(self._run, f"final_{name}", result[name])
        self._client.set_terminated(self._run)

    def close(self, stopped: Stopped | None) -> None:
        """Nothing is open between calls; a run without a result is said to have ended."""
        if stopped is not None:
            self._client.set_terminated(self._run, "FINISHED" if self._finished else stopped)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any], int], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def curves(record: Mapping[str, Any]) -> dict[str, float]:
    """What is drawn over the rounds."""
    scores = [score for score in record["validation"].values() if score is not None]
    drawn = {"validation_mean": sum(scores) / len(scores), "validation_worst": min(scores)} if scores else {}
    for way in ("bytes_up", "bytes_down", "seconds"):
        drawn[way] = float(sum(record[way].values()))
    return drawn


def check_trackers(names: str | None) -> None:
    """Refuse an unknown or missing tracker before any work."""
    for name in _split(names):
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        try:
            import_module(name)
        except ImportError as error:
            raise FedfluxError(f"--track {name} needs the extra 'track': pip install 'fedflux[track]'") from error


@contextmanager
def make_tracker(
    names: str | None, folder: Path, config: Mapping[str, Any], done: int, complain: Callable[[str], None]
) -> Iterator[Several]:
    """The trackers of a run whose first `done` rounds they have seen already; `complain` hears of those that fail."""
    trackers = Several(complain)
    stopped: Stopped | None = "KILLED"
    try:
        with ctrl_c_afterwards():
            for name in _split(names):
                trackers.start(name, partial(TRACKERS[name], folder, config, done))
        yield trackers
        stopped = None
    except Exception:
        stopped = "FAILED"
        raise
    finally:
        trackers.close(stopped)


@contextmanager
def ctrl_c_afterwards() -> Iterator[None]:
    """Put Ctrl-C off until the context is left: what a library loads while it starts may swallow it."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if pressed:
        raise KeyboardInterrupt


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []
