"""What a trained run is asked: both accuracies, the clusters beside the truth, why they differ, the costs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms import Algorithm, RoundMetrics
from fedflux.algorithms.shared.finetune import TUNED, finetune
from fedflux.clustering.why import NUMBERS, Vocabulary, explain
from fedflux.data import Cohort, Federation
from fedflux.engine import Engine, Key, Predictor
from fedflux.placement import Placement
from fedflux.runs.config import RunConfig
from fedflux.runs.ending.test_phase import NoTestPhase
from fedflux.runs.metrics import Measured, Metrics
from fedflux.runs.scores import client_scores, cluster_scores
from fedflux.runs.verdict import variation_figures, verdict

TUNED_AT_ONCE = 64
"""Clients that are fine-tuned side by side."""
LISTED = 1000
"""Clients whose test-time distances to all clusters are listed in the result."""
PAIRS = 20_000
"""Pairs of clusters, all of 200, that are looked at for what sets them apart; the result lists the first of them."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What clients score, and where the test phase put them."""

    scores: dict[str, Any]
    clients: NDArray[np.int64]
    """Whom the test phase placed, where it goes by a placement."""
    placement: Placement | None


def evaluate(
    config: RunConfig,
    algorithm: Algorithm[Any],
    state: Any,
    everyone: Cohort,
    engine: Engine,
    on_part: Callable[[Cohort], None],
    work: RoundMetrics,
    unseen: Federation | None = None,
    metrics: Metrics | None = None,
    without: NoTestPhase | None = None,
) -> Evaluation:
    """Known association and test phase on the test parts; some clients may be `without` the latter.

    `unseen` is what the test phase meets where that is not what training ended with (a drift at test time).
    Fine-tuned models are for known clients: an unseen one has no labels to tune with.

    Clients are asked some at a time and forgotten, so that memory does not grow with the federation. What is computed
    beyond evaluation is counted in `work`.
    """
    count = len(everyone.federation)
    known, test, kept = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, dtype=np.int64)
    placed: list[tuple[Cohort, Placement]] = []
    measured = None if metrics is None else Measured.of(metrics, engine, count)
    for part in asked_in_parts(everyone, config):
        ids = list(part.ids)
        own = algorithm.known(state, part, engine)
        if own is not None:
            if config.finetune and "finetune" in algorithm.reads:
                last = Key(config.seed, config.rounds)
                own, kept[ids] = finetune(own, part, engine, config.settings().training, config.finetune, last)
                work.count(part, training=config.finetune)
            known[ids] = engine.evaluate([own], part, "test").values[0]
            if measured is not None:
                measured.add("known", own, part)
            engine.hand_out(own, part)
            if count > LISTED:  # so many personal models are not kept
                engine.drop_slot(part.ids, TUNED)
        met = part.federation if unseen is None else unseen
        asked = (k for k in part if without is None or not without.clients[k])
        holders = replace(part, federation=met, ids=tuple(k for k in asked if met.size(k, "test")))
        if len(holders):
            predictor = algorithm.unseen(state, holders.features("test"), engine)
            if predictor is not None:
                test[list(holders.ids)] = known[list(holders.ids)]
                others = _answered_otherwise(predictor, holders, own, part)
                if len(others):
                    rest = met.cohort(np.array(holders.ids)[others])
                    answer = replace(predictor, weights=predictor.weights[others], placement=None)
                    test[list(rest.ids)] = engine.evaluate([answer], rest, "test").values[0]
                placed += [] if predictor.placement is None else [(holders, predictor.placement)]
                if measured is not None:
                    measured.add("test", predictor, holders)
        on_part(part)
    tuned = {"finetuned_epochs": kept} if config.finetune else {}
    by_features = client_scores(test, "test")
    if without is not None:
        by_features |= {"test": None, "test_worst": None, "test_quantile10": None}
    scores = {**client_scores(known, "known"), **by_features, **tuned}
    if measured is not None:
        scores["metrics"] = measured.by_name(() if without is None else ("test",))
    clients, whole, said = placements(placed, "novel", "test_placements")
    return Evaluation({**scores, "worst": scores["known_worst"], **said}, clients, whole)


