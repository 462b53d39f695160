"""Runners side by side: one at a time, rounds interleaved, so that a noisy machine hits all of them alike."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.studies.bench.remote import Remote, RunnerError
from fedflux.studies.bench.runners import unavailable
from fedflux.studies.bench.work import Work

MEGA = 1e6
LEAST = 2.0
"""Seconds that a runner has at least in a repeat: what disturbs a shared machine lasts from tenths of one to many."""
Tell = Callable[[str], None]


@dataclass
class _Measured:
    remote: Remote
    startup: float
    loss_before: float
    first_round: float
    samples: int
    seconds: list[float] = field(default_factory=list)


def measure(works: Iterable[Work], runners: Sequence[str], repeats: int, tell: Tell) -> dict[str, Any]:
    """Rows of every runner on every work, and what was skipped and why; `tell` hears a line at each step."""
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for work in works:
        found, left_out = _side_by_side(work, runners, repeats, tell)
        rows += found
        skipped += left_out
    if not rows:
        raise FedfluxError("nothing was measured: " + "; ".join(f"{s['runner']}: {s['why']}" for s in skipped))
    return {"rows": rows, "skipped": skipped}


def _side_by_side(
    work: Work, runners: Sequence[str], repeats: int, tell: Tell
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    skipped: list[dict[str, Any]] = []
    running: dict[str, _Measured] = {}
    rows: list[dict[str, Any]] = []

    def skip(runner: str, why: str) -> None:
        skipped.append({"runner": runner, "clients": work.clients, "why": why})
        tell(f"{work.clients} clients: {runner} skipped: {why}")

    with ExitStack() as remotes:
        for runner in runners:
            why = unavailable(runner, work)
            if why is not None:
                skip(runner, why)
                continue
            tell(f"{work.clients} clients: {runner} starts and warms up")
            remote = Remote(runner, work)
            remotes.callback(remote.kill)
            try:
                running[runner] = _warm_up(remote)
            except RunnerError as error:
                skip(runner, str(error))
        for repeat in range(repeats):

            def begins(runner: str, number: int = repeat + 1) -> None:
                tell(f"{work.clients} clients: {runner}, repeat {number} of {repeats}")

            for runner, failure in _repeat(running, begins).items():
                skip(runner, str(failure))
                del running[runner]
        for runner, measured in running.items():
            try:
                rows.append(_row(work, runner, measured))
                measured.remote.close()
            except RunnerError as error:
                skip(runner, str(error))
    loop = next((row["samples_per_second"] for row in rows if row["runner"] == "loop"), None)
    for row in rows:
        row["ratio_to_loop"] = None if loop is None else row["samples_per_second"] / loop
    return rows, skipped


def _warm_up(remote: Remote) -> _Measured:
    startup = remote.start()
    before = remote.look()["loss"]
    seconds, samples = remote.round()
    return _Measured(remote, startup, before, seconds, samples)


def _repeat(running: Mapping[str, _Measured], begins: Tell) -> dict[str, RunnerError]:
    """One repeat of everyone, which is a mean over rounds, and who failed.

    The next round is always the runner's that has run least so far, until all have run long enough: what disturbs the
    machine for a second then falls on all of them.
    """
    seconds: dict[str, list[float]] = {runner: [] for runner in running}
    failed: dict[str, RunnerError] = {}
    while waiting := [runner for runner in running if runner not in failed and sum(seconds[runner]) < LEAST]:
        runner = min(waiting, key=lambda one: sum(seconds[one]))
        if not seconds[runner]:
            begins(runner)
        try:
            seconds[runner].append(running[runner].remote.round()[0])
        except RunnerError as error:
            failed[runner] = error
    for runner in running.keys() - failed.keys():
        running[runner].seconds.append(mean(seconds[runner]))
    return failed


def _row(work: Work, runner: str, measured: _Measured) -> dict[str, Any]:
    """What one runner's repeats come to.

    Start-up is all that a first round costs beyond a later one, from the birth of the process: some runners do it
    before the round, others in it.
    """
    seconds = median(measured.seconds)
    end = measured.remote.look()
    host, device = end["host_peak"] / MEGA, end["device_peak"]
    return {
        "runner": runner,
        "clients": work.clients,
        "samples_per_second": measured.samples / seconds,
        "seconds": seconds,
        "ratio_to_loop": None,
        "peak_mb": host if device is None else device / MEGA,
        "peak_host_mb": host,
        "startup_seconds": measured.startup + max(measured.first_round - seconds, 0.0),
        "first_round_seconds": measured.first_round,
        "samples": measured.samples,
        "seconds_of_repeats": measured.seconds,
        "loss_before": measured.loss_before,
        "loss_after": end["loss"],
    }
