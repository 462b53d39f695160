"""What personalised methods have in common: engines, resuming, small cohorts, divergence."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms import making
from tests.algorithms.making import SETTINGS, TRAINING, digits, loop, play

import fedflux
from fedflux.algorithms import PAPER_BASELINES, Algorithm
from fedflux.algorithms.baselines.apfl import Apfl
from fedflux.algorithms.baselines.atp import Atp
from fedflux.algorithms.baselines.ditto import Ditto
from fedflux.algorithms.baselines.fedem import FedEM
from fedflux.algorithms.baselines.fedper import FedPer
from fedflux.algorithms.baselines.fedrc import FedRC
from fedflux.algorithms.baselines.fedrep import FedRep
from fedflux.algorithms.baselines.feroma import Feroma
from fedflux.algorithms.baselines.pfedme import PFedMe
from fedflux.data import Federation
from fedflux.engine import DivergedError, ProcessesEngine, Recipe, SimulatedEngine, make_engine
from fedflux.savable import put_together, take_apart

METHODS: dict[str, Algorithm[Any]] = {
    "fedem": FedEM(SETTINGS),
    "fedrc": FedRC(SETTINGS),
    "apfl": Apfl(SETTINGS),
    "apfl of outputs": Apfl(SETTINGS, output_mixing=True),
    "pfedme": PFedMe(SETTINGS),
    "ditto": Ditto(SETTINGS),
    "fedper": FedPer(SETTINGS),
    "fedrep": FedRep(SETTINGS),
    "feroma": Feroma(replace(SETTINGS, cluster_round=1)),
    "atp": Atp(SETTINGS, rate_rounds=2),
    **{f"{name} of the paper": PAPER_BASELINES[name](SETTINGS) for name in ("fedem", "fedrc", "apfl", "pfedme")},
}
SOME = {1: [0, 1, 2, 3], 2: [1, 3, 4], 3: [0, 2, 4]}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop(federation)


@pytest.fixture(scope="module")
def stacked(federation: Federation) -> SimulatedEngine:
    return make_engine("stacked", "mlp", federation, seed=5)


@pytest.fixture(scope="module")
def processes(federation: Federation) -> Iterator[SimulatedEngine]:
    recipe = Recipe("mlp", federation.input_shape, federation.classes, 5)
    with ProcessesEngine(recipe, pixels=federation.dataset.scaling.pixels, workers=2) as made:
        yield SimulatedEngine(made)


def saved(value: Any) -> Any:
    return put_together(type(value), *take_apart(value))


def tensors(state: Any, engine: SimulatedEngine) -> dict[str, Any]:
    """All numbers of a run: the server's, and what clients keep."""
    parts = {"state": take_apart(state)[0], "kept": take_apart(engine.kept())[0]}
    return {f"{part}: {name}": tensor.double() for part, all in parts.items() for name, tensor in all.items()}


def answers(algorithm: Algorithm[Any], state: Any, federation: Federation, engine: SimulatedEngine) -> list[Any]:
    cohort = federation.cohort(range(6))
    predictors = (algorithm.known(state, cohort, engine), algorithm.unseen(state, cohort.features("test"), engine))
    return [one for predictor in predictors if predictor for one in making.answers(engine, predictor, cohort)]


@pytest.mark.parametrize("name", METHODS)
def test_every_engine_gives_the_same(
    name: str, federation: Federation, engine: SimulatedEngine, stacked: SimulatedEngine, processes: SimulatedEngine
) -> None:
    method = METHODS[name]
    engines = (engine, stacked, processes)
    runs = [play(method, federation, one, members=SOME.__getitem__) for one in engines]
    states = [tensors(state, one) for (state, _), one in zip(runs, engines, strict=True)]
    for key, tensor in states[0].items():
        assert (tensor - states[1][key]).abs().max() < 1e-3, key
        assert tensor.equal(states[2][key]), key
    one, two = (answers(method, runs[0][0], federation, other) for other in (engine, processes))
    for mine, theirs in zip(one, two, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_state_goes_on_to_the_same_numbers(name: str, federation: Federation, engine: SimulatedEngine) -> None:
    method = METHODS[name]
    whole, _ = play(method, federation, engine, members=SOME.__getitem__)
    one = tensors(whole, engine)
    half, _ = play(method, federation, engine, rounds=2, members=SOME.__getitem__)
    again, other = saved(half), loop(federation)
    other.restore(saved(engine.kept()))
    resumed, _ = play(method, federation, other, rounds=1, members=SOME.__getitem__, state=again)
    two = tensors(resumed, other)
    assert one.keys() == two.keys()
    assert all(tensor.equal(two[key]) for key, tensor in one.items())
    assert resumed.round == 3


@pytest.mark.parametrize("name", METHODS)
def test_a_cohort_of_one_and_someone_who_never_comes(
    name: str, federation: Federation, engine: SimulatedEngine
) -> None:
    method = METHODS[name]
    state, metrics = play(method, federation, engine, members=lambda r: [3])
    assert list(metrics.validation) == [3]
    state, _ = method.complete(state, federation.cohort(range(6)), engine)
    for answer in answers(method, state, federation, engine):
        np.testing.assert_allclose(answer.sum(axis=1), 1, atol=1e-5)
    assert len(method.assignment(state)) == 6
    assert method.described(state) is None


@pytest.mark.parametrize("name", METHODS)
def test_training_that_diverges_stops_the_run(name: str, federation: Federation, engine: SimulatedEngine) -> None:
    wild = replace(SETTINGS, training=replace(TRAINING, lr=1e30))
    with pytest.raises(DivergedError, match="diverged in round"):
        play(replace(METHODS[name], settings=wild), federation, engine)  # type: ignore[type-var]


def test_a_method_without_known_association_has_no_score_there(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"shift": "px", "clients": 3, "rounds": 1, "device": "cpu", "data_fraction": 0.3}
    result = fedflux.run(algorithm="atp", out=tmp_path / "run", **settings)
    assert result["known"] is result["known_per_client"] is None
    assert result["test"] > 0
