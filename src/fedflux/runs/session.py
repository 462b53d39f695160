"""One session of a run: the rounds from its last whole checkpoint to its end, each on disk before the next begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedflux.algorithms import Algorithm
from fedflux.algorithms.base import grown
from fedflux.data import Cohort, Federation, Population
from fedflux.engine import Engine
from fedflux.errors import StoppedError
from fedflux.runs.config import RunConfig
from fedflux.runs.ending.finish import Ending
from fedflux.runs.metrics import Metrics
from fedflux.runs.scaling import FoundScaling
from fedflux.runs.storage.checkpoint import Checkpoint, CheckpointFolder
from fedflux.runs.storage.folder import CHECKPOINTS, RoundLog, record_event
from fedflux.runs.storage.records import mean_validation, round_record
from fedflux.runs.tracking import Several, make_tracker
from fedflux.streams import stream


@dataclass(frozen=True)
class Progress:
    """What a progress display is told after each round, and once before the first (round 0, or where it goes on).

    Examples
    --------
    >>> def good_enough(progress: fedflux.Progress) -> bool:
    ...     return progress.round >= 2  # or progress.accuracy > 90
    >>> stopped = fedflux.run(dataset="digits", clients=3, rounds=9, on_round=good_enough)
    >>> len(stopped.rounds)
    2
    """

    round: int
    rounds: int
    accuracy: float
    clusters: int
    events: tuple[str, ...] = ()
    after: str = ""
    """What is done with a large federation after the last round, and how far it is."""
    accuracies: tuple[float, ...] = ()
    """The mean validation accuracy after each round so far, in percent."""


Listener = Callable[[Progress], object]
"""What hears of each round; where it answers True, the run ends its training there."""


@dataclass(frozen=True)
class Session:
    """A run in its folder, from wherever its last checkpoint is."""

    config: RunConfig
    algorithm: Algorithm[Any]
    engine: Engine
    federation: Federation
    view: Federation
    """What the algorithm may see of it."""
    folder: Path
    on_round: Listener | None
    begin: float
    population: Population | None = None
    """The federation with the clients that are held out of training: they are met after it, without labels."""
    scaling: FoundScaling | None = None
    """How inputs are scaled, and what clients sent for it before the first round."""
    metrics: Metrics | None = None
    """What else to score answers by, of clients that live in this process."""

    def to_the_end(self, state: Any, begun: Mapping[str, Any]) -> dict[str, Any]:
        """From this state, or from the last whole round on; evaluate and save. Whatever stops it says what is kept."""
        log = RoundLog(self.folder)
        checkpoints = CheckpointFolder(self.folder / CHECKPOINTS, begun["identity"], self.algorithm.states)
        try:
            point, notes = self._last(state, checkpoints, log)
            notes += _resumed(point.round, begun["ran_on"]) if point.round else []
            for note in notes or ["started"]:
                record_event(self.folder, note)
            checkpoints.forget_after(point.round)
            log.go_back(point.log_bytes)
            enough = bool(notes) and self._tell(point.state, log, notes)
            with make_tracker(self.config.track, self.folder, begun, point.round, self._record) as tracker:
                state = point.state if enough else self._rounds(point, log, checkpoints, tracker)
                spent = point.seconds - self.begin
                result = self._ending.result(state, log.records, lambda: spent + perf_counter(), begun)
                tracker.finish(result)
        except OSError as error:
            saved = checkpoints.saved
            kept = f"the first {saved} rounds" if saved > 1 else "the first round" if saved else "nothing yet"
            fault = f"{error.strerror or error} while writing to {self.folder}"
            raise StoppedError(f"{fault}; kept: {kept} (--resume goes on)") from error
        except KeyboardInterrupt:
            words = f"stopped after round {checkpoints.saved}; go on with: fedflux run --out {self.folder} --resume"
            raise KeyboardInterrupt(words) from None
        return result

    def _last(self, state: Any, checkpoints: CheckpointFolder, log: RoundLog) -> tuple[Checkpoint, list[str]]:
        """Where the run goes on, or its beginning."""
        point, notes = checkpoints.newest(self.engine.device, log.content())
        if point is None:
            return Checkpoint(0, state, self.engine.kept(), self.engine.remember(), 0.0, 0), notes
        self.engine.restore(point.kept)
        self.engine.recall(point.memory)
        return point, notes

    def _rounds(self, point: Checkpoint, log: RoundLog, checkpoints: CheckpointFolder, tracker: Several) -> Any:
        """The rounds after a checkpoint: each is on disk before the next begins."""
        state = point.state
        for round in range(point.round + 1, self.config.rounds + 1):
            if self._stops_early(state):
                break
            cohort = self._cohort(round)
            state = grown(state, len(cohort.federation))
            self._ending.record_attempt(round)
            state, metrics = self.algorithm.round(state, cohort, self.engine)
            log.append(round_record(round, metrics))
            seconds = point.seconds + perf_counter() - self.begin
            kept, memory = self.engine.kept(), self.engine.remember()
            checkpoints.save(Checkpoint(round, state, kept, memory, seconds, log.size), log.digest())
            faults = tracker.round(log.records[-1])
            if self._tell(state, log, [*metrics.events, *faults]):
                break
        return state

    def _cohort(self, round: int) -> Cohort:
        """The members of a round: a share of everyone, or of those that are there."""
        there = self.engine.present(round)
        if there is None:
            return cohort_of(self.view, range(len(self.view)), self.config, round)
        return cohort_of(self._ending.visible(there.federation), there.labelled, self.config, round)

    @property
    def _ending(self) -> Ending:
        """What is done once rounds are over."""
        return Ending(
            self.config,
            self.algorithm,
            self.engine,
            self.federation,
            self.view,
            self.folder,
            self.population,
            self.scaling,
            self.metrics,
            self._tell_after,
        )

    def _record(self, words: str) -> None:
        record_event(self.folder, words)

    def _tell(self, state: Any, log: RoundLog, events: Sequence[str]) -> bool:
        """Say how far the run is; True where whoever hears it has seen enough."""
        if self.on_round is None:
            return False
        return self.on_round(self._progress(state, log.records, tuple(events))) is True

    def _tell_after(self, state: Any, records: Sequence[Mapping[str, Any]], words: str, part: Cohort) -> None:
        """How far the work on everyone is, where it takes more than one part."""
        if self.on_round and len(part) < len(self.view):
            done = f"{words} {part.ids[-1] + 1:,} of {len(self.view):,} clients"
            self.on_round(replace(self._progress(state, records, ()), after=done))

    def _stops_early(self, state: Any) -> bool:
        return self.config.until == "clustered" and self.algorithm.described(state) is not None

    def _progress(self, state: Any, records: Sequence[Mapping[str, Any]], events: tuple[str, ...]) -> Progress:
        accuracies = tuple(mean_validation(record) for record in records)
        labels = self.algorithm.assignment(state)
        return Progress(
            round=len(records),
            rounds=self.config.rounds,
            accuracy=accuracies[-1] if accuracies else float("nan"),
            clusters=len(np.unique(labels[labels >= 0])) or 1,
            events=events,
            accuracies=accuracies,
        )


def recall(folder: Path, identity: str, algorithm: Algorithm[Any], engine: Engine) -> int:
    """Let an engine find the clients of a run that goes on, before it looks for them; returns the last whole round."""
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, identity, algorithm.states)
    point, _ = checkpoints.newest(engine.device, RoundLog(folder).content())
    if point is None:
        return 0
    engine.recall(point.memory)
    return point.round


def _resumed(round: int, ran_on: Mapping[str, Any]) -> list[str]:
    """What is said of a run that goes on."""
    notes = [f"resumed after round {round}"]
    before, now = ran_on.get("torch"), torch.__version__
    if before not in (None, now):
        notes.append(f"begun with torch {before}, going on with {now}: the last digits may differ")
    return notes


def cohort_size(clients: int, config: RunConfig) -> int:
    """How many of so many clients take part in a round."""
    return max(1, round(config.participation * clients))


def cohort_of(federation: Federation, there: Sequence[int], config: RunConfig, round: int) -> Cohort:
    """The members of a round: everyone that is there, or a fresh random share."""
    count = cohort_size(len(there), config)
    if count == len(there):
        return federation.cohort(there, round)
    chosen = stream(config.seed, "participation", round).choice(len(there), size=count, replace=False)
    return federation.cohort([there[int(k)] for k in chosen], round)
