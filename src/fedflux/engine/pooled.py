"""Convolution, ReLU and 2×2 average pooling as one matrix product.

A library convolution with six output channels leaves most of a vector or matrix unit idle, and mapped over clients it
becomes a grouped one, which is worse; pooling goes pixel by pixel.
Here the four outputs under one pooling window are four groups of channels of one convolution with stride 2 and a kernel
one wider: a product with four times as many rows, then a ReLU, then the sum of four blocks that lie one after another.
The quarter of the mean is in the kernels, where it costs nothing: it is a power of two, so all numbers stay the same.
Examples are the innermost axis, so that every copy and sum runs over consecutive numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad


@dataclass(frozen=True, eq=False)
class Places:
    """Which weight each entry of the wide kernels is (one past the last: none), and where each weight's four are."""

    wide: Tensor
    narrow: Tensor
    padding: int

    @staticmethod
    def of(conv: nn.Conv2d) -> "Places":
        """Of a square convolution."""
        outputs, channels, side, _ = conv.weight.shape
        count = outputs * channels * side * side
        wide = torch.full((2, 2, outputs, channels, side + 1, side + 1), count)
        own = torch.arange(count).view(outputs, channels, side, side)
        for i, j in product((0, 1), repeat=2):
            wide[i, j, :, :, i : i + side, j : j + side] = own
        order = wide.flatten().argsort(stable=True)[: 4 * count]
        return Places(wide.flatten(), order.view(count, 4).t().flatten(), int(conv.padding[0]))

    def to(self, device: torch.device) -> "Places":
        """The same places on a device."""
        return Places(self.wide.to(device), self.narrow.to(device), self.padding)


@dataclass(frozen=True, eq=False)
class Left:
    """What the gradients of one layer need of its forward pass."""

    windows: Tensor
    wide: Tensor
    out: Tensor


def pooled(x: Tensor, weight: Tensor, bias: Tensor, places: Places) -> tuple[Tensor, Left]:
    """(channels, height, width, examples) → (channels out, height / 2, width / 2, examples), and what it leaves."""
    if places.padding:
        x = pad(x, (0, 0, places.padding, places.padding, places.padding, places.padding))
    outputs, side = weight.shape[0], weight.shape[2]
    windows = _windows(x, side + 1)
    wide = torch.cat([weight.flatten() * 0.25, weight.new_zeros(1)]).index_select(0, places.wide).view(4 * outputs, -1)
    quarter = bias * 0.25
    out = torch.addmm(torch.cat([quarter, quarter, quarter, quarter]).unsqueeze(1), wide, windows).relu_()
    height, width = (x.shape[1] - side + 1) // 2, (x.shape[2] - side + 1) // 2
    four = out.view(4, outputs, height, width, x.shape[3])
    if x.is_cuda:
        return four.sum(dim=0, dtype=out.dtype), Left(windows, wide, out)  # autocast would widen it
    a, b, c, d = four.unbind(0)
    return (a + b).add_(c).add_(d), Left(windows, wide, out)


def pooled_gradients(
    gradient: Tensor, left: Left, weight: Sequence[int], places: Places, image: Sequence[int] | None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Of the input, where its shape `image` is given, and of the weight, whose shape is `weight`, and the bias."""
    outputs, channels, side, _ = weight
    share = gradient.reshape(1, outputs, -1).expand(4, -1, -1)
    inner = torch.ops.aten.threshold_backward(share, left.out.view(4, outputs, -1), 0).view(4 * outputs, -1)
    of_wide = (inner @ left.windows.t()).flatten().index_select(0, places.narrow)
    of_weight = of_wide.view(4, -1).sum(dim=0).mul_(0.25).view(outputs, channels, side, side)
    of_bias = inner.sum(dim=1).view(4, outputs).sum(dim=0).mul_(0.25)
    if image is None:
        return None, of_weight, of_bias
    around, (height, width) = places.padding, gradient.shape[1:3]
    spread = (left.wide.t() @ inner).view(channels, side + 1, side + 1, height, width, image[3])
    of_input = _back(spread, (channels, image[1] + 2 * around, image[2] + 2 * around, image[3]))
    return of_input[:, around : around + image[1], around : around + image[2]], of_weight, of_bias


class PoolingRun(torch.autograd.Function):
    """A run of such layers for one client alone: (images, places of each, weight and bias of each) → images.

    One entry of the tape, which cannot be mapped but skips what mapping would need: a tenth of a step of LeNet-5.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: tuple[Places, ...], *tensors: Tensor) -> Tensor:
        """Examples are the innermost axis from the first layer to the last."""
        x = x.permute(1, 2, 3, 0)
        if not places[0].padding:  # which copies anyway
            x = x.contiguous()
        kept: list[tuple[Left, tuple[int, ...], tuple[int, ...], Places]] = []
        for one, weight, bias in zip(places, tensors[::2], tensors[1::2], strict=True):
            image = tuple(x.shape)
            x, left = pooled(x, weight, bias, one)
            kept.append((left, image, tuple(weight.shape), one))
        ctx.kept = kept
        return x.permute(3, 0, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The images' gradient is only made where it is asked for."""
        of: Tensor | None = gradient.permute(1, 2, 3, 0)
        found: list[Tensor] = []
        for k, (left, image, weight, places) in reversed(list(enumerate(ctx.kept))):
            assert of is not None
            needed = image if k or ctx.needs_input_grad[0] else None
            of, of_weight, of_bias = pooled_gradients(of, left, weight, places, needed)
            found = [of_weight, of_bias, *found]
        return of if of is None else of.permute(3, 0, 1, 2), None, *found


class MappedPooling(torch.autograd.Function):
    """One such layer in a form that can be mapped over clients. Gradients of first order only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, padding: int, wide: Tensor, narrow: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The pooled images, and what their gradients need."""
        found, left = pooled(x, weight, bias, Places(wide, narrow, padding))
        return found, left.windows, left.wide, left.out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the gradients need."""
        x, weight, _, padding, wide_places, narrow_places = inputs
        _, windows, wide, out = output
        ctx.mark_non_differentiable(windows, wide, out)
        ctx.set_materialize_grads(False)  # or zeros would be made for these three
        ctx.save_for_backward(windows, wide, out, wide_places, narrow_places)
        ctx.shapes = x.shape, weight.shape
        ctx.padding = padding

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Of the images, the weight and the bias."""
        windows, wide, out, wide_places, narrow_places = ctx.saved_tensors
        image, weight = ctx.shapes
        places = Places(wide_places, narrow_places, ctx.padding)
        needed = image if ctx.needs_input_grad[0] else None
        return *pooled_gradients(gradient, Left(windows, wide, out), weight, places, needed), None, None, None


def _windows(x: Tensor, side: int) -> Tensor:
    """Every other window of a padded image as a column: (channels · side², height · width · examples)."""
    view = x.unfold(1, side, 2).unfold(2, side, 2).permute(0, 4, 5, 1, 2, 3)
    return view.reshape(x.shape[0] * side * side, -1)


def _back(spread: Tensor, shape: Sequence[int]) -> Tensor:
    """The transpose of `_windows`, one image axis after the other: first the one with longer stretches in memory."""
    channels, side, _, down, right, examples = spread.shape
    rows = spread.new_zeros(channels, side, shape[1], right, examples)
    for i in range(side):
        rows[:, :, i : i + 2 * down - 1 : 2].add_(spread[:, i])
    image = spread.new_zeros(shape)
    for j in range(side):
        image[:, :, j : j + 2 * right - 1 : 2].add_(rows[:, j])
    return image
