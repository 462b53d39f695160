"""SGD, Adam and AdamW with weight decay and schedules: PyTorch's numbers, and the same ones on every engine."""

from copy import deepcopy
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.making import Dropping, Normed
from tests.engine.test_chain import ByAutograd
from tests.engine.test_stacked import SHAPES, TRAINING, apart, everyone, make_federation
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy

from fedflux.data import Federation
from fedflux.engine import Job, Key, LoopEngine, Stack, Training
from fedflux.engine.batched.stacked import StackedEngine, stacked_engine
from fedflux.engine.batched.stepper import Advance, Stepper, mapped_advance
from fedflux.engine.modes import one_thread
from fedflux.engine.processes.engine import ProcessesEngine
from fedflux.engine.recipe import Recipe
from fedflux.engine.rules import LossRule
from fedflux.engine.training import RATE
from fedflux.models import build_model
from fedflux.streams import stream

ADAM = replace(TRAINING, lr=0.004, kind="adam")
KINDS = {
    "sgd clipped": replace(TRAINING, clip=0.6),
    "adam": ADAM,
    "adam with decay": replace(ADAM, weight_decay=0.1),
    "adamw": replace(ADAM, kind="adamw", weight_decay=0.1),
    "adam clipped, with decay": replace(ADAM, weight_decay=0.1, clip=0.3),
    "sgd with decay": replace(TRAINING, weight_decay=0.1),
    "sgd clipped, with decay": replace(TRAINING, weight_decay=0.1, clip=0.6),
    "adam by a cosine": replace(ADAM, schedule="cosine", rounds=4),
    "adamw by a cosine": replace(ADAM, kind="adamw", weight_decay=0.1, schedule="cosine", rounds=4),
    "sgd by a cosine": replace(TRAINING, schedule="cosine", rounds=4),
}
KEY = Key(5, 3)
MODELS = ("lenet5", "mlp", "normed")
"""A chain with convolutions, one without, and BatchNorm, which is replayed."""


def engines(name: str, dtype: torch.dtype = torch.float64) -> tuple[Federation, LoopEngine, LoopEngine]:
    """Four clients of unlike sizes, the loop and the stacked engine."""
    shape = SHAPES.get(name, SHAPES["mlp"])
    torch.manual_seed(1)
    model = Normed(shape, 5) if name == "normed" else build_model(name, shape, 5, seed=1)
    loop, other = (make(deepcopy(model).to(dtype), "cpu", "fp32-strict") for make in (LoopEngine, stacked_engine))
    return make_federation(shape), loop, other


def theirs(training: Training, model: nn.Module) -> torch.optim.Optimizer:
    """PyTorch's optimiser of these settings."""
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if training.kind == "sgd":
        momentum, decay = training.momentum, training.weight_decay
        return torch.optim.SGD(model.parameters(), lr=training.lr, momentum=momentum, weight_decay=decay)
    return kinds[training.kind](model.parameters(), lr=training.lr, weight_decay=training.weight_decay)


