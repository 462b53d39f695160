"""The public battery holds for every registered algorithm, and finds what is wrong with a bad one."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedflux.algorithms import ALGORITHMS, PAPER_BASELINES, FedAvg, Local, make_algorithm
from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.paper import FedAvgLocalEnsemble
from fedflux.algorithms.check_engines import LossyEngine, RecordingEngine
from fedflux.algorithms.check_stage import fresh_engine
from fedflux.algorithms.checks import (
    CHECKS,
    SETTINGS,
    check_algorithm,
    check_clients_are_interchangeable,
    check_examples_stay_at_clients,
    check_goes_on_without_some,
    check_grows,
    check_requests_travel,
    check_resumes,
    check_silence_changes_nothing,
    small_federation,
)
from fedflux.algorithms.shared.membership import AskMeanLosses
from fedflux.engine import Job, Key, SimulatedEngine
from fedflux.engine.rules import LossRule
from fedflux.operations import operation

KNOWN_WRONG = ("feddrift", check_clients_are_interchangeable)


def _cases(names: Iterable[str]) -> list[Any]:
    """Every method with every check; what is known not to hold is named, and must go on failing until it is mended."""
    words = "FedDrift breaks ties between models by their index, and one test example tips"
    wrong = [pytest.mark.xfail(reason=words, strict=True, raises=AssertionError)]
    return [
        pytest.param(name, check, id=f"{name}-{check.__name__}", marks=wrong if (name, check) == KNOWN_WRONG else [])
        for name in names
        for check in CHECKS
    ]


@pytest.mark.parametrize(("name", "check"), _cases(ALGORITHMS))
def test_every_algorithm_holds(name: str, check: Any) -> None:
    check(ALGORITHMS[name].make)


@pytest.mark.parametrize(("name", "check"), _cases(PAPER_BASELINES))
def test_the_papers_variants_hold(name: str, check: Any) -> None:
    check(PAPER_BASELINES[name])


def cfl_that_splits(settings: Any) -> Cfl:
    return Cfl(settings, eps1=np.inf, eps2=0.0, warm_up=1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_cfl_holds_when_it_splits(check: Any) -> None:
    check(cfl_that_splits)


def test_the_battery_runs_as_one() -> None:
    check_algorithm(FedAvg)


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Draws from a global generator, so no two runs are alike."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        state, metrics = super().round(state, cohort, engine)
        noise = {name: tensor + float(torch.rand(())) for name, tensor in state.model.tensors.items()}
        return replace(state, model=replace(state.model, tensors=noise)), metrics


@dataclass(frozen=True)
class Favourite(FedAvg):
    """Counts the first client double."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        after, metrics = super().round(state, cohort, engine)
        first, _ = super().round(state, cohort.federation.cohort([cohort.ids[0]], cohort.round), engine)
        return replace(after, model=first.model), metrics


@dataclass(frozen=True)
class Meddler(FedAvg):
    """Changes the state that it was given."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        after = super().round(state, cohort, engine)
        next(iter(state.model.tensors.values())).add_(1.0)
        return after


@dataclass(frozen=True)
class Silent(FedAvg):
    """Tells nothing of what it did."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        state, metrics = super().round(state, cohort, engine)
        metrics.validation.clear()
        return state, metrics


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Asks for the truth without saying so."""

    def init(self, federation: Any, engine: Any) -> Any:
        assert federation.truth is not None
        return super().init(federation, engine)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Forgetful, "two runs with one seed differ"),
        (Meddler, "changed the state it was given|two runs"),
        (Silent, "validation is told for members"),
        (Favourite, "permuting clients changes"),
        (Peeking, "may not read"),
    ],
)
def test_a_bad_one_is_found(bad: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        check_algorithm(bad)


@operation("test: losses of every example")
@dataclass(frozen=True)
class AskEverything(AskMeanLosses):
    """What may not leave a client."""

    def answer(self, held: Any, seen: Any) -> Any:
        return {"mean": seen.losses}


@dataclass(frozen=True)
class Leaky(FedAvg):
    """Asks for a number an example."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        engine.ask(AskEverything(1), cohort, state.model)
        return super().round(state, cohort, engine)


@dataclass(frozen=True)
class Expectant(FedAvg):
    """Takes it for granted that everyone answers."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        jobs = [Job(client) for client in cohort]
        trained = engine.train(state.model, cohort, jobs, self.settings.training, Key(3, state.round + 1))
        trained.models.average(cohort.sizes("train")[None])
        return super().round(state, cohort, engine)


@dataclass(frozen=True)
class Restless(FedAvg):
    """Goes on without anybody."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        state, metrics = super().round(state, cohort, engine)
        moved = {name: tensor * 2 for name, tensor in state.model.tensors.items()}
        return replace(state, model=replace(state.model, tensors=moved)), metrics


