"""Clients that do not answer: to every method they are as if they were away, and a run goes on without them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedflux.algorithms import ALGORITHMS, PAPER_BASELINES, Algorithm, Settings
from fedflux.algorithms.baselines.atp import Atp
from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.fesem import Fesem
from fedflux.algorithms.check_engines import WrappedEngine
from fedflux.algorithms.check_stage import SETTINGS, same, stage
from fedflux.algorithms.shared.averaging import aggregate
from fedflux.data import Cohort, Federation
from fedflux.engine import SimulatedEngine, Stack

SILENT = (1, 4)
METHODS: dict[str, Callable[[Settings], Algorithm[Any]]] = {
    **{name: kind.make for name, kind in ALGORITHMS.items()},
    **{f"{name} of the paper": make for name, make in PAPER_BASELINES.items()},
    "cfl that splits": lambda settings: Cfl(settings, eps1=np.inf, eps2=0.0, warm_up=0),
    "fesem by loss": lambda settings: Fesem(settings, start="loss"),
    "atp": lambda settings: Atp(settings, rate_rounds=3),
}


class Silence(WrappedEngine):
    """Some clients are there and never answer."""

    def _heard(self, clients: Any) -> Any:
        if isinstance(clients, Cohort):
            return clients.only(set(clients) - set(SILENT))
        return replace(clients, cohort=self._heard(clients.cohort))

    def train(self, start, cohort, jobs, *more):
        heard = [job for job in jobs if job.client not in SILENT]
        trained = self.inner.train(start, self._heard(cohort), heard, *more)
        return replace(trained, missing={job.client: "late" for job in jobs if job.client in SILENT})

    def evaluate(self, predictors, cohort, split):
        rows = ~np.isin(cohort.ids, SILENT)
        own = [replace(one, weights=one.weights[rows], placement=None) for one in predictors]
        values = np.full((len(predictors), len(cohort)), np.nan)
        found = self.inner.evaluate(own, self._heard(cohort), split)
        values[:, rows] = found.values
        return replace(found, values=values, missing={k: "late" for k in cohort if k in SILENT})

    def ask(self, query, clients, models=None):
        answers = self.inner.ask(query, self._heard(clients), models)
        return replace(answers, missing={k: "late" for k in clients if k in SILENT})


def rounds(
    make: Callable[[Settings], Algorithm[Any]], away: Sequence[int], silent: bool, first: int = 2
) -> tuple[Algorithm[Any], Any, list[Any], Federation, SimulatedEngine]:
    """Three rounds; from the `first` on some clients are away, or there and silent."""
    algorithm, view, engine = stage(make, replace(SETTINGS, rounds=3))
    state, history = algorithm.init(view, engine), []
    for r in range(1, 4):
        gone = r >= first
        there = [k for k in range(6) if not gone or silent or k not in away]
        state, metrics = algorithm.round(state, view.cohort(there, r), Silence(engine) if gone and silent else engine)
        history.append(metrics)
    return algorithm, state, history, view, engine


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_silent_clients_are_as_if_they_were_away(name: str, first: int) -> None:
    algorithm, state, told, view, engine = rounds(METHODS[name], SILENT, True, first)
    _, other, expected, _, absent = rounds(METHODS[name], SILENT, False, first)
    one, two = algorithm.models(state), algorithm.models(other)
    if not (name.startswith("feddrift") and first == 1):  # there it has given everyone a model before it asks
        assert one.keys() == two.keys()
        assert all(same(one[key], two[key]) for key in one)
        np.testing.assert_array_equal(algorithm.assignment(state), algorithm.assignment(other))
    assert same(engine.kept(), absent.kept())
    for mine, theirs in zip(told[first - 1 :], expected[first - 1 :], strict=True):
        assert mine.validation.keys() == theirs.validation.keys() == {0, 2, 3, 5}
        assert mine.up == {**dict.fromkeys(range(6), 0), **theirs.up}
        assert mine.work["training"] == theirs.work["training"]
        assert mine.work["models_up"] == theirs.work["models_up"]
        for client in SILENT:
            if mine.down[client]:
                assert any(f"client {client} did not answer" in event for event in mine.events)
    everyone = view.cohort(range(6))
    state, _ = algorithm.complete(state, everyone, Silence(engine))
    known = algorithm.known(state, everyone, engine)
    if known is not None:
        assert np.isfinite(engine.evaluate([known], everyone, "test").values).all()


def test_unseen_clients_that_say_nothing_leave_the_others_where_they_are() -> None:
    algorithm, view, engine = stage(ALGORITHMS["flux"].make, SETTINGS)
    state = algorithm.init(view, engine)
    for round in range(1, 4):
        state, _ = algorithm.round(state, view.cohort(range(6), round), engine)
    features = view.cohort(range(6)).features("test")
    whole, some = (algorithm.unseen(state, features, one) for one in (engine, Silence(engine)))
    assert whole is not None
    assert some is not None
    assert whole.placement is not None
    assert some.placement is not None
    others = [k for k in range(6) if k not in SILENT]
    np.testing.assert_array_equal(some.weights[others], whole.weights[others])
    np.testing.assert_array_equal(some.placement.cluster[others], whole.placement.cluster[others])
    assert np.flatnonzero(np.isnan(some.placement.confidence)).tolist() == list(SILENT)
    np.testing.assert_allclose(some.weights.sum(axis=1), 1)


def test_a_robust_rule_makes_the_general_model_too() -> None:
    asked: list[int] = []

    def rule(models: Stack, trained: Stack, cluster: Any, sizes: Any) -> Stack:
        asked.append(len(models))
        return aggregate(models, trained, cluster, sizes)

    settings = replace(SETTINGS, sharing="general", average=rule)
    algorithm, view, engine = stage(ALGORITHMS["flux"].make, settings)
    state = algorithm.init(view, engine)
    for round in range(1, 4):
        state, _ = algorithm.round(state, view.cohort(range(6), round), engine)
    assert asked == [1, 1, len(state.models), 1]
