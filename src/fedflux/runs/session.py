"""One session of a run: the rounds from its last whole checkpoint to its end, each on disk before the next begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from fedflux.algorithms import Algorithm, RoundMetrics
from fedflux.algorithms.base import grown
from fedflux.data import Cohort, Federation, Population
from fedflux.engine import Engine, Stack
from fedflux.errors import StoppedError
from fedflux.files import as_json, jsonable, write_bytes, write_npz, written_whole
from fedflux.runs.config import RunConfig
from fedflux.runs.evaluation import LISTED, cluster_figures, costs, evaluate, told_of_clusters
from fedflux.runs.metrics import Metrics
from fedflux.runs.privacy_report import privacy_report
from fedflux.runs.scaling import FoundScaling
from fedflux.runs.storage.attempts import AFTERWARDS, record_attempt, repeated
from fedflux.runs.storage.checkpoint import Checkpoint, CheckpointFolder
from fedflux.runs.storage.folder import (
    CHECKPOINTS,
    DESCRIPTOR_FILE,
    KEPT_AS_WRITTEN,
    MODEL_FILES,
    PERSONAL_FILE,
    PLACEMENTS_FILE,
    RESULT_FILE,
    SAMPLES_FILE,
    RoundLog,
    record_event,
    record_finish,
)
from fedflux.runs.storage.samples import keeps_samples, sample_images
from fedflux.runs.storage.trained import Form, save_digests, save_trained
from fedflux.runs.tracking import Several, make_tracker
from fedflux.runs.unseen import evaluate_unseen
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
                result = self._finish(state, log.records, point.seconds, begun)
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
            self._record_attempt(round)
            state, metrics = self.algorithm.round(state, cohort, self.engine)
            log.append(_record(round, metrics))
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
        return cohort_of(self._visible(there.federation), there.labelled, self.config, round)

    def _visible(self, federation: Federation) -> Federation:
        """What the algorithm may see of clients."""
        return federation if self.algorithm.uses_truth else federation.blind()

    def _record(self, words: str) -> None:
        record_event(self.folder, words)

    def _tell(self, state: Any, log: RoundLog, events: Sequence[str]) -> bool:
        """Say how far the run is; True where whoever hears it has seen enough."""
        if self.on_round is None:
            return False
        return self.on_round(self._progress(state, log.records, tuple(events))) is True

    def _tell_after(self, state: Any, records: list[dict[str, Any]], words: str, part: Cohort) -> None:
        """How far the work on everyone is, where it takes more than one part."""
        if self.on_round and len(part) < len(self.view):
            done = f"{words} {part.ids[-1] + 1:,} of {len(self.view):,} clients"
            self.on_round(replace(self._progress(state, records, ()), after=done))

    def _stops_early(self, state: Any) -> bool:
        return self.config.until == "clustered" and self.algorithm.described(state) is not None

    def _finish(
        self, state: Any, records: list[dict[str, Any]], spent: float, begun: Mapping[str, Any]
    ) -> dict[str, Any]:
        last = records[-1]["round"]
        there = self.engine.present(0)
        if there is None:
            everyone, truth = self.view.at(last).cohort(range(len(self.view))), self.federation.at(last)
            unseen, met = self.view.at_test(last), self.federation.at_test(last)
        else:
            everyone, truth = self._visible(there.federation).cohort(there.labelled), there.federation
            unseen, met = everyone.federation, truth
            state = grown(state, len(there.federation))
        self._record_attempt(AFTERWARDS)
        costly = records
        if self.config.until is None:
            state, metrics = self._complete(state, everyone, records)
            costly = [*records, _record(len(records), metrics)]
        begin = perf_counter()
        tell = partial(self._tell_after, state, records, "testing")
        work = RoundMetrics()
        config = replace(self.config, finetune=self._tuning(costly, len(everyone)), passes=None)
        found = evaluate(config, self.algorithm, state, everyone, self.engine, tell, work, unseen, self.metrics)
        held_out = evaluate_unseen(self.config, self.algorithm, state, self.population, last, self.engine)
        given = self._hand_out(state, () if there is None else there.unlabelled, everyone.federation)
        costly = [*costly, _record(len(records), work), _record(0, self._asked_before())]
        summary = self.algorithm.summary(state)
        releases = int(summary.get("releases", 0))
        result = {
            **found.scores,
            **held_out,
            **cluster_figures(self.algorithm, state, truth),
            "test_truth": None if met is truth else met.truth,
            **told_of_clusters(self.config, self.algorithm, state, summary),
            "cluster_round": None,
            **{key: value for key, value in summary.items() if key != "releases"},
            **costs(costly),
            "seconds_evaluation": perf_counter() - begin,
            "rounds": records[-1]["round"],
            "stopped_early": self.config.until is None and records[-1]["round"] < self.config.rounds,
            "seconds": spent + perf_counter() - self.begin,
            "engine": self.engine.name,
            "device": self.engine.device,
            "precision": self.engine.precision,
            **self.engine.report(),
            **given,
            **privacy_report(
                self.config.privacy(),
                self.federation.classes,
                self.config.components,
                releases,
                self._choosing,
                0 if there is not None else self._repeated(records, costly[len(records) :]),
            ),
            "unread": list(begun.get("unread", ())),
            "command": begun["command"],
            "run_dir": str(self.folder),
        }
        if found.placement is not None and len(found.placement) > LISTED:
            placed = found.placement
            names = ("cluster", "distance", "novel", "score", "calibrated", "confidence")
            arrays = {name: getattr(placed, name) for name in names if getattr(placed, name) is not None}
            write_npz(self.folder / PLACEMENTS_FILE, {"client": found.clients, **arrays})
        self._save(state, result, truth, simulated=there is None)
        return {**jsonable(result)}

    def _asked_before(self) -> RoundMetrics:
        """What clients sent before the first round, so that all scale alike."""
        before = RoundMetrics()
        if self.scaling is not None and self.scaling.clients:
            before.send(range(self.scaling.clients), up=self.scaling.bytes_each)
        return before

    def _tuning(self, records: Sequence[Mapping[str, Any]], clients: int) -> int:
        """Epochs of fine-tuning: as many as were asked for, or what rounds left of all passes over a client's data."""
        if self.config.passes is None or "finetune" not in self.algorithm.reads:
            return self.config.finetune
        spent = sum(record["work"].get("training", 0.0) for record in records)
        return max(int(self.config.passes - spent / clients), 0)

    def _record_attempt(self, stage: int) -> None:
        """Where clients release noisy descriptors, a stage that is lost and repeated must be noticed."""
        if self.config.privacy() is not None:
            record_attempt(self.folder, stage)

    def _repeated(self, rounds: Sequence[Mapping[str, Any]], afterwards: Sequence[Mapping[str, Any]]) -> int:
        """Releases that interrupted attempts may have made; deployed nodes keep and count their own."""
        describing = {one["round"] for one in rounds if one["seconds"].get("descriptor")}
        if any(one["seconds"].get("descriptor") for one in afterwards) or not self._choosing:
            describing.add(AFTERWARDS)
        a_round = 2 if self.config.algorithm == "flux-dynamic" else 1  # those that drifted tell all they hold, too
        return a_round * repeated(self.folder, describing)

    @property
    def _choosing(self) -> bool:
        """Whether clients without labels choose their cluster by themselves, and describe nothing."""
        return "assignment" in self.algorithm.reads and self.config.assignment == "mixture"

    def _hand_out(self, state: Any, unlabelled: Sequence[int], federation: Federation) -> dict[str, Any]:
        """Clients without labels are given their models; where they were placed is told."""
        if not unlabelled:
            return {}
        cohort = federation.cohort(unlabelled)
        predictor = self.algorithm.unseen(state, cohort.features("test"), self.engine)
        if predictor is None:
            return {"unlabelled": []}
        self.engine.hand_out(predictor, cohort)
        placed = predictor.placement
        return {"unlabelled": [] if placed is None else placed.as_records(list(cohort.ids))}

    def _complete(self, state: Any, everyone: Cohort, records: list[dict[str, Any]]) -> tuple[Any, RoundMetrics]:
        """Place whoever never took part, some clients at a time."""
        costs = RoundMetrics()
        for part in everyone.parts():
            state, metrics = self.algorithm.complete(state, part, self.engine)
            costs.add(metrics)
            self._tell_after(state, records, "placing", part)
        return state, costs

    def _save(self, state: Any, result: dict[str, Any], federation: Federation, simulated: bool) -> None:
        """What others read of a finished run; the result comes last, since it says that the rest is there."""
        described = self.algorithm.described(state)
        if described is not None:
            arrays = {**described.sent, "clients": described.clients, "labels": described.labels}
            if federation.truth is not None:
                arrays["truth"] = federation.truth[described.clients]
            write_npz(self.folder / DESCRIPTOR_FILE, arrays)
        if simulated and federation.dataset.holds_images and keeps_samples(self.config):
            write_npz(self.folder / SAMPLES_FILE, sample_images(federation, self.algorithm.assignment(state)))
        for name, models in self.algorithm.models(state).items():
            self._save_models(MODEL_FILES.get(name, f"{name}.safetensors"), models)
        kept = self.engine.kept()
        personal = [PERSONAL_FILE.format(slot=slot) for slot in kept.models]
        for name, (slot, models) in zip(personal, kept.models.items(), strict=True):
            self._save_models(name, models, kept.clients[slot].tolist())
        scaling = federation.dataset.scaling
        save_trained(self.folder, state, self.algorithm.states, Form.of(federation, scaling))
        content = as_json(result)
        save_digests(self.folder, [*KEPT_AS_WRITTEN, *personal], content)
        write_bytes(self.folder / RESULT_FILE, content)
        record_finish(self.folder)

    def _save_models(self, name: str, models: Stack, clients: Sequence[int] | None = None) -> None:
        told = None if clients is None else {"clients": ",".join(map(str, clients))}
        with written_whole(self.folder / name) as handle:
            handle.write(save({key: tensor.contiguous().cpu() for key, tensor in models.tensors.items()}, told))

    def _progress(self, state: Any, records: list[dict[str, Any]], events: tuple[str, ...]) -> Progress:
        accuracies = tuple(_mean_validation(record) for record in records)
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


def _mean_validation(record: Mapping[str, Any]) -> float:
    """The mean validation accuracy of those who took part in a round; NaN where nobody has a validation part."""
    scores = [score for score in record["validation"].values() if score is not None]
    return float(np.mean(scores)) if scores else float("nan")


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
            **({"parts": metrics.parts} if metrics.parts else {}),
            "events": metrics.events,
        }
    )
    return record


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
