"""Layers run together: the same numbers and gradients, and only where it applies."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook

from fedflux.data import Features
from fedflux.engine import LoopEngine
from fedflux.engine.kernels.fused import with_fused_layers
from fedflux.models import build_model
from fedflux.models.protocol import NamedEncoder


class Collect:
    """The latents themselves."""

    def add(self, so_far: Tensor | None, latents: Tensor, labels: Tensor | None) -> Tensor:
        return latents if so_far is None else torch.cat([so_far, latents])


def of_both(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients, of the model and of its fused copy."""
    y = torch.arange(len(x)) % 3
    found = []
    for one in (model, with_fused_layers(model)):
        own = x.clone().requires_grad_()
        logits = one(own)
        loss = cross_entropy(logits, y)
        found.append([logits, *torch.autograd.grad(loss, [own, *one.parameters()])])
    return found[0], found[1]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 12, 18)])
@pytest.mark.parametrize("examples", [1, 7])
def test_lenet5_in_float64(shape: tuple[int, int, int], examples: int) -> None:
    model = build_model("lenet5", shape, 3, seed=1).double()
    x = torch.randn(examples, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ours, theirs in zip(*of_both(model, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def layers(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(*more, nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("model", "fused"),
    [
        (layers(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2)), True),
        (layers(nn.Conv2d(2, 4, 4, padding=1), nn.ReLU(), nn.AvgPool2d(2)), True),  # odd outputs: layer by layer
        (layers(nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Tanh()), True),
        (layers(nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.AvgPool2d(2)), False),
        (layers(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2)), False),
        (layers(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.AvgPool2d(2)), False),
        (layers(nn.Conv2d(2, 4, 3, padding="same"), nn.ReLU(), nn.AvgPool2d(2)), False),
        (layers(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(3)), False),
        (layers(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), False),
        (layers(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.AvgPool2d(2)), False),
    ],
)
def test_other_layers_are_left_as_they_are(model: nn.Sequential, fused: bool) -> None:
    x = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = model.double()
    model(x)
    inside = nn.Sequential(model)
    assert (with_fused_layers(inside) is not inside) == fused
    for ours, theirs in zip(*of_both(inside, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_names_and_the_model_itself_stay() -> None:
    model = build_model("lenet5", (1, 28, 28), 10, seed=1)
    fused = with_fused_layers(model)
    assert list(fused.state_dict()) == list(model.state_dict())
    assert type(model.features) is nn.Sequential
    assert all(a is not b for a, b in zip(model.parameters(), fused.parameters(), strict=True))


def test_frozen_layers_get_no_gradient_and_the_others_theirs() -> None:
    model = build_model("lenet5", (1, 12, 12), 3, seed=1).double()
    x = torch.randn(4, 1, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for one in (model, with_fused_layers(model)):
        for parameter in one.features.parameters():  # type: ignore[union-attr]
            parameter.requires_grad_(False)
        one(x).square().sum().backward()
        found.append([parameter.grad for parameter in one.parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("encoder", ["net.1", "net.2", "net.5"])
def test_a_layer_inside_a_run_can_be_the_encoder(encoder: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(50, 4), nn.ReLU())
    named = NamedEncoder(nn.Sequential(OrderedDict(net=net)), encoder)
    x = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    engine = LoopEngine(named)
    latents = engine.reduce(engine.initial(), [Features(x)], Collect())[0]
    torch.testing.assert_close(latents, named.encode((x - 0.5) / 0.5))


@pytest.mark.parametrize("after", [nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True)])
def test_what_follows_a_run_may_work_in_place(after: nn.Module) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2), after, nn.Flatten(), nn.Linear(36, 3)
    ).double()
    x = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ours, theirs in zip(*of_both(model, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_what_else_a_sequence_holds_stays() -> None:
    sequence = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.BatchNorm2d(2))
    sequence.register_buffer("scale", torch.tensor(2.0))
    sequence.register_forward_hook(lambda module, _, output: output * module.scale)
    sequence[3].eval()
    fused = with_fused_layers(sequence)
    assert list(fused.state_dict()) == list(sequence.state_dict())
    assert isinstance(fused, nn.Sequential)
    assert not fused[3].training
    x = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fused(x), sequence(x))
    torch.testing.assert_close(fused[:3](x), sequence[:3](x))
    torch.testing.assert_close(
        grad(lambda images: fused(images).sum())(x), grad(lambda images: sequence(images).sum())(x)
    )


def test_hooks_on_all_modules_see_every_layer() -> None:
    model = with_fused_layers(build_model("lenet5", (1, 28, 28), 3, seed=1))
    seen: list[str] = []
    handle = register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        model(torch.zeros(2, 1, 28, 28))
    finally:
        handle.remove()
    assert seen.count("Conv2d") == 2
