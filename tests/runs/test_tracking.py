"""Curves reach TensorBoard and MLflow as their own libraries read them."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.runs.making import read_json, read_rounds
from tests.runs.test_resume import stop_at

import fedflux
from fedflux.errors import FedfluxError
from fedflux.files import read_lines
from fedflux.runs import runner, tracking
from fedflux.runs.config import make_config
from fedflux.runs.ending.finish import Ending
from fedflux.runs.runner import run_config

SHORT: dict[str, Any] = {"clients": 4, "rounds": 4, "cluster_round": 2, "device": "cpu"}


def means(folder: Path) -> list[float]:
    scores = [list(record["validation"].values()) for record in read_rounds(folder)]
    return [sum(one) / len(one) for one in scores]


def interrupted(folder: Path, track: str) -> dict[str, Any]:
    """A tracked run that was stopped and went on."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            fedflux.run(**SHORT, out=folder, track=track)
    return fedflux.run(out=folder, resume=True).to_dict()


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = interrupted(tmp_path / "run", "tensorboard")
    events: Any = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    drawn = events.Scalars("validation_mean")
    assert [point.step for point in drawn] == [1, 2, 3, 4]
    assert [point.value for point in drawn] == pytest.approx(means(tmp_path / "run"), rel=1e-6)
    assert events.Scalars("final/known")[0].value == pytest.approx(result["known"], rel=1e-6)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    result = interrupted(tmp_path / "run", "mlflow")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedflux")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1
    assert (runs[0].info.status, runs[0].data.params["algorithm"]) == ("FINISHED", "flux")
    drawn = client.get_metric_history(runs[0].info.run_id, "validation_mean")
    assert [point.step for point in drawn] == [1, 2, 3, 4]
    assert [point.value for point in drawn] == pytest.approx(means(tmp_path / "run"))
    assert runs[0].data.metrics["final_known"] == pytest.approx(result["known"])


@pytest.mark.parametrize(("fault", "status"), [(KeyboardInterrupt, "KILLED"), (RuntimeError, "FAILED")])
def test_a_stopped_run_does_not_stay_running_in_mlflow(
    fault: type[BaseException], status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    def fail(*_: Any) -> None:
        raise fault

    def found() -> str:
        client = MlflowClient((tmp_path / "mlruns").as_uri())
        return str(client.get_run(read_json(tmp_path / "run" / "mlflow.json")["run_id"]).info.status)

    with monkeypatch.context() as patch:
        patch.setattr(Ending, "result", fail)
        with pytest.raises(fault):
            fedflux.run(**SHORT, out=tmp_path / "run", track="mlflow")
    assert found() == status
    fedflux.run(out=tmp_path / "run", resume=True)
    assert found() == "FINISHED"


@pytest.mark.parametrize(("step", "status"), [("log_param", "KILLED"), ("log_metric", "KILLED"), ("final", "FINISHED")])
def test_ctrl_c_while_mlflow_is_told_something_ends_its_run(
    step: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    real = MlflowClient.log_metric

    def stop(client: Any, run: str, name: str, *rest: Any, **more: Any) -> None:
        if step != "final" or name.startswith("final_"):
            raise KeyboardInterrupt
        real(client, run, name, *rest, **more)

    monkeypatch.setattr(MlflowClient, "log_metric" if step == "final" else step, stop)
    with pytest.raises(KeyboardInterrupt):
        fedflux.run(**SHORT, out=tmp_path / "run", track="mlflow")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    assert client.get_run(read_json(tmp_path / "run" / "mlflow.json")["run_id"]).info.status == status


def test_ctrl_c_that_a_library_swallows_while_it_starts_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Swallowing:
        def __init__(self, *_: Any) -> None:
            with suppress(BaseException):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)

        def round(self, _: Any) -> None:
            raise AssertionError("no round was to begin")

        def close(self, stopped: Any) -> None:
            assert stopped == "KILLED"

    monkeypatch.setattr(runner, "check_trackers", lambda names: None)
    monkeypatch.setitem(tracking.TRACKERS, "swallowing", Swallowing)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped after round 0"):
            fedflux.run(**SHORT, out=tmp_path / "run", track="swallowing")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


class Failing:
    """A tracker that fails at one of its steps."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.told: list[str] = []
        self._tell("start")

    def _tell(self, step: str) -> None:
        self.told.append(step)
        if step == self.step:
            raise ConnectionError("no\nserver")

    def round(self, record: Any) -> None:
        self._tell(f"round {record['round']}")

    def finish(self, _: Any) -> None:
        self._tell("finish")

    def close(self, _: Any) -> None:
        self._tell("close")


@pytest.mark.parametrize("step", ["start", "round 2", "finish", "close"])
def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Failing] = []

    def make(*_: Any) -> Failing:
        made.append(Failing(step))
        return made[0]

    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", make)
    notes: list[str] = []
    config = make_config({**SHORT, "out": tmp_path / "run", "track": "tensorboard", "store": "none"})
    result = run_config(config, lambda progress: notes.extend(progress.events))
    assert result["rounds"] == 4
    words = "tracking with tensorboard stopped: ConnectionError: no server"
    assert [event["event"] for event in read_lines(tmp_path / "run" / "events.jsonl")].count(words) == 1
    assert notes.count(words) == (step in ("start", "round 2"))
    if made:
        assert made[0].told[-1] == step


def test_unknown_and_missing_trackers_are_said_before_anything_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FedfluxError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"):
        fedflux.run(**SHORT, out=tmp_path / "run", track="tensorbord")
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(FedfluxError, match=r"needs the extra 'track': pip install 'fedflux\[track\]'"):
        fedflux.run(**SHORT, out=tmp_path / "run", track="mlflow")
    assert not (tmp_path / "run").exists()
