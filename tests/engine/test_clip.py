"""`--clip`: gradients that are too long are shortened, alike in every engine, and others are left alone."""

from dataclasses import replace

import pytest
import torch
from tests.engine.test_chain import ByAutograd
from tests.engine.test_stacked import SHAPES, TRAINING, apart, everyone, make_federation, pair
from torch.nn.functional import cross_entropy

from fedflux.engine import DivergedError, Job, Key, LoopEngine, Training
from fedflux.engine.modes import one_thread
from fedflux.engine.processes.engine import ProcessesEngine
from fedflux.engine.recipe import Recipe
from fedflux.models import build_model
from fedflux.streams import stream

CLIP = 0.6
CLIPPED = replace(TRAINING, clip=CLIP)


def test_it_is_pytorchs_clipping_before_momentum() -> None:
    view = make_federation(SHAPES["mlp"])
    model = build_model("mlp", SHAPES["mlp"], 5, seed=1).double()
    engine = LoopEngine(model)
    cohort = view.cohort([0])
    trained = engine.train(engine.initial(), cohort, [Job(0)], CLIPPED, Key(7, 3))
    data = cohort.data(0, "train")
    x = (data.x.double() / 255 - 0.5) / 0.5
    order, norms = stream(7, "batches", 3, 0), []
    for _ in range(CLIPPED.epochs):
        optimiser = torch.optim.SGD(model.parameters(), lr=CLIPPED.lr, momentum=CLIPPED.momentum)
        for batch in torch.from_numpy(order.permutation(len(data))).split(CLIPPED.batch_size):
            optimiser.zero_grad()
            cross_entropy(model(x[batch]), data.y[batch]).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
            optimiser.step()
    assert 1.1 * min(norms) < CLIP < max(norms) / 1.1
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trained.row(0)[name], tensor, rtol=0, atol=1e-5)  # theirs divides by the norm + 1e-6


@pytest.mark.parametrize("model", SHAPES)
def test_engines_agree(model: str) -> None:
    view, loop, other = pair(model)
    cohort, jobs = view.cohort(range(len(view))), everyone(view)
    one, two = (engine.train(loop.initial(), cohort, jobs, CLIPPED, Key(5, 2)) for engine in (loop, other))
    by_autograd = loop.train(loop.initial(), cohort, jobs, CLIPPED, Key(5, 2), ByAutograd(CLIPPED.optimiser))
    free = loop.train(loop.initial(), cohort, jobs, TRAINING, Key(5, 2))
    assert max(apart(one, two), apart(one, by_autograd)) < 1e-8
    assert apart(one, free) > 1e-4


def test_processes_agree() -> None:
    recipe, view = Recipe("mlp", SHAPES["mlp"], 5, 1), make_federation(SHAPES["mlp"])
    loop = LoopEngine(recipe.build())
    with one_thread(), ProcessesEngine(recipe, workers=2) as with_workers:
        one, two = (
            engine.train(loop.initial(), view.cohort(range(4)), everyone(view), CLIPPED, Key(5, 2))
            for engine in (loop, with_workers)
        )
    assert apart(one, two) == 0


@pytest.mark.parametrize("model", SHAPES)
def test_what_is_short_enough_keeps_its_bits(model: str) -> None:
    view, loop, other = pair(model)
    for engine in (loop, other):
        ends = [
            engine.train(loop.initial(), view.cohort(range(4)), everyone(view), training, Key(5, 2))
            for training in (TRAINING, replace(TRAINING, clip=1e6))
        ]
        assert apart(*ends) == 0


def test_a_rate_that_diverges_without_it_does_not_with_it() -> None:
    view = make_federation(SHAPES["lenet5"], (60, 60))
    engine = LoopEngine(build_model("lenet5", SHAPES["lenet5"], 5, seed=1))
    wild = Training(epochs=5, batch_size=8, lr=30.0, momentum=0.9)
    arguments = engine.initial(), view.cohort(range(2)), everyone(view)
    with pytest.raises(DivergedError, match=r"lower --lr, or give a \(smaller\) --clip"):
        engine.train(*arguments, wild, Key(5, 2))
    engine.train(*arguments, replace(wild, clip=0.5), Key(5, 2))
