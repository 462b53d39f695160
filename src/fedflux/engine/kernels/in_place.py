"""Layers that train in buffers made once: forward, backward and nothing in between.

Autograd, allocation and a hundred views a step take a third of the time of a small model's step on a CPU. Here a layer
is given its buffers and all views of them when it is made, for one number of examples. Examples are the innermost axis.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_masked = torch.ops.aten.threshold_backward.grad_input
"""(gradient, output of a ReLU, 0, where to): the gradient before the ReLU."""
FEW = 512
"""A product with fewer results than this leaves the library's kernels half empty."""


class Weights(NamedTuple):
    """A layer's tensors and where their gradients go."""

    weight: Tensor
    bias: Tensor
    of_weight: Tensor
    of_bias: Tensor


class Layer(Protocol):
    """One of a chain: reads `entry`, writes `exit`, which is the next one's entry."""

    entry: Tensor

    def forward(self) -> None:
        """From entry to exit."""

    def backward(self, gradient: Tensor) -> Tensor:
        """From the gradient of the exit to that of the entry; the weights' go to their places."""


class Linear:
    """y = W x + b, then a ReLU where there is one; (features, examples)."""

    def __init__(self, weights: Weights, entry: Tensor, exit: Tensor, relu: bool, first: bool) -> None:
        self.entry, self._exit, self._relu, self._first = entry, exit, relu, first
        self._to = weights
        self._bias = weights.bias.unsqueeze(1)
        self._back, self._examples = weights.weight.t(), entry.t()
        self._of_entry = torch.empty_like(entry)

    def forward(self) -> None:
        """One product."""
        out = torch.addmm(self._bias, self._to.weight, self.entry, out=self._exit)
        if self._relu:
            out.relu_()

    def backward(self, gradient: Tensor) -> Tensor:
        """Two products; one where nobody asks for the images' gradient."""
        if self._relu:
            _masked(gradient, self._exit, 0, grad_input=gradient)
        torch.mm(gradient, self._examples, out=self._to.of_weight)
        torch.sum(gradient, 1, out=self._to.of_bias)
        return gradient if self._first else torch.mm(self._back, gradient, out=self._of_entry)


