"""One sitting of a run: the rounds from its last whole checkpoint to its end, each on disk before the next begins."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from fedflux.algorithms import Algorithm, RoundMetrics
from fedflux.data import Cohort, Federation
from fedflux.engine import Engine
from fedflux.runs.storage.checkpoint import Checkpoint, CheckpointFolder
from fedflux.runs.config import RunConfig
from fedflux.runs.evaluation import LISTED, cluster_figures, costs, evaluate, why_clusters_differ
from fedflux.runs.privacy_report import privacy_report
from fedflux.runs.storage.folder import (
    CHECKPOINTS,
    DESCRIPTOR_FILE,
    GENERAL_FILE,
    MODEL_FILE,
    PLACEMENTS_FILE,
    RESULT_FILE,
    SAMPLES_FILE,
    RoundLog,
    record_event,
    record_finish,
)
from fedflux.runs.samples import sample_images
from fedflux.runs.tracking import Several, make_tracker
from fedflux.files import jsonable, write_json, write_npz, written_whole
from fedflux.streams import stream


@dataclass(frozen=True)
class Progress:
    """What a progress display is told after each round, and once before the first (round 0, or where it goes on)."""

    round: int
    rounds: int
    accuracy: float
    clusters: int
    events: tuple[str, ...] = ()
    after: str = ""
    """What is done with a large federation after the last round, and how far it is."""


Listener = Callable[[Progress], None]


class StoppedError(RuntimeError):
    """The run could not go on (a full disk, …); the message says what is kept."""


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

    def to_the_end(self, state: Any, begun: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after the last whole round, evaluate and save; whatever stops it says what is kept."""
        log = RoundLog(self.folder)
        checkpoints = CheckpointFolder(self.folder / CHECKPOINTS, begun["identity"])
        try:
            point, notes = checkpoints.newest(type(state), self.engine.device, log.content())
            point = point or Checkpoint(0, state, 0.0, 0)
            notes += _resumed(point.round, begun["ran_on"]) if point.round else []
            for note in notes or ["started"]:
                record_event(self.folder, note)
            checkpoints.forget_after(point.round)
            log.go_back(point.log_bytes)
            if notes:
                self._tell(point.state, log, notes)
            with make_tracker(self.config.track, self.folder, begun, point.round, self._record) as tracker:
                state = self._rounds(point, log, checkpoints, tracker)
                result = self._finish(state, log.records, point.seconds, begun["command"])
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

    def _rounds(self, point: Checkpoint, log: RoundLog, checkpoints: CheckpointFolder, tracker: Several) -> Any:
        """The rounds after a checkpoint: each is on disk before the next begins."""
        state = point.state
        for cohort in cohorts(self.view, self.config):
            if cohort.round <= point.round:
                continue
            if self._stops_early(state):
                break
            state, metrics = self.algorithm.round(state, cohort, self.engine)
            log.append(_record(cohort.round, metrics))
            seconds = point.seconds + perf_counter() - self.begin
            checkpoints.save(Checkpoint(cohort.round, state, seconds, log.size), log.digest())
            faults = tracker.round(log.records[-1])
            self._tell(state, log, [*metrics.events, *faults])
        return state

    def _record(self, words: str) -> None:
        record_event(self.folder, words)

    def _tell(self, state: Any, log: RoundLog, events: Sequence[str]) -> None:
        if self.on_round:
            self.on_round(self._progress(state, log.records, tuple(events)))

    def _tell_after(self, state: Any, records: list[dict[str, Any]], words: str, part: Cohort) -> None:
        """How far the work on everyone is, where it takes more than one part."""
        if self.on_round and len(part) < len(self.view):
            done = f"{words} {part.ids[-1] + 1:,} of {len(self.view):,} clients"
            self.on_round(replace(self._progress(state, records, ()), after=done))

    def _stops_early(self, state: Any) -> bool:
        return self.config.until == "clustered" and self.algorithm.described(state) is not None

    def _finish(self, state: Any, records: list[dict[str, Any]], spent: float, command: str) -> dict[str, Any]:
        last = records[-1]["round"]
        everyone, truth = self.view.at(last).cohort(range(len(self.view))), self.federation.at(last)
        costly = records
        if self.config.until is None:
            state, metrics = self._complete(state, everyone, records)
            costly = [*records, _record(len(records), metrics)]
        begin = perf_counter()
        tell = partial(self._tell_after, state, records, "testing")
        work = RoundMetrics()
        unseen = self.view.at_test(last)
        scores, placements = evaluate(self.config, self.algorithm, state, everyone, self.engine, tell, work, unseen)
        costly = [*costly, _record(len(records), work)]
        result = {
            **scores,
            **cluster_figures(self.algorithm, state, truth),
            "test_truth": None if (met := self.federation.at_test(last)) is truth else met.truth,
            "why": why_clusters_differ(self.config, self.algorithm, state),
            "cluster_round": getattr(state, "cluster_round", None),
            **({"general_share": state.share} if self.config.answers_both() else {}),
            **costs(costly),
            "seconds_evaluation": perf_counter() - begin,
            "rounds": records[-1]["round"],
            "seconds": spent + perf_counter() - self.begin,
            "engine": self.engine.name,
            "device": self.engine.device,
            "precision": self.engine.precision,
            **privacy_report(self.config.privacy(), self.federation.classes, self.config.components, state),
            "command": command,
            "run_dir": str(self.folder),
        }
        if placements is not None and len(placements.client) > LISTED:
            names = ("client", "cluster", "distance", *(("novel", "score", "confidence") if placements.judged else ()))
            write_npz(self.folder / PLACEMENTS_FILE, {name: getattr(placements, name) for name in names})
        self._save(state, result, truth)
        return {**jsonable(result)}

    def _complete(self, state: Any, everyone: Cohort, records: list[dict[str, Any]]) -> tuple[Any, RoundMetrics]:
        """Place whoever never took part, some clients at a time."""
        costs = RoundMetrics()
        for part in everyone.parts():
            state, metrics = self.algorithm.complete(state, part, self.engine)
            costs.add(metrics)
            self._tell_after(state, records, "placing", part)
        return state, costs

    def _save(self, state: Any, result: dict[str, Any], federation: Federation) -> None:
        """What others read of a finished run; the result comes last, since it says that the rest is there."""
        described = self.algorithm.described(state)
        if described is not None:
            arrays = {**described.sent, "clients": described.clients, "labels": described.labels}
            if federation.truth is not None:
                arrays["truth"] = federation.truth[described.clients]
            write_npz(self.folder / DESCRIPTOR_FILE, arrays)
        write_npz(self.folder / SAMPLES_FILE, sample_images(federation, self.algorithm.assignment(state)))
        stack = getattr(state, "models", None) or state.model
        for name, models in ((MODEL_FILE, stack), (GENERAL_FILE, getattr(state, "general", None))):
            if models is not None:
                with written_whole(self.folder / name) as handle:
                    handle.write(save({key: tensor.contiguous().cpu() for key, tensor in models.tensors.items()}))
        write_json(self.folder / RESULT_FILE, result)
        record_finish(self.folder)

    def _progress(self, state: Any, records: list[dict[str, Any]], events: tuple[str, ...]) -> Progress:
        scores = [score for score in records[-1]["validation"].values() if score is not None] if records else []
        labels = self.algorithm.assignment(state)
        return Progress(
            round=len(records),
            rounds=self.config.rounds,
            accuracy=float(np.mean(scores)) if scores else float("nan"),
            clusters=len(np.unique(labels[labels >= 0])) or 1,
            events=events,
        )


