"""Convolution, ReLU and 2×2 average pooling as one matrix product.

A library convolution with six output channels leaves most of a vector or matrix unit idle, and mapped over clients it
becomes a grouped one, which is worse; pooling goes pixel by pixel.
Here the four outputs under one pooling window are four groups of channels of one convolution with stride 2 and a kernel
one wider: a product with four times as many rows, then a ReLU, then the mean of four blocks that lie one after another.
Examples are the innermost axis, so that every copy and sum runs over consecutive numbers.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad


def with_fused_pooling(model: nn.Module) -> nn.Module:
    """A copy of the model, under the same names, whose convolutions followed by ReLU and pooling are fused.

    The model itself comes back where there is nothing to fuse.
    """
    if not any(_starts(module) for module in model.modules() if type(module) is nn.Sequential):
        return model
    fused = deepcopy(model)
    for parent in list(fused.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Sequential and _starts(child):
                setattr(parent, name, _FusedSequential(child))
    return fused


class _FusedSequential(nn.Sequential):
    """The layers of a Sequential, with those that can be fused run together."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self._modules = layers._modules
        self._fused = {k: _Places.of(conv) for k, conv in enumerate(layers) if k in _starts(layers)}
        self.train(layers.training)

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers as layer by layer, up to rounding."""
        layers, k = list(self), 0
        while k < len(layers):
            if k in self._fused:
                x = x.permute(1, 2, 3, 0).contiguous()  # examples last, until the run of fused layers ends
                while k in self._fused:
                    x = _run(layers[k], self._fused[k], x)
                    k += 3
                x = x.permute(3, 0, 1, 2)
            else:
                x = layers[k](x)
                k += 1
        return x

    def _apply(self, fn: Any, recurse: bool = True) -> "_FusedSequential":
        """Moved to a device, the places go along."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = next(self.parameters()).device
        self._fused = {k: places.to(device) for k, places in self._fused.items()}
        return self


def _run(conv: nn.Module, places: "_Places", x: Tensor) -> Tensor:
    """A convolution with its ReLU and pooling; examples are the last axis."""
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    padding, side = int(conv.padding[0]), conv.kernel_size[0]
    if any((length + 2 * padding - side + 1) % 2 for length in x.shape[1:3]):  # the last pixels are not pooled
        return avg_pool2d(conv(x.permute(3, 0, 1, 2)).relu(), 2).permute(1, 2, 3, 0).contiguous()
    weight, bias = conv.weight, conv.bias
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    pooled: Tensor = _ConvReluPool.apply(x, weight, bias, padding, places.wide, places.narrow)[0]  # type: ignore[no-untyped-call]
    return pooled


@dataclass(frozen=True, eq=False)
class _Places:
    """Which weight each entry of the wide kernels is (one past the last: none), and where each weight's four are."""

    wide: Tensor
    narrow: Tensor

    @staticmethod
    def of(conv: nn.Module) -> "_Places":
        assert isinstance(conv, nn.Conv2d)
        outputs, channels, side, _ = conv.weight.shape
        count = outputs * channels * side * side
        wide = torch.full((2, 2, outputs, channels, side + 1, side + 1), count)
        own = torch.arange(count).view(outputs, channels, side, side)
        for i, j in product((0, 1), repeat=2):
            wide[i, j, :, :, i : i + side, j : j + side] = own
        order = wide.flatten().argsort(stable=True)[: 4 * count]
        return _Places(wide.view(4 * outputs, -1), order.view(count, 4).t().contiguous())

    def to(self, device: torch.device) -> "_Places":
        return _Places(self.wide.to(device), self.narrow.to(device))


def _starts(layers: nn.Sequential) -> frozenset[int]:
    """Where a convolution, a ReLU and a 2×2 average pooling follow each other."""
    kinds = list(layers)
    triples = zip(kinds, kinds[1:], kinds[2:], strict=False)
    return frozenset(k for k, (a, b, c) in enumerate(triples) if _plain(a) and type(b) is nn.ReLU and _pools(c))


