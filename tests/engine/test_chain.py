"""Chains of layers trained in place: autograd's numbers, for the models and the rule that it is for and no others."""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.making import pictures
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fedflux.data import Features, Federation
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.engine import Job, Key, LoopEngine, Stack, Training
from fedflux.engine.kernels.chain import LARGEST, ROOMS, Chain, ChainTrainer
from fedflux.engine.rules import Batch, LossRule
from fedflux.engine.training import Sgd
from fedflux.models import build_model
from fedflux.models.mlp import MLP
from fedflux.models.protocol import EncoderHead, NamedEncoder

TRAINING = Training(epochs=2, batch_size=16, lr=0.05, momentum=0.9)
SIZES = (40, 33, 16, 5)
"""The second's last batch is a single example, the fourth's only batch is a short one."""


def federation(shape: tuple[int, int, int] = (1, 12, 12), sizes: tuple[int, ...] = SIZES) -> Federation:
    channels, side, _ = shape
    data = pictures(train=sum(sizes), classes=5, side=side, channels=channels)
    cuts, none = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]), np.empty(0, dtype=np.int64)
    rows = [ClientRows(train=cut, validation=none, test=none) for cut in cuts]
    return Federation(data, rows, [Pattern()] * len(sizes), 3, channels)


def trained(engine: LoopEngine, view: Federation, rule: Any = None, training: Training = TRAINING) -> Stack:
    jobs = [Job(client) for client in range(len(view))]
    return engine.train(engine.initial(), view.cohort(range(len(view))), jobs, training, Key(1, 2), rule)


@dataclass(frozen=True)
class ByAutograd(LossRule):
    """The default rule under another name, which no chain takes."""


def by_autograd(training: Training = TRAINING) -> ByAutograd:
    return ByAutograd(Sgd(training.lr, training.momentum))


def sequential(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(*more, nn.Flatten(), nn.Linear(4 * 25, 7), nn.ReLU(), nn.Linear(7, 5))


def pooling(**more: Any) -> list[nn.Module]:
    return [nn.Conv2d(1, 4, 3, **more), nn.ReLU(), nn.AvgPool2d(2)]


def shared_relu() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 9), act, nn.Linear(9, 9), act, nn.Linear(9, 5), act)


