"""A model's tensors in the order of depth: which layers come first, and which one gives the answer."""

from collections.abc import Sequence

import torch
from torch import nn

from fedflux.models.protocol import blank


def layers_by_depth(
    module: nn.Module, input_shape: Sequence[int] | None = None, integers: bool = False
) -> list[tuple[str, ...]]:
    """The names of a model's tensors, buffers among them, layer by layer.

    A layer is a submodule with tensors of its own. Layers are ordered by when they first finish in a forward pass of a
    blank input; without an input's shape, as they are registered. Layers that the pass does not reach come first.
    """
    tensors: dict[str, list[str]] = {owner: [] for owner, _ in module.named_modules()}
    for name in module.state_dict():
        tensors[name.rpartition(".")[0]].append(name)
    order = [owner for owner in tensors if tensors[owner]]
    if input_shape is not None:
        reached = _reached(module, order, input_shape, integers)
        order = [owner for owner in order if owner not in reached] + reached
    return [tuple(tensors[owner]) for owner in order]


def head_names(module: nn.Module, input_shape: Sequence[int] | None = None, integers: bool = False) -> frozenset[str]:
    """The tensors of the last layer that is trained; those of all other layers are the trunk."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for layer in reversed(layers_by_depth(module, input_shape, integers)):
        if trained.intersection(layer):
            return frozenset(layer)
    return frozenset()


def _reached(module: nn.Module, owners: Sequence[str], input_shape: Sequence[int], integers: bool = False) -> list[str]:
    """The submodules in the order in which they first finish."""
    found: list[str] = []
    handles = []
    for owner in owners:

        def finished(*_: object, owner: str = owner) -> None:
            if owner not in found:
                found.append(owner)

        handles.append(module.get_submodule(owner).register_forward_hook(finished))
    was_training = module.training
    module.eval()
    try:
        first = next(module.parameters())
        with torch.no_grad():
            inputs = blank(2, input_shape, integers).to(first.device)
            module(inputs if integers else inputs.to(first.dtype))
    finally:
        module.train(was_training)
        for handle in handles:
            handle.remove()
    return found
