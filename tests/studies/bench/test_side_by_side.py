"""How figures come about: one runner at a time, repeats interleaved, medians, and whatever cannot run is left out."""

from typing import Any, ClassVar

import pytest
from tests.runs.making import read_json

from fedflux.errors import FedfluxError
from fedflux.studies.bench import RUNNERS, bench, runners, side_by_side
from fedflux.studies.bench.remote import Remote, RunnerError
from fedflux.studies.bench.side_by_side import measure
from fedflux.studies.bench.work import Work

TIMES = {"loop": [9.0, 1.0, 2.0, 3.0], "naive": [9.0, 8.0, 4.0, 4.0], "auto": [0.5, 1.0, 1.0, 1.0]}


class Pretender:
    """A worker process with known times."""

    happened: ClassVar[list[str]] = []
    broken: ClassVar[dict[str, int]] = {}

    def __init__(self, runner: str, work: Work) -> None:
        self.runner, self._work, self._rounds = runner, work, 0

    def start(self) -> float:
        self.happened.append(f"start {self.runner}")
        return 1.5

    def round(self) -> tuple[float, int]:
        if self.broken.get(self.runner) == self._rounds:
            raise RunnerError("out of luck")
        self._rounds += 1
        self.happened.append(self.runner)
        return TIMES[self.runner][self._rounds - 1], 60

    def look(self) -> dict[str, Any]:
        peak = 4_000_000 if self._work.device == "cuda" else None
        return {"loss": 2.0 - 0.1 * self._rounds, "host_peak": 5_000_000, "device_peak": peak}

    def close(self) -> None:
        self.happened.append(f"close {self.runner}")

    def kill(self) -> None:
        self.happened.append(f"kill {self.runner}")


@pytest.fixture(autouse=True)
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "Remote", Pretender)
    monkeypatch.setattr(side_by_side, "LEAST", 1.0)
    monkeypatch.setattr(Pretender, "happened", [])
    monkeypatch.setattr(Pretender, "broken", {})


def test_rows_hold_medians_and_ratios() -> None:
    answer = measure([Work(clients=4)], ["naive", "loop", "auto"], 3, lambda line: None)
    naive, loop, auto = answer["rows"]
    assert answer["skipped"] == []
    assert (naive["seconds"], loop["seconds"], auto["seconds"]) == (4, 2, 1)
    assert (naive["samples_per_second"], loop["samples_per_second"]) == (15, 30)
    assert [row["ratio_to_loop"] for row in (naive, loop, auto)] == [0.5, 1, 2]
    assert naive["seconds_of_repeats"] == [8, 4, 4]
    assert (naive["clients"], naive["peak_mb"], naive["samples"]) == (4, 5, 60)
    assert naive["startup_seconds"] == 1.5 + 9 - 4
    assert auto["startup_seconds"] == 1.5, "a lucky first round is no negative start-up"
    assert (naive["loss_before"], naive["loss_after"]) == (2, pytest.approx(1.6))


def test_repeats_are_interleaved_after_all_are_warm() -> None:
    measure([Work()], ["naive", "loop"], 2, lambda line: None)
    warm, timed = ["start naive", "naive", "start loop", "loop"], ["naive", "loop", "naive", "loop"]
    assert Pretender.happened[:8] == warm + timed
    assert {"close naive", "close loop"} <= set(Pretender.happened[8:])


def test_a_repeat_of_short_rounds_is_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMES, "loop", [9.0, 0.75, 0.5, 0.25, 0.5, 0.5])
    (row,) = measure([Work()], ["loop"], 2, lambda line: None)["rows"]
    assert row["seconds_of_repeats"] == [0.625, pytest.approx(1.25 / 3)]


