"""FedPer, FedRep, FedBN: which layers are whose, and that FedPer is FLUX's shared trunk with a cluster for each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.making import SETTINGS, TRAINING, answering, apart, digits, keep, kept, loop, play, same

from fedflux.algorithms import FedAvg
from fedflux.algorithms.baselines.fedbn import FedBN, batch_norm_names
from fedflux.algorithms.baselines.fedper import FedPer
from fedflux.algorithms.baselines.fedrep import FedRep, SomeLayers
from fedflux.algorithms.check_stage import NORMALISED
from fedflux.algorithms.flux.plain import Oracle
from fedflux.data import Federation
from fedflux.engine import Job, Key, SimulatedEngine, Stack, make_engine
from fedflux.errors import FedfluxError

HEAD = {"classifier.weight", "classifier.bias"}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return loop(federation)


@pytest.fixture(scope="module")
def normalised(federation: Federation) -> SimulatedEngine:
    return make_engine("loop", NORMALISED, federation, seed=5)


def everyone(round: int) -> Sequence[int]:
    return range(6)


def some(round: int) -> Sequence[int]:
    return range(6) if round < 3 else [k for k in range(6) if (k + round) % 3]


@pytest.mark.parametrize("members", [everyone, some])
def test_fedper_is_a_shared_trunk_with_a_cluster_for_each_client_bit_for_bit(
    members: Callable[[int], Sequence[int]], federation: Federation, engine: SimulatedEngine
) -> None:
    """FLUX's first round is FedAvg's; from the model that it ends with both go on, and answer with the same bits."""
    alone = replace(federation, _truth=np.arange(6), _blind=False)
    oracle = Oracle.make(replace(SETTINGS, sharing="trunk", cluster_round=1))
    state, _ = play(oracle, alone, engine, 4, members)
    expected = oracle.known(state, alone.cohort(range(6)), engine)
    theirs = expected.stack.take(expected.weights.argmax(axis=1))
    begun, _ = play(FedAvg(SETTINGS), federation, engine, 1, members)
    fedper = FedPer(SETTINGS)
    start = replace(fedper.init(federation, engine), model=begun.model, round=1)
    mine, _ = play(fedper, federation, engine, 3, members, start)
    assert same(answering(engine, fedper.known(mine, federation.cohort(range(6)), engine), _all(federation)), theirs)


def _all(federation: Federation) -> Any:
    return federation.cohort(range(6))


def test_only_the_last_layer_stays_with_the_client(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = FedPer(SETTINGS)
    state, metrics = play(algorithm, federation, engine, 2)
    assert set(engine.kept().models["personal"].tensors) == HEAD
    found = answering(engine, algorithm.known(state, _all(federation), engine), _all(federation))
    for name, tensor in found.tensors.items():
        if name in HEAD:
            assert torch.equal(tensor, kept(engine).tensors[name])
            assert not torch.equal(tensor[0], tensor[1])
            mean = np.average(tensor.double().numpy(), axis=0, weights=_all(federation).sizes("train"))
            np.testing.assert_allclose(state.model.tensors[name][0], mean, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(tensor, state.model.tensors[name].expand_as(tensor))
    assert metrics.work == {"models_down": 6, "models_up": 6, "forward": 0, "training": 2 * 6}


def test_a_client_that_never_came_has_the_mean_of_the_heads(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm = FedPer(SETTINGS)
    state, _ = play(algorithm, federation, engine, 2, lambda r: [0, 1, 2])
    five = federation.cohort([5])
    assert same(answering(engine, algorithm.known(state, five, engine), five), state.model)
    assert same(algorithm.unseen(state, five.features("test"), engine).stack, state.model)


def test_fedrep_trains_the_head_with_the_trunk_fixed_and_then_the_trunk(
    federation: Federation, engine: SimulatedEngine
) -> None:
    """By hand: two calls, each with a rule that moves a part."""
    algorithm, three, key = FedRep(SETTINGS), federation.cohort([0, 2, 5], 1), Key(SETTINGS.seed, 1)
    state, metrics = play(algorithm, federation, engine, 1, lambda r: [0, 2, 5])
    own = kept(engine, [0, 2, 5])
    trunk = tuple(engine.trained_names - HEAD)
    jobs = [Job(k) for k in three]
    first = engine.train(engine.initial(), three, jobs, TRAINING, key, SomeLayers(TRAINING.optimiser, tuple(HEAD)))
    rest = [Job(k, (row,)) for row, k in enumerate(three)]
    once = replace(TRAINING, epochs=1)
    second = engine.train(first.models, three, rest, once, key, SomeLayers(TRAINING.optimiser, trunk)).models
    for name, tensor in first.models.tensors.items():
        moved = not torch.equal(tensor, engine.initial().tensors[name].expand_as(tensor))
        assert moved == (name in HEAD)
        assert torch.equal(second.tensors[name], tensor) == (name in HEAD)
    assert same(own, second.only(HEAD))
    assert same(state.model, second.average(three.sizes("train")[None]))
    assert metrics.work["training"] == 3 * (2 + 1)


def test_fedrep_of_a_model_of_one_layer_is_fedper(federation: Federation) -> None:
    """Where nothing lies beneath the last layer, nothing is left to train after it."""
    single = make_engine("loop", "fedflux.models.linear:LogisticRegression", federation, seed=5)
    mine, _ = play(FedRep(SETTINGS), federation, single, 2)
    own = kept(single)
    theirs, _ = play(FedPer(SETTINGS), federation, single, 2)
    assert apart(own, kept(single)) < 1e-5
    assert apart(mine.model, theirs.model) < 1e-5


def test_moving_all_layers_is_plain_sgd(federation: Federation, engine: SimulatedEngine) -> None:
    cohort, key = federation.cohort([1, 3]), Key(5, 1)
    engine.backend._chain = None  # type: ignore[attr-defined]
    jobs, rule = [Job(1), Job(3)], SomeLayers(TRAINING.optimiser, tuple(engine.trained_names))
    plain, layers = (engine.train(engine.initial(), cohort, jobs, TRAINING, key, one).models for one in (None, rule))
    assert same(plain, layers)


def test_fedbn_keeps_batchnorm_with_the_client(federation: Federation, normalised: SimulatedEngine) -> None:
    algorithm = FedBN(SETTINGS)
    state, _ = play(algorithm, federation, normalised, 2)
    names = {f"features.2.{one}" for one in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert set(kept(normalised).tensors) == names
    found = answering(normalised, algorithm.known(state, _all(federation), normalised), _all(federation))
    for name, tensor in found.tensors.items():
        shared = torch.equal(tensor, state.model.tensors[name].expand_as(tensor))
        assert shared == (name not in names or name.endswith("tracked"))


def test_with_one_client_fedbn_is_fedavg(normalised: SimulatedEngine, federation: Federation) -> None:
    mine, _ = play(FedBN(SETTINGS), federation, normalised, 2, lambda r: [4])
    expected, _ = play(FedAvg(SETTINGS), federation, normalised, 2, lambda r: [4])
    assert same(mine.model, expected.model)


def test_fedbn_is_the_same_on_stacked_clients(federation: Federation, normalised: SimulatedEngine) -> None:
    stacked = make_engine("stacked", NORMALISED, federation, seed=5)
    one, _ = play(FedBN(SETTINGS), federation, normalised, 2, some)
    own = kept(normalised)
    two, _ = play(FedBN(SETTINGS), federation, stacked, 2, some)
    assert apart(one.model, two.model) < 1e-3
    assert apart(own, kept(stacked)) < 1e-3


def test_fedbn_refuses_a_model_without_batchnorm(federation: Federation, engine: SimulatedEngine) -> None:
    with pytest.raises(FedfluxError, match=r"fedbn keeps BatchNorm with the client, and this model has none: .*fedper"):
        FedBN(SETTINGS).init(federation, engine)


def test_batchnorm_is_found_by_its_statistics() -> None:
    assert batch_norm_names(["running_mean", "weight", "a.weight"]) == ("running_mean", "weight")
    assert batch_norm_names(["a.b.running_mean", "a.b.bias", "a.weight", "c.bias"]) == ("a.b.bias", "a.b.running_mean")


def test_a_job_with_personal_layers_begins_from_both_and_sends_all(
    federation: Federation, engine: SimulatedEngine
) -> None:
    heads = Stack({name: tensor.repeat(6, *[1] * (tensor.ndim - 1)) + 1 for name, tensor in _head(engine).items()})
    keep(engine, heads)
    two, still = federation.cohort([1, 3]), replace(TRAINING, lr=0.0)
    jobs = [Job(k, own=("personal",), keep=("personal",), layers=tuple(HEAD)) for k in two]
    sent = engine.train(engine.initial(), two, jobs, still, Key(5, 1)).models
    for name, tensor in sent.tensors.items():
        expected = heads.tensors[name][:2] if name in HEAD else engine.initial().tensors[name].expand_as(tensor)
        assert torch.equal(tensor, expected)
    silent = engine.train(engine.initial(), two, [replace(one, sends=False) for one in jobs], still, Key(5, 1))
    assert len(silent.models) == 0
    assert len(silent.jobs) == 2


def _head(engine: SimulatedEngine) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in engine.initial().tensors.items() if name in HEAD}
