"""Scores of a user's own: functions of a client's labels and the probabilities that it answers with."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort
from fedflux.engine import Engine, Predictor, SimulatedEngine
from fedflux.errors import FedfluxError
from fedflux.plugins import in_words

Metric = Callable[[NDArray[np.int64], NDArray[np.float32]], float]
"""(labels, probabilities) → a number, of one client's test part."""
Metrics = Mapping[str, Metric]


@dataclass(frozen=True, eq=False)
class Measured:
    """The users' scores of clients, phase by phase."""

    metrics: Metrics
    engine: SimulatedEngine
    clients: int
    values: dict[str, dict[str, NDArray[np.float64]]]
    """By name and phase, an entry a client."""

    @staticmethod
    def of(metrics: Metrics, engine: Engine, clients: int) -> "Measured":
        """Nothing yet."""
        if not isinstance(engine, SimulatedEngine):
            raise FedfluxError("metrics are for clients that live in this process: nodes send no predictions")
        return Measured(metrics, engine, clients, {name: {} for name in metrics})

    def add(self, phase: str, predictor: Predictor, cohort: Cohort) -> None:
        """Score what these clients answer with on their test parts."""
        holders = cohort.only(k for k in cohort if cohort.federation.scorable(k))
        rows = np.isin(cohort.ids, holders.ids)
        resolved = self.engine.resolved(predictor, cohort.ids)
        weights = resolved.weights[rows]
        answers = self.engine.predict(_with(resolved, weights), holders.features("test"))
        for client, probabilities in zip(holders, answers, strict=True):
            labels = np.tile(holders.federation.labels(client, "test"), holders.federation.copies("test"))
            for name, metric in self.metrics.items():
                found = self.values[name].setdefault(phase, np.full(self.clients, np.nan))
                found[client] = _value(name, metric, labels, probabilities)

    def by_name(self, unmeant: Collection[str] = ()) -> dict[str, dict[str, Any]]:
        """Each score by phase: the mean over clients, None in phases that have none or where nobody has a score, and
        every client's.
        """
        return {
            name: {
                key: value
                for phase, found in phases.items()
                for key, value in (
                    (phase, None if phase in unmeant or np.isnan(found).all() else float(np.nanmean(found))),
                    (f"{phase}_per_client", found),
                )
            }
            for name, phases in self.values.items()
        }


def _with(predictor: Predictor, weights: NDArray[np.float64]) -> Predictor:
    return Predictor(predictor.stack, weights, predictor.adaptation)


def _value(name: str, metric: Metric, labels: NDArray[np.int64], probabilities: NDArray[np.float32]) -> float:
    try:
        return float(metric(labels, probabilities))
    except Exception as error:  # a function of the user's may fail in any way
        raise FedfluxError(f"metric '{name}' fails: {in_words(error)}") from error
