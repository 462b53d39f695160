"""Layers that run together: which ones of a model can, and a copy of the model in which they do."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fedflux.engine.kernels.pooled import Places, PoolingRun


def with_fused_layers(model: nn.Module) -> nn.Module:
    """A copy of the model, under the same names, whose convolutions followed by ReLU and 2×2 average pooling are fused.

    The model itself comes back where there is nothing to fuse.
    """
    if not any(_runs(module) for module in model.modules() if type(module) is nn.Sequential):
        return model
    fused = deepcopy(model)
    for module in fused.modules():
        if type(module) is nn.Sequential and (runs := _runs(module)):
            module.__class__ = _FusedSequential  # all else that it holds stays: hooks, buffers, attributes
            cast(_FusedSequential, module)._runs = runs
    return fused


class _FusedSequential(nn.Sequential):
    """The layers of a Sequential, with those that can be fused run together."""

    _runs: "Mapping[int, _Run]" = MappingProxyType({})  # a slice, which torch makes of our class, has none

    def forward(self, x: Tensor) -> Tensor:
        """Run by run; layer by layer where somebody looks on."""
        layers = list(self)
        watched = looked_at(layers)
        k = 0
        while k < len(layers):
            run = None if watched else self._runs.get(k)
            together = None if run is None else run(layers[k : k + run.length], x)
            if run is None or together is None:
                x = layers[k](x)
                k += 1
            else:
                x = together
                k += run.length
        return x

    def _apply(self, fn: Any, recurse: bool = True) -> "_FusedSequential":
        """Moved to a device, the places go along."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._runs:
            device = next(self.parameters()).device
            self._runs = {k: run.to(device) for k, run in self._runs.items()}
        return self


@dataclass(frozen=True, eq=False)
class _Run:
    """Convolutions, each with a ReLU and a pooling, that follow each other in a Sequential."""

    places: tuple[Places, ...]

    @property
    def length(self) -> int:
        return 3 * len(self.places)

    def __call__(self, layers: list[Any], x: Tensor) -> Tensor | None:
        """What these layers make of x; None where x is not what they can run together."""
        convolutions = layers[::3]
        if x.ndim != 4 or not pools_all(convolutions, x.shape[2:]):
            return None
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        tensors: list[Tensor] = []
        for conv, at in zip(convolutions, self.places, strict=True):
            tensors += conv.weight.to(dtype), conv.bias.to(dtype), at.wide, at.narrow
        paddings = tuple(at.padding for at in self.places)
        images = x.to(dtype).permute(1, 2, 3, 0)
        if not paddings[0]:  # padding copies anyway
            images = images.contiguous()
        found: Tensor = PoolingRun.apply(images, paddings, *tensors)[0]  # type: ignore[no-untyped-call]
        return found.permute(3, 0, 1, 2)

    def to(self, device: torch.device) -> "_Run":
        return _Run(tuple(places.to(device) for places in self.places))


def looked_at(modules: Iterable[nn.Module]) -> bool:
    """Whether somebody looks on: at one of these, or at all modules that there are."""
    return bool(_has_any_global_hook()) or any(  # type: ignore[no-untyped-call]
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in modules
    )


def _runs(sequence: nn.Sequential) -> "dict[int, _Run]":
    """The runs of a Sequential by where they begin."""
    layers, found, k = list(sequence), {}, 0
    while k < len(layers):
        triples = [layers[at : at + 3] for at in range(k, len(layers), 3)]
        places = tuple(Places.of(cast(nn.Conv2d, conv)) for conv, _, _ in takewhile(pools, triples))
        if places:
            found[k] = _Run(places)
        k += max(1, 3 * len(places))
    return found


def pools(layers: list[nn.Module]) -> bool:
    """Whether these are an ordinary square convolution with a bias, padded with zeros, a ReLU and a 2×2 average."""
    if len(layers) < 3:
        return False
    conv, relu, pooling = layers
    return (
        type(conv) is nn.Conv2d
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and conv.bias is not None
        and not isinstance(conv.padding, str)
        and conv.padding[0] == conv.padding[1]
        and conv.kernel_size[0] == conv.kernel_size[1]
        and type(relu) is nn.ReLU
        and type(pooling) is nn.AvgPool2d
        and pooling.kernel_size in (2, (2, 2))
        and pooling.stride in (2, (2, 2))
        and pooling.padding in (0, (0, 0))
        and pooling.divisor_override is None
    )


def pools_all(convolutions: list[nn.Conv2d], size: tuple[int, ...]) -> bool:
    """Whether no layer leaves out a last row or column of pixels."""
    for conv in convolutions:
        size = tuple(length + 2 * int(conv.padding[0]) - conv.kernel_size[0] + 1 for length in size)
        if any(length % 2 or length <= 0 for length in size):
            return False
        size = tuple(length // 2 for length in size)
    return True
