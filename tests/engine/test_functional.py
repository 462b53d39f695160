"""Modules as functions of their tensors, against torch's own functional call."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedflux.engine.kernels.functional import Functional


class Normed(nn.Module):
    """BatchNorm changes its buffers in place; `calls` is exchanged for another tensor."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.out = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.out(self.encode(x))


class Tied(nn.Module):
    """One tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def encode(self, x: Tensor) -> Tensor:
        return self.a(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.encode(x))


def parameters(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {
        name: torch.rand(t.shape, generator=generator).requires_grad_()
        if name.endswith(("weight", "bias"))
        else t.clone()
        for name, t in model.state_dict().items()
    }


def test_outputs_gradients_and_buffers_are_torchs() -> None:
    model = Normed()
    before = copy.deepcopy(model.state_dict())
    x = torch.rand(8, 6)
    ours, theirs = parameters(model), parameters(model)
    found, expected = Functional(model).forward(ours, x), functional_call(model, theirs, (x,))
    assert torch.equal(found, expected)
    weights = ("body.0.weight", "body.1.bias", "out.weight")
    for mine, its in zip(
        torch.autograd.grad(found.sum(), [ours[n] for n in weights]),
        torch.autograd.grad(expected.sum(), [theirs[n] for n in weights]),
        strict=True,
    ):
        assert torch.equal(mine, its)
    assert ours["calls"] == 1
    for name in theirs:
        assert torch.equal(ours[name], theirs[name])
    for name, tensor in model.state_dict().items():  # the module itself is as it was
        assert torch.equal(tensor, before[name])
    assert isinstance(model.out.weight, nn.Parameter)


def test_latents_and_a_failing_model() -> None:
    model = Normed().eval()
    functional, params = Functional(model), parameters(model)
    x = torch.rand(8, 6)
    expected = (x @ params["body.0.weight"].T + params["body.0.bias"] - params["body.1.running_mean"]) / (
        params["body.1.running_var"] + 1e-5
    ).sqrt() * params["body.1.weight"] + params["body.1.bias"]
    torch.testing.assert_close(functional.encode(params, x), expected.relu())
    with pytest.raises(RuntimeError, match="shapes"):
        functional.forward(params, torch.rand(8, 7))
    assert isinstance(model.out.weight, nn.Parameter)


def test_tied_tensors_are_left_to_torch() -> None:
    model = Tied()
    weight = torch.rand(6, 6)
    params = {"a.weight": weight, "a.bias": torch.rand(6), "b.weight": weight, "b.bias": torch.rand(6)}
    x = torch.rand(4, 6)
    assert torch.equal(Functional(model).forward(params, x), functional_call(model, params, (x,)))