class Backwards(EncoderHead):
    """Registers what it runs last first."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(144, 5)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(144, 144), nn.ReLU())


CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "lenet5": (lambda: build_model("lenet5", (1, 28, 28), 5, seed=1), (1, 28, 28)),
    "lenet5 in colour": (lambda: build_model("lenet5", (3, 16, 16), 5, seed=1), (3, 16, 16)),
    "mlp": (lambda: build_model("mlp", (1, 12, 12), 5, seed=1), (1, 12, 12)),
    "sequential": (lambda: sequential(*pooling()), (1, 12, 12)),
    "relu last": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.ReLU()), (1, 12, 12)),
    "two padded": (
        lambda: sequential(*pooling(padding=1), nn.Conv2d(4, 4, 3, padding=3), nn.ReLU(), nn.AvgPool2d(2)),
        (1, 12, 12),
    ),
    "one relu in two places": (shared_relu, (1, 12, 12)),
    "classifier first": (Backwards, (1, 12, 12)),
    "named": (lambda: NamedEncoder(nn.Sequential(OrderedDict(a=nn.Flatten(), b=nn.Linear(144, 5))), "a"), (1, 12, 12)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_it_is_what_autograd_finds(name: str) -> None:
    make, shape = CHAINS[name]
    model, view = make().double(), federation(shape)
    engine = LoopEngine(model)
    assert engine._chain is not None
    start = {key: tensor.clone() for key, tensor in engine.initial().tensors.items()}
    ours, theirs = trained(engine, view), trained(engine, view, by_autograd())
    assert list(ours.tensors) == list(theirs.tensors) == list(start)
    for key, tensor in theirs.tensors.items():
        assert not torch.equal(tensor[0], start[key][0])
        torch.testing.assert_close(ours.tensors[key], tensor, rtol=1e-11, atol=1e-13)
        assert torch.equal(engine.initial().tensors[key], start[key])  # nobody's start was written to


def test_results_do_not_depend_on_who_was_trained_before() -> None:
    sizes = (40, 33, 21, 37, 50, 30, 27, 16)
    view, engine = federation(sizes=sizes), LoopEngine(build_model("mlp", (1, 12, 12), 5, seed=1))
    together = trained(engine, view)
    assert engine._chain is not None
    assert len(engine._chain._rooms) == ROOMS
    for client in reversed(range(len(sizes))):
        alone = engine.train(engine.initial(), view.cohort([client]), [Job(client)], TRAINING, Key(1, 2))
        for key, tensor in alone.tensors.items():
            assert torch.equal(tensor[0], together.tensors[key][client])


class Doubled(MLP):
    def encode(self, x: Tensor) -> Tensor:
        return 2 * super().encode(x)


class MayDoAnything(nn.Sequential):
    pass


def frozen() -> nn.Module:
    model = sequential(*pooling())
    next(model.parameters()).requires_grad_(False)
    return model


def twice() -> nn.Module:
    layer = nn.Linear(144, 144)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


def with_buffer() -> nn.Module:
    model = sequential(*pooling())
    model.register_buffer("seen", torch.zeros(1))
    return model


class Called(MLP):
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


def rewired() -> nn.Module:
    model = build_model("mlp", (1, 12, 12), 5, seed=1)
    model.head = lambda latent: latent[:, :5]  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: build_model("resnet9", (3, 16, 16), 5, seed=1),
        lambda: Doubled((1, 12, 12), 5),
        lambda: Called((1, 12, 12), 5),
        lambda: MayDoAnything(nn.Flatten(), nn.Linear(144, 5)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5, bias=False)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 9), nn.Tanh(), nn.Linear(9, 5)),
        lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(144, 5)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.ReLU(), nn.ReLU()),
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(144, 5)),
        lambda: nn.Sequential(nn.Flatten()),
        lambda: nn.Sequential(nn.Linear(12, 5)),
        lambda: nn.Sequential(*pooling()),
        lambda: sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
        frozen,
        twice,
        with_buffer,
        rewired,
    ],
)
def test_whatever_is_not_exactly_a_chain_is_left_to_autograd(make: Callable[[], nn.Module]) -> None:
    assert Chain.of(make()) is None


def test_only_the_default_rule_on_a_cpu_in_full_precision() -> None:
    model = build_model("mlp", (1, 12, 12), 5, seed=1)
    trainer, shape = ChainTrainer.of(model), (4, 1, 12, 12)
    assert trainer is not None
    assert trainer.takes(LossRule(Sgd(0.1, 0.9)), shape)
    assert not trainer.takes(by_autograd(), shape)
    assert not trainer.takes(LossRule(Decaying(0.1, 0.9)), shape)
    assert LoopEngine(model, precision="bf16")._chain is None


class Decaying(Sgd):
    """Not plain any more."""


def test_buffers_that_would_be_large_are_not_made() -> None:
    wide = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16384, 5))
    trainer = ChainTrainer.of(wide)
    assert trainer is not None
    rule = LossRule(Sgd(0.1, 0.9))
    assert trainer.takes(rule, (16, 3, 32, 32))
    assert not trainer.takes(rule, (512, 3, 32, 32))
    for examples in (60, 80, 100, 105):
        room = trainer._room((examples, 3, 32, 32))
        tensors = [t for layer in room.layers for t in vars(layer).values() if isinstance(t, Tensor)]
        stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        own = 2 * 4 * sum(parameter.numel() for parameter in wide.parameters())  # which all rooms share
        assert sum(stores.values()) - own <= 1.1 * 4 * trainer._chain.numbers((examples, 3, 32, 32))
    assert sum(trainer._chain.numbers(shape) for shape in trainer._rooms) <= 2 * LARGEST
    assert len(trainer._rooms) < 4


@pytest.mark.parametrize(("channels", "side", "examples"), [(300, 2, 1), (256, 8, 4), (64, 12, 16), (3, 28, 64)])
def test_the_estimate_counts_kernels_and_tables_too(channels: int, side: int, examples: int) -> None:
    flat = channels * (side // 2) ** 2
    model = nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(flat, 5)
    )
    trainer, shape = ChainTrainer.of(model), (examples, channels, side, side)
    assert trainer is not None
    tensors = [t for layer in trainer._room(shape).layers for t in vars(layer).values() if isinstance(t, Tensor)]
    stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    own = 2 * 4 * sum(parameter.numel() for parameter in model.parameters())
    assert sum(stores.values()) - own <= 1.1 * 4 * trainer._chain.numbers(shape)


def test_copies_of_few_images_make_batches_as_large() -> None:
    view, engine = (
        replace(federation(sizes=(5,)), duplicate=100),
        LoopEngine(build_model("mlp", (1, 12, 12), 5, seed=1)),
    )
    trained(engine, view, training=replace(TRAINING, batch_size=64))
    assert engine._chain is not None
    assert sorted(shape[0] for shape in engine._chain._rooms) == [500 % 64, 64]


@pytest.mark.parametrize("copied", [lambda engine: pickle.loads(pickle.dumps(engine)), deepcopy])
def test_a_copied_engine_trains_as_well(copied: Callable[[LoopEngine], LoopEngine]) -> None:
    engine, view = LoopEngine(build_model("mlp", (1, 12, 12), 5, seed=1)), federation()
    expected = trained(engine, view)
    found = trained(copied(engine), view)
    for key, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[key], tensor)


def test_threads_take_turns() -> None:
    engine, view = LoopEngine(build_model("mlp", (1, 12, 12), 5, seed=1)), federation()
    assert engine._chain is not None
    rule, shape, start = LossRule(Sgd(0.05, 0.9)), (16, 1, 12, 12), engine.initial().row(0)
    batches = [list(engine._batches(view.cohort([k]).data(k, "train"), TRAINING, Key(1, 2), k)) for k in range(4)]
    epochs = [[list(epoch) for epoch in found] for found in batches]
    assert engine._chain.takes(rule, shape)
    expected = [engine._chain.train(start, found, rule, {}, False) for found in epochs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: engine._chain.train(start, epochs[k % 4], rule, {}, False), range(24)))  # type: ignore[union-attr]
    for k, one in enumerate(found):
        assert all(torch.equal(tensor, expected[k % 4][key]) for key, tensor in one.items())


def test_a_forward_that_was_replaced_is_run() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    engine, seen = LoopEngine(model), list[int]()
    whole = model[1].forward
    model[1].forward = lambda x: (seen.append(len(x)), whole(x))[1]  # type: ignore[func-returns-value]
    trained(engine, federation(sizes=(20,)))
    assert sorted(seen) == [4, 4, 16, 16]


def test_a_step_leaves_the_initial_model_as_it_is() -> None:
    engine = LoopEngine(build_model("resnet9", (3, 16, 16), 5, seed=1))
    before = {name: tensor.clone() for name, tensor in engine.initial().tensors.items()}
    engine.step(Batch(torch.randn(4, 3, 16, 16), torch.arange(4), torch.arange(4)), LossRule(Sgd(0.1, 0.9)))
    for name, tensor in engine.initial().tensors.items():
        assert torch.equal(tensor, before[name])


def test_two_parameter_sets_need_a_rule_for_two() -> None:
    engine, view = LoopEngine(build_model("mlp", (1, 12, 12), 5, seed=1)), federation()
    with pytest.raises(ValueError, match="unpack"):
        engine.train(engine.initial().take([0, 0]), view.cohort([0]), [Job(0, (0, 1))], TRAINING, Key(1, 2))


def test_images_with_odd_sides_go_the_ordinary_way() -> None:
    model = nn.Sequential(*pooling(), nn.Flatten(), nn.Linear(4 * 25, 5)).double()
    view, engine = federation((1, 13, 13)), LoopEngine(model)
    assert engine._chain is not None
    ours, theirs = trained(engine, view), trained(engine, view, by_autograd())
    for key, tensor in theirs.tensors.items():
        assert torch.equal(ours.tensors[key], tensor)


def test_who_looks_on_sees_every_batch() -> None:
    model = build_model("mlp", (1, 12, 12), 5, seed=1)
    engine, seen = LoopEngine(model), list[int]()
    handle = model.classifier.register_forward_hook(lambda _, x, y: seen.append(len(y)))  # type: ignore[union-attr]
    trained(engine, federation(sizes=(20,)))
    assert sorted(seen) == [4, 4, 16, 16]
    handle.remove()
    trained(engine, federation(sizes=(20,)))
    assert len(seen) == 4
    everywhere = register_module_forward_hook(lambda *_: seen.append(0))
    try:
        trained(engine, federation(sizes=(20,)))
    finally:
        everywhere.remove()
    assert len(seen) > 4


def test_training_that_leaves_the_finite_numbers_stops() -> None:
    engine = LoopEngine(build_model("mlp", (1, 12, 12), 5, seed=1))
    with pytest.raises(RuntimeError, match="client 0 diverged in round 2"):
        trained(engine, federation(), training=replace(TRAINING, lr=1e30))


class NoLatents(MLP):
    def __init__(self) -> None:
        super().__init__((1, 12, 12), 5)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(144, 64))
        self.classifier = nn.Sequential(nn.ReLU(), nn.Linear(64, 5))


@pytest.mark.parametrize("examples", [1, 64, 150])
@pytest.mark.parametrize(
    ("make", "shape", "inside"),
    [
        (lambda: build_model("lenet5", (3, 16, 16), 5, seed=1), (3, 16, 16), True),
        (lambda: build_model("mlp", (1, 12, 12), 5, seed=1), (1, 12, 12), True),
        (Backwards, (1, 12, 12), True),
        (NoLatents, (1, 12, 12), False),  # its latents lie between a linear layer and its ReLU
        (CHAINS["named"][0], (1, 12, 12), False),
    ],
)
def test_latents_are_the_encoders(
    make: Callable[[], nn.Module], shape: tuple[int, int, int], inside: bool, examples: int
) -> None:
    model = make().double()
    engine = LoopEngine(model)
    assert engine._chain is not None
    assert engine._chain.encodes((64, *shape)) == inside
    other = {name: 2 * tensor for name, tensor in engine.initial().row(0).items()}
    data = Features(torch.randint(0, 256, (examples, *shape), dtype=torch.uint8))
    found = torch.cat(engine._latents_of(other, data))
    model.load_state_dict(other)
    with torch.no_grad():
        torch.testing.assert_close(found, model.encode(engine._images(data.x)))  # type: ignore[operator]


def test_latents_of_single_examples_are_kept_apart() -> None:
    model = build_model("lenet5", (1, 28, 28), 5, seed=1).double()
    engine = LoopEngine(model)
    assert engine._chain is not None
    images = [torch.randint(0, 256, (1, 1, 28, 28), dtype=torch.uint8) for _ in range(3)]
    found = [engine._latents_of(engine.initial().row(0), Features(x))[0] for x in images]
    with torch.no_grad():
        for latents, x in zip(found, images, strict=True):
            torch.testing.assert_close(latents, model.encode(engine._images(x)))  # type: ignore[operator]