def test_whoever_has_run_least_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    for runner, times in {"naive": [9, 0.25, 0.25, 0.25, 0.5], "loop": [9, 0.375, 0.75], "auto": [9, 1.0]}.items():
        monkeypatch.setitem(TIMES, runner, times)
    lines: list[str] = []
    measure([Work()], ["naive", "loop", "auto"], 1, lines.append)
    assert Pretender.happened[6:13] == ["naive", "loop", "auto", "naive", "loop", "naive", "naive"]
    assert lines[3:] == [f"10 clients: {runner}, repeat 1 of 1" for runner in ("naive", "loop", "auto")]


def test_without_the_loop_there_is_no_ratio() -> None:
    (row,) = measure([Work()], ["naive"], 3, lambda line: None)["rows"]
    assert row["ratio_to_loop"] is None


def test_peak_memory_is_the_devices_where_there_is_one() -> None:
    (row,) = measure([Work(device="cuda")], ["loop"], 3, lambda line: None)["rows"]
    assert (row["peak_mb"], row["peak_host_mb"]) == (4, 5)


@pytest.mark.parametrize("rounds_done", [0, 2])
def test_a_runner_that_fails_is_left_out(rounds_done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretender, "broken", {"naive": rounds_done})
    lines: list[str] = []
    answer = measure([Work(clients=7)], ["naive", "loop"], 3, lines.append)
    assert [row["runner"] for row in answer["rows"]] == ["loop"]
    assert answer["skipped"] == [{"runner": "naive", "clients": 7, "why": "out of luck"}]
    assert "7 clients: naive skipped: out of luck" in lines
    assert "kill naive" in Pretender.happened


def test_nothing_measured_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretender, "broken", {"loop": 0})
    with pytest.raises(FedfluxError, match="nothing was measured: loop: out of luck"):
        measure([Work()], ["loop"], 3, lambda line: None)


def test_the_folder_keeps_the_answer_and_a_picture(tmp_path: Any) -> None:
    answer = bench([Work(clients=4), Work(clients=8)], ["loop", "naive"], 3, tmp_path / "b")
    assert read_json(tmp_path / "b" / "bench.json") == answer
    assert (tmp_path / "b" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert [row["clients"] for row in answer["rows"]] == [4, 4, 8, 8]
    assert answer["machine"]["cores"] >= 1
    bench([Work()], ["loop"], 1, tmp_path / "b")  # its own folder may be written again
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(FedfluxError, match="holds other files"):
        bench([Work()], ["loop"], 1, tmp_path / "other")


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Work(model="lenet"), "unknown model 'lenet': did you mean 'lenet5'"),
        (Work(precision="fp8"), "unknown precision"),
        (Work(clients=0), "--clients must be 1 or more, not 0"),
    ],
)
def test_bad_work_is_refused(work: Work, message: str) -> None:
    with pytest.raises(FedfluxError, match=message):
        bench([work], ["loop"])
    assert Pretender.happened == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    monkeypatch.setattr(runners, "ENGINES", {"loop": None})
    said = {name: runners.unavailable(name, Work()) for name in RUNNERS}
    assert said["flower-ray"] == "flwr and ray not installed: pip install 'fedflux[peers]'"
    assert said["pfl"] == "pfl not installed: pip install 'fedflux[peers]'"
    assert said["stacked"] == "there is no engine 'stacked' in this version"
    assert [name for name, why in said.items() if why is None] == ["naive", "loop", "loop-per-core", "auto"]
    assert runners.unavailable("loop-per-core", Work(device="cuda")) is not None


def test_a_worker_that_fails_says_why() -> None:
    remote = Remote("loop", Work(clients=2, samples=5, model="nonesuch"))
    try:
        with pytest.raises(RunnerError, match="unknown model 'nonesuch'"):
            remote.start()
    finally:
        remote.close()


def test_a_worker_that_dies_is_noticed() -> None:
    remote = Remote("nonesuch", Work())
    try:
        with pytest.raises(RunnerError, match="its process ended: KeyError: 'nonesuch'"):
            remote.start()
    finally:
        remote.close()
