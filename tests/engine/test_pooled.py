"""Convolution, ReLU and pooling in one product: the layers' numbers and gradients, and only where it applies."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedflux.engine.pooled import with_fused_pooling
from fedflux.models import build_model


def of_both(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients, of the model and of its fused copy."""
    y = torch.arange(len(x)) % 3
    found = []
    for one in (model, with_fused_pooling(model)):
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
    assert (with_fused_pooling(inside) is not inside) == fused
    for ours, theirs in zip(*of_both(inside, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_names_and_the_model_itself_stay() -> None:
    model = build_model("lenet5", (1, 28, 28), 10, seed=1)
    fused = with_fused_pooling(model)
    assert list(fused.state_dict()) == list(model.state_dict())
    assert type(model.features) is nn.Sequential
    assert all(a is not b for a, b in zip(model.parameters(), fused.parameters(), strict=True))
