"""Convolution, ReLU and 2×2 average pooling as one matrix product.

A library convolution with six output channels leaves most of a vector or matrix unit idle, and mapped over clients it
becomes a grouped one, which is worse; pooling goes pixel by pixel.
Here the four outputs under one pooling window are four groups of channels of one convolution with stride 2 and a kernel
one wider: a product with four times as many rows, then a ReLU, then the sum of four blocks that lie one after another.
The quarter of the mean is in the kernels, where it costs nothing: a power of two rounds nothing but subnormals.
Examples are the innermost axis, so that every copy and sum runs over consecutive numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
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


class Left(NamedTuple):
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
    gradient: Tensor, left: Left, weight: Sequence[int], places: Places, of_images: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Of the images, where they are asked for, of the weight, whose shape is given, and of the bias."""
    outputs, channels, side, _ = weight
    share = gradient.reshape(1, outputs, -1).expand(4, -1, -1)
    inner = torch.ops.aten.threshold_backward(share, left.out.view(4, outputs, -1), 0).view(4 * outputs, -1)
    of_wide = (inner @ left.windows.t()).flatten().index_select(0, places.narrow)
    of_weight = of_wide.view(4, -1).sum(dim=0).mul_(0.25).view(outputs, channels, side, side)
    of_bias = inner.sum(dim=1).view(4, outputs).sum(dim=0).mul_(0.25)
    if not of_images:
        return None, of_weight, of_bias
    height, width, examples = gradient.shape[1:]
    spread = (left.wide.t() @ inner).view(channels, side + 1, side + 1, height, width, examples)
    padded = _back(spread, (channels, 2 * height + side - 1, 2 * width + side - 1, examples))
    around = places.padding
    return (padded[:, around:-around, around:-around] if around else padded), of_weight, of_bias


class PoolingRun(torch.autograd.Function):
    """A run of such layers as one entry of the tape: (images, padding of each layer, tensors of all) → images, and what
    their gradients need. A layer's tensors are its weight, its bias, and its places, wide and narrow.

    It can be mapped over clients. Gradients of first order only.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, paddings: tuple[int, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Examples are the innermost axis from the first layer to the last."""
        kept: list[Tensor] = []
        for k, padding in enumerate(paddings):
            weight, bias, wide, narrow = tensors[4 * k : 4 * k + 4]
            x, left = pooled(x, weight, bias, Places(wide, narrow, padding))
            kept += left
        return x, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the gradients need."""
        _, paddings, *tensors = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros would be made for these
        ctx.save_for_backward(*output[1:], *tensors[2::4], *tensors[3::4])
        ctx.paddings, ctx.weights = paddings, [tuple(weight.shape) for weight in tensors[::4]]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The images' gradient is only made where it is asked for."""
        layers, saved = len(ctx.paddings), ctx.saved_tensors
        of: Tensor | None = gradient
        found: list[Tensor | None] = []
        for k in reversed(range(layers)):
            assert of is not None
            places = Places(saved[3 * layers + k], saved[4 * layers + k], ctx.paddings[k])
            left = Left(*saved[3 * k : 3 * k + 3])
            asked = k > 0 or ctx.needs_input_grad[0]
            of, of_weight, of_bias = pooled_gradients(of, left, ctx.weights[k], places, asked)
            found = [of_weight, of_bias, None, None, *found]
        return of, None, *found


# torch looks a forward's signature up at every call, and takes longer to find it than a small layer to run
PoolingRun.forward.__signature__ = signature(PoolingRun.forward)  # type: ignore[attr-defined]


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
