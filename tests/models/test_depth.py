"""Which layer of a model is its last: the one that answers come from, whatever the order of registration."""

import pytest
import torch
from torch import Tensor, nn

from fedflux.models import MLP, LeNet5, NamedEncoder, ResNet9
from fedflux.models.depth import head_names, layers_by_depth

GREY, COLOUR, SMALL = (1, 28, 28), (3, 32, 32), (1, 8, 8)


class Backwards(nn.Module):
    """Layers are registered from the last to the first, with one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.answer, self.norm, self.first = nn.Linear(4, 3), nn.BatchNorm1d(4), nn.Linear(64, 4)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.answer(self.norm(self.first(x.flatten(1))))
        return logits


class Named(Backwards):
    encoder = "norm"


def test_the_head_of_lenet5_is_its_last_linear_layer() -> None:
    model = LeNet5(GREY, 10)
    last = [name for name, one in model.named_modules() if isinstance(one, nn.Linear)][-1]
    assert head_names(model, GREY) == head_names(model) == {f"{last}.weight", f"{last}.bias"}
    assert model.state_dict()[f"{last}.bias"].shape == (10,)


def test_every_tensor_is_of_one_layer() -> None:
    for model, shape in ((LeNet5(GREY, 10), GREY), (ResNet9(COLOUR, 10), COLOUR), (MLP(SMALL, 10), SMALL)):
        names = [name for layer in layers_by_depth(model, shape) for name in layer]
        assert sorted(names) == sorted(model.state_dict())


def test_layers_come_as_they_run_not_as_they_are_registered() -> None:
    model = Backwards()
    assert [layer[0].split(".")[0] for layer in layers_by_depth(model, SMALL)] == ["idle", "first", "norm", "answer"]
    assert [layer[0].split(".")[0] for layer in layers_by_depth(model)] == ["answer", "norm", "first", "idle"]
    assert head_names(model, SMALL) == {"answer.weight", "answer.bias"}
    assert head_names(model) == {"idle.weight", "idle.bias"}


def test_what_resnet9_collects_is_of_the_trunk() -> None:
    model = ResNet9(COLOUR, 10)
    head = head_names(model, COLOUR)
    collected = {name for name, _ in model.named_buffers()}
    assert any(name.endswith("running_var") for name in collected)
    assert not head & collected
    assert sorted(model.state_dict()[name].shape[0] for name in head) == [10] * len(head)


@pytest.mark.parametrize("training", [False, True])
def test_looking_leaves_the_model_as_it_was(training: bool) -> None:
    model = Backwards().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    head_names(model, SMALL)
    assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(one._forward_hooks for one in model.modules())


def test_a_model_that_names_its_encoder_has_the_head_of_the_module_inside() -> None:
    wrapped = NamedEncoder(Named(), "norm")
    assert head_names(wrapped, SMALL) == {"module.answer.weight", "module.answer.bias"}


def test_a_layer_that_is_not_trained_is_no_head() -> None:
    model = Backwards()
    model.answer.requires_grad_(False)
    assert head_names(model, SMALL) == {name for name in model.state_dict() if name.startswith("norm.")}
    assert head_names(model.requires_grad_(False), SMALL) == frozenset()
