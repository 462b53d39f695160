"""What a trained run is asked: both accuracies, the clusters beside the truth, why they differ, the costs."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms import Algorithm
from fedflux.data import Cohort, Federation
from fedflux.data.patterns import shift_parts
from fedflux.engine import Engine, Predictor
from fedflux.experiments.config import RunConfig
from fedflux.experiments.scores import client_scores, cluster_scores
from fedflux.flux.why import explain


def evaluate(
    config: RunConfig, algorithm: Algorithm[Any], state: Any, everyone: Cohort, engine: Engine
) -> dict[str, Any]:
    """Known association and test phase on the test parts; P(Y|X) has no test phase, since features cannot show it."""
    known: NDArray[np.float64] | None = None
    test: NDArray[np.float64] | None = None
    placed: list[dict[str, Any]] | None = None
    if config.until is None:
        known = engine.evaluate(algorithm.known(state, everyone, engine), everyone, "test")
        holders = everyone.federation.cohort([k for k in everyone if everyone.federation.size(k, "test")])
        if "pygx" not in shift_parts(config.shift) and len(holders):
            predictor = algorithm.unseen(state, holders.features("test"), engine)
            if predictor is not None:
                test = np.full(len(everyone), np.nan)
                test[list(holders.ids)] = engine.evaluate(predictor, holders, "test")
                placed = _placements(predictor, holders)
    scores = {**client_scores(known, "known"), **client_scores(test, "test")}
    return {**scores, "worst": scores["known_worst"], "test_placements": placed}


def _placements(predictor: Predictor, holders: Cohort) -> list[dict[str, Any]] | None:
    """Where the test phase put each client, and its distances to all clusters."""
    if predictor.distances is None:
        return None
    chosen = predictor.weights.argmax(axis=1)
    return [
        {"client": client, "cluster": int(chosen[k]), "distances": predictor.distances[k]}
        for k, client in enumerate(holders)
    ]


def cluster_figures(algorithm: Algorithm[Any], state: Any, federation: Federation) -> dict[str, Any]:
    """Who is in which cluster, and how that compares with the truth where there is one."""
    labels, truth = algorithm.assignment(state), federation.truth
    placed = labels >= 0
    who = {"assignment": labels, "truth": truth}
    if not placed.any():
        return {**cluster_scores(np.zeros(1, dtype=np.int64), None), "clusters_found": None, **who}
    return {**cluster_scores(labels[placed], None if truth is None else truth[placed]), **who}


def why_clusters_differ(config: RunConfig, algorithm: Algorithm[Any], state: Any) -> list[dict[str, Any]] | None:
    """Every pair of clusters in words, where the method makes descriptors."""
    described = algorithm.described(state)
    if described is None:
        return None
    return [asdict(pair) for pair in explain(described.clusters.pool, config.significance)]


def costs(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds by phase and bytes, over all rounds."""
    records = list(records)
    phases = {p: sum(r["seconds"].get(p, 0.0) for r in records) for p in ("training", "descriptor", "clustering")}
    return {
        **{f"seconds_{phase}": seconds for phase, seconds in phases.items()},
        "bytes_up": sum(sum(r["bytes_up"].values()) for r in records),
        "bytes_down": sum(sum(r["bytes_down"].values()) for r in records),
    }
