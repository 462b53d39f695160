"""The end of a run: everyone is placed and scored, and what came of it is written down."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from fedflux.algorithms import Algorithm, RoundMetrics
from fedflux.algorithms.base import grown
from fedflux.clustering.why import MAX_PAIRS, Vocabulary
from fedflux.data import Cohort, Federation, Population
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.engine import Engine
from fedflux.files import jsonable, write_npz
from fedflux.runs.config import RunConfig
from fedflux.runs.ending.test_phase import no_test_phase
from fedflux.runs.evaluation import LISTED, Evaluation, cluster_figures, costs, evaluate, told_of_clusters
from fedflux.runs.metrics import Metrics
from fedflux.runs.privacy_report import privacy_report
from fedflux.runs.scaling import FoundScaling
from fedflux.runs.storage.attempts import AFTERWARDS, SCALING, record_attempt, repeated
from fedflux.runs.storage.finished import save_finished
from fedflux.runs.storage.folder import PLACEMENTS_FILE
from fedflux.runs.storage.records import mean_validation, round_record
from fedflux.runs.unseen import evaluate_unseen
from fedflux.runs.verdict import unfinished

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ending:
    """A run whose rounds are over."""

    config: RunConfig
    algorithm: Algorithm[Any]
    engine: Engine
    federation: Federation
    view: Federation
    """What the algorithm may see of it."""
    folder: Path
    population: Population | None
    scaling: FoundScaling | None
    metrics: Metrics | None
    tell: Callable[[Any, Records, str, Cohort], None]
    """Hears how far the work on everyone is."""

    def result(
        self, state: Any, records: Records, seconds: Callable[[], float], begun: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Evaluate and save; `seconds` tells how long the run has taken."""
        last = records[-1]["round"]
        there = self.engine.present(0)
        if there is None:
            everyone, truth = self.view.at(last).cohort(range(len(self.view))), self.federation.at(last)
            unseen, met = self.view.at_test(last), self.federation.at_test(last)
        else:
            everyone, truth = self.visible(there.federation).cohort(there.labelled), there.federation
            unseen, met = everyone.federation, truth
            state = grown(state, len(there.federation))
        self.record_attempt(AFTERWARDS)
        costly = records
        if self.config.until is None:
            state, metrics = self._complete(state, everyone, records)
            costly = [*records, round_record(len(records), metrics)]
        begin = perf_counter()
        tell = partial(self.tell, state, records, "testing")
        work = RoundMetrics()
        config = replace(self.config, finetune=self._tuning(costly, len(everyone)), passes=None)
        summary = self.algorithm.summary(state)
        vocabulary = Vocabulary(truth.class_names, truth.dataset.holds_images)
        told = told_of_clusters(self.config, self.algorithm, state, summary, vocabulary)
        if told["verdict"] and self.config.until is None:
            rising = unfinished([mean_validation(record) for record in records])
            told["verdict"] = " ".join(filter(None, (told["verdict"], rising)))
        without = no_test_phase(config, truth, self.algorithm.assignment(state), told["why"])
        found = evaluate(
            config, self.algorithm, state, everyone, self.engine, tell, work, unseen, self.metrics, without
        )
        held_out = evaluate_unseen(self.config, self.algorithm, state, self.population, last, self.engine)
        given = self._hand_out(state, () if there is None else there.unlabelled, everyone.federation)
        costly = [*costly, round_record(len(records), work), round_record(0, self._asked_before())]
        releases = int(summary.get("releases", 0))
        result = {
            "score": truth.task.score_name,
            **found.scores,
            **held_out,
            "client_names": None if truth.names is None else list(truth.names),
            "class_names": None if truth.class_names is None else list(truth.class_names),
            **cluster_figures(self.algorithm, state, truth),
            "test_truth": None if met is truth else met.truth,
            **told,
            "why": None if told["why"] is None else told["why"][:MAX_PAIRS],
            "no_test_phase": None if without is None else without.words,
            "holds_images": vocabulary.images,
            "cluster_round": None,
            **{key: value for key, value in summary.items() if key != "releases"},
            **costs(costly),
            "seconds_evaluation": perf_counter() - begin,
            "rounds": records[-1]["round"],
            "stopped_early": self.config.until is None and records[-1]["round"] < self.config.rounds,
            "seconds": seconds(),
            "engine": self.engine.name,
            "device": self.engine.device,
            "precision": self.engine.precision,
            **self.engine.report(),
            **given,
            **privacy_report(
                self._privacy,
                self.federation.kinds,
                self.config.components,
                releases,
                self._choosing,
                0 if there is not None else self._repeated(records, costly[len(records) :]),
                self._scalings(there is not None),
            ),
            "unread": list(begun.get("unread", ())),
            "command": begun["command"],
            "run_dir": str(self.folder),
        }
        self._save_placements(found)
        save_finished(
            self.folder, self.config, self.algorithm, self.engine, state, result, truth, simulated=there is None
        )
        return {**jsonable(result)}

    def visible(self, federation: Federation) -> Federation:
        """What the algorithm may see of clients."""
        return federation if self.algorithm.uses_truth else federation.blind()

    def record_attempt(self, stage: int) -> None:
        """Where clients release noisy descriptors, a stage that is lost and repeated must be noticed."""
        if self.config.privacy() is not None:
            record_attempt(self.folder, stage)

    def _save_placements(self, found: Evaluation) -> None:
        """Where the test phase put everyone, of federations too large to list it in the result."""
        placed = found.placement
        if placed is not None and len(placed) > LISTED:
            names = ("cluster", "distance", "novel", "score", "calibrated", "confidence")
            arrays = {name: getattr(placed, name) for name in names if getattr(placed, name) is not None}
            write_npz(self.folder / PLACEMENTS_FILE, {"client": found.clients, **arrays})

    def _asked_before(self) -> RoundMetrics:
        """What clients sent before the first round, so that all scale alike."""
        before = RoundMetrics()
        if self.scaling is not None and self.scaling.clients:
            before.send(range(self.scaling.clients), up=self.scaling.bytes_each)
        return before

    def _tuning(self, records: Records, clients: int) -> int:
        """Epochs of fine-tuning: as many as were asked for, or what rounds left of all passes over a client's data."""
        if self.config.passes is None or "finetune" not in self.algorithm.reads:
            return self.config.finetune
        spent = sum(record["work"].get("training", 0.0) for record in records)
        return max(int(self.config.passes - spent / clients), 0)

    @property
    def _privacy(self) -> Privacy | None:
        """What was promised, a share of it for the scaling of inputs where clients were asked for that."""
        privacy = self.config.privacy()
        asked = self.scaling is not None and self.scaling.clients > 0
        return (
            replace(privacy, scaling=True)
            if privacy is not None and privacy.mechanism == "gaussian" and asked
            else privacy
        )

    def _scalings(self, deployed: bool) -> int:
        """How often the scaling of inputs was released; deployed nodes keep what they told, and tell it again."""
        if self._privacy is None or not self._privacy.scaling:
            return 0
        return 1 if deployed else 1 + repeated(self.folder, {SCALING})

    def _repeated(self, rounds: Records, afterwards: Records) -> int:
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

    def _complete(self, state: Any, everyone: Cohort, records: Records) -> tuple[Any, RoundMetrics]:
        """Place whoever never took part, some clients at a time."""
        costs = RoundMetrics()
        for part in everyone.parts():
            state, metrics = self.algorithm.complete(state, part, self.engine)
            costs.add(metrics)
            self.tell(state, records, "placing", part)
        return state, costs