def placements(
    placed: Sequence[tuple[Cohort, Placement]], share: str, records: str
) -> tuple[NDArray[np.int64], Placement | None, dict[str, Any]]:
    """Who was placed and where, and what a result says of it: how many are novel, and the first clients in full."""
    clients = np.array([client for holders, _ in placed for client in holders], dtype=np.int64)
    if not placed:
        return clients, None, {share: None, records: None}
    whole = Placement.join([placement for _, placement in placed])
    listed = whole.take(range(min(LISTED, len(whole)))).as_records(clients.tolist()[:LISTED])
    judged = whole.novel[whole.calibrated]  # of the others nobody can say
    return clients, whole, {share: float(judged.mean()) if len(judged) else None, records: listed}


def asked_in_parts(everyone: Cohort, config: RunConfig) -> Iterator[Cohort]:
    """The clients in parts; few at a time where each is given a model of its own."""
    for part in everyone.parts("test") if config.until is None else ():
        step = TUNED_AT_ONCE if config.finetune else len(part)
        for begin in range(0, len(part), step):
            yield replace(part, ids=part.ids[begin : begin + step])


def _answered_otherwise(
    predictor: Predictor, holders: Cohort, own: Predictor | None, part: Cohort
) -> NDArray[np.int64]:
    """Positions of the holders that the test phase gives other models than known association does.

    The rest are scored already: in a large federation that is most of the work.
    """
    if (
        own is None
        or holders.federation is not part.federation
        or own.slots
        or predictor.stack is not own.stack
        or predictor.adaptation is not own.adaptation
    ):
        return np.arange(len(holders))
    weights = own.weights[np.searchsorted(part.ids, holders.ids)]
    return np.flatnonzero((weights != predictor.weights).any(axis=1))


def cluster_figures(algorithm: Algorithm[Any], state: Any, federation: Federation) -> dict[str, Any]:
    """Who is in which cluster, and how that compares with the truth where there is one."""
    labels, truth = algorithm.assignment(state), federation.truth
    placed = labels >= 0
    who = {"assignment": labels, "truth": truth}
    if not placed.any():
        return {**cluster_scores(np.zeros(1, dtype=np.int64), None), "clusters_found": None, **who}
    return {**cluster_scores(labels[placed], None if truth is None else truth[placed]), **who}


def told_of_clusters(
    config: RunConfig,
    algorithm: Algorithm[Any],
    state: Any,
    summary: Mapping[str, Any],
    vocabulary: Vocabulary = NUMBERS,
) -> dict[str, Any]:
    """Why clusters differ, how clients of one cluster vary, and what it came to; all None without descriptors.

    Past clusters are nobody's and left out.
    """
    described = algorithm.described(state)
    if described is None:
        return {"why": None, "variation": None, "verdict": None}
    held, clusters = np.unique(described.labels).tolist(), described.clusters
    pairs = explain(clusters.pool, config.significance, held, clusters.variation, vocabulary, PAIRS)
    why = [asdict(pair) for pair in pairs]
    tested = config.clusterer == "calibrated" and config.variation == "estimated" and "clusterer" in algorithm.reads
    return {
        "why": why,
        "variation": variation_figures(clusters.variation) if tested else None,
        "verdict": verdict(described, why, summary.get("sharing_parts"), tested),
    }


def costs(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds by phase and bytes, over all rounds."""
    records = list(records)
    phases = {p: sum(r["seconds"].get(p, 0.0) for r in records) for p in ("training", "descriptor", "clustering")}
    return {
        **{f"seconds_{phase}": seconds for phase, seconds in phases.items()},
        "bytes_up": sum(sum(r["bytes_up"].values()) for r in records),
        "bytes_down": sum(sum(r["bytes_down"].values()) for r in records),
        **_per_client_round(records),
    }


def _per_client_round(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Models to and from a client, and its forward and training passes over its own data, on average in a round.

    Whatever is done after the last round for clients that never took part counts too.
    """
    turns = sum(len(record["validation"]) for record in records)
    names = {
        "models_down": "models_down",
        "models_up": "models_up",
        "forward_passes": "forward",
        "training_passes": "training",
    }
    totals = {name: sum(r.get("work", {}).get(key, 0.0) for r in records) for name, key in names.items()}
    return {name: total / turns if turns else None for name, total in totals.items()}
