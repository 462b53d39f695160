"""Layers that train in buffers made once: forward, backward and nothing in between.

Autograd, allocation and a hundred views a step take a third of the time of a small model's step on a CPU. Here a layer
is given its buffers and all views of them when it is made, for one number of examples. Examples are the innermost axis.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedflux.engine.pooled import Places

_masked = torch.ops.aten.threshold_backward.grad_input
"""(gradient, output of a ReLU, 0, where to): the gradient before the ReLU."""


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
    """Convolution, ReLU and 2×2 average pooling as one product (`engine/pooled.py`); (channels, h, w, examples)."""

    def __init__(self, weights: Weights, places: Places, shape: Sequence[int], exit: Tensor, first: bool) -> None:
        outputs, channels, side, _ = weights.weight.shape
        self._to, self._places, self._first = weights, places, first
        self._flat, self._of_flat = weights.weight.view(-1), weights.of_weight.view(-1)
        dtype, around, examples = self._flat.dtype, places.padding, shape[3]
        height, width = shape[1] + 2 * around, shape[2] + 2 * around
        down, right, wide = (height - side + 1) // 2, (width - side + 1) // 2, side + 1
        images = torch.zeros(channels, height, width, examples, dtype=dtype)  # the border stays zero
        self.entry = images[:, around : height - around, around : width - around]
        self._views = images.unfold(1, wide, 2).unfold(2, wide, 2).permute(0, 4, 5, 1, 2, 3)
        self._copies = torch.empty(self._views.shape, dtype=dtype)
        self._windows = self._copies.view(channels * wide * wide, -1)
        self._windows_back = self._windows.t()
        self._padded = torch.zeros(self._flat.numel() + 1, dtype=dtype)  # the last: where a wide kernel has no weight
        self._quarters = self._padded[:-1]
        self._wide = torch.empty(4 * outputs, len(self._windows), dtype=dtype)
        self._wide_flat, self._wide_back = self._wide.view(-1), self._wide.t()
        self._bias = torch.empty(4, outputs, dtype=dtype)
        self._bias_column = self._bias.view(-1, 1)
        self._out = torch.empty(4 * outputs, self._windows.shape[1], dtype=dtype)
        self._out_of_four = self._out.view(4, outputs, -1)
        self._of_wide = torch.empty_like(self._wide)
        self._of_wide_flat = self._of_wide.view(-1)
        self._of_four = torch.empty(4, self._flat.numel(), dtype=dtype)
        self._of_four_flat = self._of_four.view(-1)
        self._of_bias = torch.empty(4, outputs, dtype=dtype)
        self._of_bias_flat = self._of_bias.view(-1)
        self._exit = exit
        self._blocks = self._out.view(4, outputs, down, right, examples).unbind(0)
        if not first:
            spread = self._copies
            self._rows = torch.empty(channels, wide, height, right, examples, dtype=dtype)
            self._image = torch.empty_like(images)
            self._of_entry = self._image[:, around : height - around, around : width - around]
            down_by_down = [(self._rows[:, :, i : i + 2 * down - 1 : 2], spread[:, i]) for i in range(wide)]
            across = [(self._image[:, :, j : j + 2 * right - 1 : 2], self._rows[:, j]) for j in range(wide)]
            # the first two of each fill all but the end, every other place each
            self._back = (down_by_down, self._rows[:, :, 2 * down :]), (across, self._image[:, :, 2 * right :])

    def forward(self) -> None:
        """The wide kernels from the weights, the windows from the images, their product, ReLU, the sum of four."""
        torch.mul(self._flat, 0.25, out=self._quarters)
        torch.index_select(self._padded, 0, self._places.wide, out=self._wide_flat)
        self._bias.copy_(self._to.bias).mul_(0.25)
        self._copies.copy_(self._views)
        torch.addmm(self._bias_column, self._wide, self._windows, out=self._out).relu_()
        a, b, c, d = self._blocks
        torch.add(a, b, out=self._exit).add_(c).add_(d)

    def backward(self, gradient: Tensor) -> Tensor:
        """As `pooled_gradients`."""
        share = gradient.reshape(1, len(self._to.bias), -1).expand(4, -1, -1)
        _masked(share, self._out_of_four, 0, grad_input=self._out_of_four)  # what came out was needed for its signs
        torch.mm(self._out, self._windows_back, out=self._of_wide)
        torch.index_select(self._of_wide_flat, 0, self._places.narrow, out=self._of_four_flat)
        torch.sum(self._of_four, 0, out=self._of_flat).mul_(0.25)
        torch.sum(self._out, 1, out=self._of_bias_flat)
        torch.sum(self._of_bias, 0, out=self._to.of_bias).mul_(0.25)
        if self._first:
            return gradient
        torch.mm(self._wide_back, self._out, out=self._windows)  # which have served
        for pairs, end in self._back:
            end.zero_()
            for k, (place, part) in enumerate(pairs):
                place.copy_(part) if k < 2 else place.add_(part)
        return self._of_entry
