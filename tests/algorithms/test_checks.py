"""The public battery holds for every registered algorithm, and finds what is wrong with a bad one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedflux.algorithms import ALGORITHMS, HARNESS, FedAvg, make_algorithm
from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.paper import FedAvgLocalEnsemble
from fedflux.algorithms.checks import CHECKS, SETTINGS, check_algorithm


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_holds(name: str, check: Any) -> None:
    check(ALGORITHMS[name])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", HARNESS)
def test_the_papers_variants_hold(name: str, check: Any) -> None:
    check(HARNESS[name])


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


def test_a_setting_chooses_the_papers_variant() -> None:
    assert isinstance(make_algorithm("apfl", replace(SETTINGS, flux_paper=True)), FedAvgLocalEnsemble)
    assert not isinstance(make_algorithm("apfl", SETTINGS), FedAvgLocalEnsemble)