def _plain(layer: nn.Module) -> bool:
    """An ordinary square convolution with a bias, padded with zeros."""
    return (
        type(layer) is nn.Conv2d
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.bias is not None
        and not isinstance(layer.padding, str)
        and layer.padding[0] == layer.padding[1]
        and layer.kernel_size[0] == layer.kernel_size[1]
    )


def _pools(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.AvgPool2d
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.divisor_override is None
    )


class _ConvReluPool(torch.autograd.Function):
    """(channels, height, width, examples) → (channels out, height / 2, width / 2, examples), and what gradients need.

    Written in operations that can be mapped over clients. Gradients of first order only.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, padding: int, wide_places: Tensor, narrow_places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if padding:
            x = pad(x, (0, 0, padding, padding, padding, padding))
        windows = _windows(x, weight.shape[2] + 1)
        wide = torch.cat([weight.flatten(), weight.new_zeros(1)])[wide_places]
        out = torch.addmm(bias.repeat(4)[:, None], wide, windows).relu_()
        height, width = _pooled(x.shape, weight.shape)
        four = out.view(4, weight.shape[0], height, width, x.shape[3])
        mean = four.mean(dim=0) if x.is_cuda else (four[0] + four[1]).add_(four[2]).add_(four[3]).mul_(0.25)
        return mean, windows, wide, out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, padding, _, narrow_places = inputs
        _, windows, wide, out = output
        ctx.mark_non_differentiable(windows, wide, out)
        ctx.set_materialize_grads(False)  # or zeros would be made for these three
        ctx.save_for_backward(windows, wide, out, narrow_places)
        ctx.shapes = ((x.shape[0], *(length + 2 * padding for length in x.shape[1:3]), x.shape[3]), weight.shape)
        ctx.padding = padding

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        windows, wide, out, narrow_places = ctx.saved_tensors
        shape, (outputs, channels, side, _) = ctx.shapes
        share = (gradient * 0.25).reshape(1, outputs, -1).expand(4, -1, -1)
        inner = torch.ops.aten.threshold_backward(share, out.view(4, outputs, -1), 0).view(4 * outputs, -1)
        of_weight = (inner @ windows.t()).flatten()[narrow_places].sum(dim=0).view(ctx.shapes[1])
        of_bias = inner.sum(dim=1).view(4, outputs).sum(dim=0)
        of_input = None
        if ctx.needs_input_grad[0]:
            height, width = _pooled(shape, ctx.shapes[1])
            spread = (wide.t() @ inner).view(channels, side + 1, side + 1, height, width, shape[3])
            of_input = _back(spread, shape)
            if ctx.padding:
                of_input = of_input[:, ctx.padding : -ctx.padding, ctx.padding : -ctx.padding]
        return of_input, of_weight, of_bias, None, None, None


def _pooled(image: Sequence[int], weight: Sequence[int]) -> tuple[int, int]:
    side = weight[2]
    return (image[1] - side + 1) // 2, (image[2] - side + 1) // 2


def _windows(x: Tensor, side: int) -> Tensor:
    """Every other window of a padded image as a column: (channels · side², height · width · examples)."""
    view = x.unfold(1, side, 2).unfold(2, side, 2).permute(0, 4, 5, 1, 2, 3)
    return view.reshape(x.shape[0] * side * side, -1)


def _back(spread: Tensor, shape: Sequence[int]) -> Tensor:
    """The transpose of `_windows`, one image axis after the other."""
    channels, side, _, down, right, examples = spread.shape
    rows = spread.new_zeros(channels, side, down, shape[2], examples)
    for j in range(side):
        rows[:, :, :, j : j + 2 * right - 1 : 2] += spread[:, :, j]
    image = spread.new_zeros(shape)
    for i in range(side):
        image[:, i : i + 2 * down - 1 : 2] += rows[:, i]
    return image