@pytest.mark.parametrize("engine", [LoopEngine, stacked_engine])
@pytest.mark.parametrize("name", KINDS)
def test_a_client_is_trained_as_pytorch_would(name: str, engine: type[LoopEngine]) -> None:
    """One optimiser a round for Adam, one an epoch for SGD; a scheduler that is stepped after every round."""
    training = replace(KINDS[name], epochs=3)
    view, model = make_federation(SHAPES["mlp"]), build_model("mlp", SHAPES["mlp"], 5, seed=1).double()
    ours, data = engine(deepcopy(model)), view.cohort([0]).data(0, "train")
    trained = ours.train(ours.initial(), view.cohort([0]), [Job(0)], training, KEY)
    x, order = (data.x.double() / 255 - 0.5) / 0.5, stream(KEY.seed, "batches", KEY.round, 0)
    for epoch in range(training.epochs):
        if epoch == 0 or training.kind == "sgd":
            model.zero_grad()
            optimiser = theirs(training, model)
            if training.schedule == "cosine":
                rounds = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, training.rounds)
                for _ in range(KEY.round - 1):
                    optimiser.step()
                    rounds.step()
        for batch in torch.from_numpy(order.permutation(len(data))).split(training.batch_size):
            optimiser.zero_grad()
            cross_entropy(model(x[batch]), data.y[batch]).backward()
            if training.clip is not None:
                slopes = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
                norm = torch.nn.utils.get_total_norm(slopes)
                torch._foreach_mul_(slopes, min(1.0, training.clip / float(norm)))  # theirs adds 1e-6 to the norm
            optimiser.step()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(trained.row(0)[key], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_engines_agree(model: str, name: str) -> None:
    view, loop, other = engines(model)
    cohort, jobs, training = view.cohort(range(len(view))), everyone(view), KINDS[name]
    rule = ByAutograd(training.optimiser)
    one, two, by_autograd = (
        engine.train(loop.initial(), cohort, jobs, training, KEY, chosen)
        for engine, chosen in ((loop, None), (other, None), (loop, rule))
    )
    assert max(apart(one, two), apart(one, by_autograd)) < 1e-8
    assert apart(one, loop.train(loop.initial(), cohort, jobs, TRAINING, KEY)) > 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_processes_give_the_bits_of_the_loop(name: str) -> None:
    recipe, view = Recipe("mlp", SHAPES["mlp"], 5, 1), make_federation(SHAPES["mlp"])
    loop = LoopEngine(recipe.build())
    with one_thread(), ProcessesEngine(recipe, workers=2) as with_workers:
        one, two = (
            engine.train(loop.initial(), view.cohort(range(4)), everyone(view), KINDS[name], KEY)
            for engine in (loop, with_workers)
        )
    assert apart(one, two) == 0


@pytest.mark.parametrize("model", MODELS)
def test_single_precision_stays_near_over_two_rounds(model: str) -> None:
    view, loop, other = engines(model, torch.float32)
    cohort, training = view.cohort(range(len(view))), KINDS["adam by a cosine"]
    ends = []
    for engine in (loop, other):
        stack = engine.initial()
        for round in (1, 2):
            trained = engine.train(stack, cohort, everyone(view), training, Key(5, round))
            stack = trained.average(np.ones((1, len(view))))
        ends.append(stack)
    assert apart(*ends) < 1e-3


def test_random_layers_are_trained_alike() -> None:
    view = make_federation(SHAPES["mlp"])
    torch.manual_seed(1)
    model = Dropping(SHAPES["mlp"], 5)
    one, two = (
        engine(deepcopy(model)).train(Stack.of(model), view.cohort(range(4)), everyone(view), ADAM, KEY)
        for engine in (LoopEngine, stacked_engine)
    )
    assert apart(one, two) == 0


@pytest.mark.parametrize("model", ["mlp", "normed"])
def test_rounds_differ_by_their_rate_alone_and_share_a_stepper(model: str) -> None:
    """On a GPU a stepper holds recorded steps: one made for each round would be recorded in each."""
    view, loop, other = engines(model)
    cohort, jobs, training = view.cohort(range(4)), everyone(view), KINDS["adam by a cosine"]
    made: list[Stepper] = []
    for round in range(1, 6):
        one, two = (engine.train(loop.initial(), cohort, jobs, training, Key(5, round)) for engine in (loop, other))
        fixed = replace(training, schedule="constant", lr=training.rate(round))
        same = loop.train(loop.initial(), cohort, jobs, fixed, Key(5, round))
        assert max(apart(one, two), apart(one, same)) < 1e-8
        if isinstance(other, StackedEngine):
            made += other._steppers.values()
    assert len({id(stepper) for stepper in made}) <= 1


def test_what_a_recorded_step_needs_lies_in_tensors_that_keep_their_place() -> None:
    view, _, other = engines("mlp")
    assert isinstance(other, StackedEngine)
    training = KINDS["adam by a cosine"]
    other.train(other.initial(), view.cohort(range(4)), everyone(view), training, Key(5, 1))
    (stepper,) = other._steppers.values()
    before = {"step": stepper.memory["step"], "rate": stepper.extras[RATE]}
    steps = [2 * -(-view.size(client, "train") // training.batch_size) for client in range(4)]
    assert before["step"].tolist() == steps  # of both epochs, and none for batches that only fill up
    rates = before["rate"].clone()
    other.train(other.initial(), view.cohort(range(4)), everyone(view), training, Key(5, 2))
    assert stepper.memory["step"].data_ptr() == before["step"].data_ptr()
    assert stepper.extras[RATE].data_ptr() == before["rate"].data_ptr()
    assert (stepper.extras[RATE] < rates).all()


def recorded(advance: Advance) -> Advance:
    """Steps as a GPU replays them: of the first one its operations on tensors are kept, and nothing of Python runs."""
    kept: dict[tuple[bool, int], Any] = {}

    def replay(params: Any, memory: Any, extras: Any, data: Any, where: Any, real: Any, index: Any) -> Any:
        told = (params, memory, extras, where, real, index)
        if (real is None, where.shape[1]) not in kept:
            kept[real is None, where.shape[1]] = make_fx(
                lambda params, memory, extras, where, real, index: advance(
                    params, memory, extras, data, where, real, index
                )
            )(*told)
        return kept[real is None, where.shape[1]](*told)

    return replay


@pytest.mark.parametrize("name", KINDS)
def test_steps_that_are_replayed_take_their_own_rate_and_count(name: str) -> None:
    view, loop, other = engines("mlp")
    assert isinstance(other, StackedEngine)
    cohort, jobs, training = view.cohort(range(4)), everyone(view), KINDS[name]
    rule = LossRule(training.optimiser)
    other._advances[rule] = recorded(mapped_advance(rule, other, other._images))
    for round in (1, 2, 3):
        one, two = (
            engine.train(loop.initial(), cohort, jobs, training, Key(5, round), chosen)
            for engine, chosen in ((loop, None), (other, rule))
        )
        assert apart(one, two) < 1e-8


def test_a_cosine_falls_from_the_rate_to_nearly_nothing() -> None:
    training = Training(1, 8, 0.1, 0.9, schedule="cosine", rounds=10)
    rates = [training.rate(round) for round in range(1, 11)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 0.1
    assert 0 < rates[-1] < 0.003
    assert training.rate(11) == 0.1  # fine-tuning begins a training of its own
    assert [replace(training, schedule="constant").rate(round) for round in (1, 10, 11)] == [0.1] * 3


def test_frozen_parameters_do_not_decay() -> None:
    view, model = make_federation(SHAPES["mlp"]), build_model("mlp", SHAPES["mlp"], 5, seed=1)
    first = next(model.parameters()).requires_grad_(False)
    assert first.numel() == 128 * prod(SHAPES["mlp"])
    for engine in (LoopEngine(deepcopy(model)), stacked_engine(deepcopy(model))):
        for training in (KINDS["adamw"], KINDS["sgd with decay"]):
            trained = engine.train(engine.initial(), view.cohort([0]), [Job(0)], training, KEY)
            moved = {key for key, t in trained.row(0).items() if not torch.equal(t, engine.initial().row(0)[key])}
            assert moved == set(engine.trained_names)