@dataclass(frozen=True)
class OwnWay(LossRule):
    """A rule that nobody registered."""


@dataclass(frozen=True)
class Unregistered(FedAvg):
    """Asks for what clients elsewhere do not know."""

    def round(self, state: Any, cohort: Any, engine: Any) -> Any:
        training, key = self.settings.training, Key(3, state.round + 1)
        engine.train(state.model, cohort, [Job(k) for k in cohort], training, key, OwnWay(training.optimiser))
        return super().round(state, cohort, engine)


@dataclass(frozen=True, eq=False)
class Unmarked:
    """A state that does not say which of its numbers are clients'."""

    model: Any
    clients: int
    round: int = 0
    velocity: None = None


@dataclass(frozen=True)
class Closed(FedAvg):
    """Has no room for clients that come later."""

    def init(self, federation: Any, engine: Any) -> Any:
        return Unmarked(engine.initial(), len(federation))


@dataclass(frozen=True)
class Undeclared(FedAvg):
    """Goes through states that it does not name."""

    states = ()


@pytest.mark.parametrize(
    ("bad", "check", "words"),
    [
        (Leaky, check_examples_stay_at_clients, "tells mean of shape \\(1, 31\\), an entry an example, of client 0"),
        (Expectant, check_goes_on_without_some, "size of tensor|shapes cannot be multiplied|size mismatch"),
        (Restless, check_silence_changes_nothing, "without answers changes models"),
        (Unregistered, check_requests_travel, "OwnWay cannot be asked of clients"),
        (Closed, check_grows, "an assignment of every client"),
        (Undeclared, check_resumes, "not among its `states`"),
    ],
)
def test_what_the_seam_forbids_is_found(bad: Any, check: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        check(bad)


def test_slots_that_are_not_saved_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedEngine, "restore", lambda engine, kept: None)
    with pytest.raises(AssertionError, match="clients end with other models"):
        check_resumes(Local)


def test_lost_answers_are_those_of_whole_clients() -> None:
    view = small_federation()
    cohort, lossy = view.cohort(range(6)), LossyEngine(fresh_engine(view), 0.5, seed=1)
    jobs = [Job(client, (0,), keep=slot) for client in cohort for slot in ((), ("own",))]
    trained = lossy.train(lossy.initial(), cohort, jobs, SETTINGS.training, Key(3, 1))
    lost, there = set(trained.missing), set(trained.clients)
    assert lost
    assert there
    assert lost | there == set(cohort)
    assert not lost & there
    assert set(trained.missing.values()) == {"dropped"}
    assert len(trained.jobs) == 2 * len(there) == 2 * len(trained.models)
    alone = lossy.inner.train(lossy.initial(), cohort, [jobs[2 * max(there)]], SETTINGS.training, Key(3, 1))
    for name, tensor in alone.models.tensors.items():
        assert torch.equal(trained.models.tensors[name][-1], tensor[0])
    answers = lossy.ask(AskMeanLosses(1), cohort, lossy.initial())
    assert len(answers) + len(answers.missing) == 6
    scores = lossy.evaluate([FedAvg(SETTINGS).known(FedAvg(SETTINGS).init(view, lossy), cohort, lossy)], cohort, "test")
    assert np.isnan(scores.values[0]).tolist() == [client in scores.missing for client in cohort]


def test_the_battery_sees_what_leaves() -> None:
    view = small_federation()
    left: list[Any] = []
    engine = RecordingEngine(fresh_engine(view), left)
    FedAvg(SETTINGS).round(FedAvg(SETTINGS).init(view, engine), view.cohort(range(6), 1), engine)
    engine.ask(AskMeanLosses(1), view.cohort([2]), engine.initial())
    assert [one.client for one in left] == [0, 1, 2, 3, 4, 5, 2]
    assert {one.shape for one in left} == {(1,)}
    assert {one.examples for one in left} == {frozenset((31, 7, 13))}


def test_a_setting_chooses_the_papers_variant() -> None:
    assert isinstance(make_algorithm("apfl", replace(SETTINGS, paper_baselines=True)), FedAvgLocalEnsemble)
    assert not isinstance(make_algorithm("apfl", SETTINGS), FedAvgLocalEnsemble)