class Pooled:
    """Convolution, ReLU and 2×2 average pooling; (channels, height, width, examples).

    As in `engine/pooled.py`, outputs under one pooling window are groups of channels of one kernel that is wider. Here
    only the two of a row are: a kernel of 5 × 5 is 5 high and 6 wide, twice. The image is laid out in strips, every row
    of it once for each column of that kernel. What an output row needs is then one stretch of memory, and the next
    row's begins one strip further: no row of the image is copied for each row of the kernel.
    """

    def __init__(self, weights: Weights, padding: int, shape: Sequence[int], exit: Tensor, first: bool) -> None:
        outputs, channels, side, _ = weights.weight.shape
        self._to, self._first, self._exit = weights, first, exit
        dtype, (_, height, width, examples) = weights.weight.dtype, shape
        images = torch.zeros(channels, height + 2 * padding, width + 2 * padding, examples, dtype=dtype)
        self.entry = images[:, padding : padding + height, padding : padding + width]  # the border stays zero
        self._views = images.unfold(2, side + 1, 2).permute(1, 0, 4, 2, 3)
        self._strips = torch.empty(self._views.shape, dtype=dtype)
        self._windows = _stretches(self._strips, side, 1)
        count, taps, numbers = self._windows.shape
        self._flat = weights.weight.view(-1)
        self._padded = torch.zeros(self._flat.numel() + 1, dtype=dtype)  # the last: where a kernel has no weight
        self._quarters = self._padded[:-1]
        self._entries = _entries(weights.weight.shape)
        kernel = torch.empty(2 * outputs, taps, dtype=dtype)
        self._kernel_flat, self._kernels = kernel.view(-1), kernel.expand(count, -1, -1)
        self._bias = torch.empty(2, outputs, dtype=dtype)
        self._biases = self._bias.view(-1, 1).expand(count, -1, numbers)
        self._out = torch.empty(count, 2 * outputs, numbers, dtype=dtype)
        four = self._out.view(count // 2, 2, 2, outputs, *exit.shape[2:]).permute(1, 2, 3, 0, 4, 5)
        self._four, self._blocks = four, [four[i, j] for i, j in product((0, 1), repeat=2)]

        at_once = 2 if kernel.numel() < FEW else 1  # one more row of the kernel is for nothing then
        self._outs = self._out.view(count // at_once, at_once * 2 * outputs, numbers)
        self._windows_back = _stretches(self._strips, side, at_once).transpose(1, 2)
        self._of_kernels = torch.empty(len(self._outs), self._outs.shape[1], self._windows_back.shape[2], dtype=dtype)
        self._of_kernel = torch.empty(self._of_kernels.shape[1:], dtype=dtype)
        self._of_kernel_flat = self._of_kernel.view(-1)
        self._places = _places(weights.weight.shape, at_once)
        self._of_places = torch.empty(2 * at_once, self._flat.numel(), dtype=dtype)
        self._of_places_flat, self._of_flat = self._of_places.view(-1), weights.of_weight.view(-1)
        self._of_bias = torch.empty(2 * outputs, dtype=dtype)
        if not first:
            self._kernel_back = kernel.t()
            steps = list(zip(self._windows, self._out, strict=True))
            self._apart, self._over = steps[::side], [step for k, step in enumerate(steps) if k % side]
            self._rest = self._strips[side * len(self._apart) :]
            image, right = torch.empty_like(images), exit.shape[2]
            self._of_entry = image[:, padding : padding + height, padding : padding + width]
            columns = self._strips.permute(2, 1, 0, 3, 4)
            self._across = [(image[:, :, j : j + 2 * right - 1 : 2], columns[j]) for j in range(side + 1)]
            self._end = image[:, :, 2 * right :]  # the first two columns of the kernel fill all before it

    def forward(self) -> None:
        """The kernel from the weights, the strips from the images, their products, ReLU, the sum of four."""
        torch.mul(self._flat, 0.25, out=self._quarters)
        torch.index_select(self._padded, 0, self._entries, out=self._kernel_flat)
        self._bias.copy_(self._to.bias).mul_(0.25)
        self._strips.copy_(self._views)
        torch.baddbmm(self._biases, self._kernels, self._windows, out=self._out).relu_()
        a, b, c, d = self._blocks
        torch.add(a, b, out=self._exit).add_(c).add_(d)

    def backward(self, gradient: Tensor) -> Tensor:
        """As `pooled_gradients`."""
        share = gradient.view(self._exit.shape).expand_as(self._four)
        _masked(share, self._four, 0, grad_input=self._four)  # what came out was needed for its signs
        torch.bmm(self._outs, self._windows_back, out=self._of_kernels)
        torch.sum(self._of_kernels, 0, out=self._of_kernel)
        torch.index_select(self._of_kernel_flat, 0, self._places, out=self._of_places_flat)
        torch.sum(self._of_places, 0, out=self._of_flat).mul_(0.25)
        torch.sum(self._out, (0, 2), out=self._of_bias)
        torch.sum(self._of_bias.view(2, -1), 0, out=self._to.of_bias).mul_(0.25)
        if self._first:
            return gradient
        for rows, out in self._apart:  # the strips have served: they take their own gradient
            torch.mm(self._kernel_back, out, out=rows)
        self._rest.zero_()
        for rows, out in self._over:
            rows.addmm_(self._kernel_back, out)
        self._end.zero_()
        for k, (place, part) in enumerate(self._across):
            place.copy_(part) if k < 2 else place.add_(part)
        return self._of_entry


def _stretches(strips: Tensor, side: int, at_once: int) -> Tensor:
    """What so many output rows at once need of the strips, for all of them; they overlap in memory."""
    rows, channels, wide, right, examples = strips.shape
    numbers = right * examples
    size = ((rows - side + 1) // at_once, (side + at_once - 1) * channels * wide, numbers)
    return strips.as_strided(size, (at_once * channels * wide * numbers, numbers, 1))


def _entries(shape: Sequence[int]) -> Tensor:
    """Which weight each entry of the kernel (output in a pair, channel out, row, channel, column) is, if any."""
    outputs, channels, side, _ = shape
    count = outputs * channels * side * side
    own = torch.arange(count).view(outputs, channels, side, side).transpose(1, 2)
    entries = torch.full((2, outputs, side, channels, side + 1), count)
    for j in (0, 1):
        entries[j, ..., j : j + side] = own
    return entries.flatten()


def _places(shape: Sequence[int], at_once: int) -> Tensor:
    """Where each weight is in the kernels of so many output rows, the one of each output after another."""
    outputs, channels, side, _ = shape
    size = (at_once, 2, outputs, side + at_once - 1, channels, side + 1)
    every = torch.arange(torch.Size(size).numel()).view(size)
    found = [every[i, j, :, i : i + side, :, j : j + side] for i, j in product(range(at_once), (0, 1))]
    return torch.stack(found).transpose(2, 3).flatten()