def _resumed(round: int, ran_on: Mapping[str, Any]) -> list[str]:
    """What is said of a run that goes on."""
    notes = [f"resumed after round {round}"]
    before, now = ran_on.get("torch"), torch.__version__
    if before not in (None, now):
        notes.append(f"begun with torch {before}, going on with {now}: the last digits may differ")
    return notes


def _record(round: int, metrics: RoundMetrics) -> dict[str, Any]:
    """A line of the round log; percentages, clients by id."""
    record: dict[str, Any] = jsonable(
        {
            "round": round,
            "validation": {k: 100 * v for k, v in metrics.validation.items()},
            "bytes_up": metrics.up,
            "bytes_down": metrics.down,
            "seconds": metrics.seconds,
            "work": metrics.work,
            "events": metrics.events,
        }
    )
    return record


def cohort_size(federation: Federation, config: RunConfig) -> int:
    """How many clients take part in a round."""
    return max(1, round(config.participation * len(federation)))


def cohorts(federation: Federation, config: RunConfig) -> Iterator[Cohort]:
    """The members of every round: everyone, or a fresh random share."""
    count = cohort_size(federation, config)
    for r in range(1, config.rounds + 1):
        if count == len(federation):
            yield federation.cohort(range(len(federation)), r)
        else:
            chosen = stream(config.seed, "participation", r).choice(len(federation), size=count, replace=False)
            yield federation.cohort(chosen, r)
