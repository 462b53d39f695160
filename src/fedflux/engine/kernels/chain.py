"""Models that are a chain of layers, trained without autograd: what `loop` and `processes` do on a CPU.

The same numbers as the default rule's, up to rounding, in about three quarters of the time. Any other model, any other
rule and any other device goes the ordinary way.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from threading import Lock
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.engine.kernels.fused import looked_at, pools, pools_all
from fedflux.engine.kernels.in_place import Layer, Linear, Pooled, Weights
from fedflux.engine.rules import Batch, Extras, LossRule, Rule
from fedflux.engine.stack import Parameters
from fedflux.engine.training import Adam, Optimiser, Sgd, rate_of, shortening
from fedflux.models.protocol import EncoderHead, NamedEncoder

ROOMS = 4
"""Sets of buffers kept: that of whole batches, and those of the last short ones."""
LARGEST = 2**24
"""Numbers in a set of buffers, by estimate; all sets kept hold at most twice as many. Larger ones gain nothing."""


ALL = "weights"
"""The name of all weights together, as an optimiser sees them."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Convolutions with their ReLUs and poolings, then linear layers, each with a ReLU or without."""

    model: nn.Module
    convolutions: tuple[tuple[str, nn.Conv2d], ...]
    linears: tuple[tuple[str, nn.Linear, bool], ...]

    @staticmethod
    def of(model: nn.Module) -> "Chain | None":
        """None where the model is anything else."""
        layers = list(_layers(model, ""))
        triples = [layers[at : at + 3] for at in range(0, len(layers), 3)]
        pooling = list(takewhile(lambda three: pools([layer for _, layer in three]), triples))
        rest = layers[3 * len(pooling) :]
        if not rest or not _flattens(rest.pop(0)[1]):
            return None
        linears: list[tuple[str, nn.Linear, bool]] = []
        for k, (name, layer) in enumerate(rest):
            if type(layer) is nn.Linear and layer.bias is not None:
                linears.append((name, layer, k + 1 < len(rest) and type(rest[k + 1][1]) is nn.ReLU))
            elif not (type(layer) is nn.ReLU and k and type(rest[k - 1][1]) is nn.Linear):
                return None
        first = tuple((name, cast(nn.Conv2d, layer)) for (name, layer), *_ in pooling)
        chain = Chain(model, first, tuple(linears))
        return chain if linears and chain._is_all() else None

    @property
    def names(self) -> list[str]:
        """Of its tensors, layer by layer."""
        layers = [name for name, *_ in (*self.convolutions, *self.linears)]
        return [f"{name}.{part}" for name in layers for part in ("weight", "bias")]

    @property
    def encoder(self) -> int | None:
        """How many of its layers make the latents; None where those lie between or behind its layers."""
        if not isinstance(self.model, EncoderHead):
            return None
        inside = [layer for _, layer in _layers(self.model.features, "")]
        (_, after), *_ = _layers(self.model.classifier, "")
        own = sum(type(layer) in (nn.Conv2d, nn.Linear) for layer in inside)
        return own if type(after) is nn.Linear and any(map(_flattens, inside)) else None

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether it can run on batches of this shape, and its layers still do what their classes say."""
        modules = list(self.model.modules())
        if looked_at(modules) or any("forward" in vars(module) for module in modules):
            return False
        convolutions = [conv for _, conv in self.convolutions]
        if convolutions and not (len(shape) == 4 and pools_all(convolutions, shape[2:])):
            return False
        return self.numbers(shape) <= LARGEST

    def sizes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """(channels, height, width, examples) before each convolution and after the last."""
        found = [(*shape[1:], shape[0])]
        for _, conv in self.convolutions:
            side = [(length + 2 * _padding(conv) - conv.kernel_size[0] + 1) // 2 for length in found[-1][1:3]]
            found.append((conv.out_channels, *side, shape[0]))
        return found

    def numbers(self, shape: tuple[int, ...]) -> int:
        """About how many the buffers hold for batches of this shape."""
        each, all_together = sum(4 * linear.in_features for _, linear, _ in self.linears), 0
        sizes = self.sizes(shape)
        for (_, conv), (channels, *before, _), (outputs, down, right, _) in zip(
            self.convolutions, sizes, sizes[1:], strict=False
        ):
            height, width = (length + 2 * _padding(conv) for length in before)
            side = conv.kernel_size[0]
            each += channels * height * (2 * width + (side + 1) * right) + 4 * outputs * down * right
            kernel = 2 * outputs * side * channels * (side + 1)
            all_together += (2 * down + 4) * kernel + 7 * conv.weight.numel()  # gradients of all rows, tables
        return each * shape[0] + all_together

    def _is_all(self) -> bool:
        """Whether the model holds nothing else, everything once, and all of it is trained."""
        parameters = dict(self.model.named_parameters())
        whole = sorted(self.model.state_dict()) == sorted(self.names) == sorted(parameters)
        return whole and all(parameter.requires_grad for parameter in parameters.values())


class _Room(NamedTuple):
    """The layers with their buffers for one shape of batch."""

    layers: list[Layer]
    logits: Tensor


class ChainTrainer:
    """One client after another through the same buffers."""

    @staticmethod
    def of(model: nn.Module, task: Task = ONE_LABEL) -> "ChainTrainer | None":
        """None where the model is no chain."""
        chain = Chain.of(model)
        return None if chain is None else ChainTrainer(chain, next(model.parameters()).dtype, task)

    def __init__(self, chain: Chain, dtype: torch.dtype, task: Task = ONE_LABEL) -> None:
        self._chain, self._task = chain, task
        sizes = dict(chain.model.named_parameters())
        shapes = [sizes[name].shape for name in chain.names]
        count = sum(shape.numel() for shape in shapes)
        self._values, self._gradients = (torch.zeros(count, dtype=dtype) for _ in range(2))
        parts = [shape.numel() for shape in shapes]
        values, gradients = (
            [part.view(shape) for part, shape in zip(torch.split(flat, parts), shapes, strict=True)]
            for flat in (self._values, self._gradients)
        )
        self._named = dict(zip(chain.names, values, strict=True))
        self._weights = [
            Weights(values[k], values[k + 1], gradients[k], gradients[k + 1]) for k in range(0, len(values), 2)
        ]
        self._rooms: dict[tuple[int, ...], _Room] = {}
        self._one_at_a_time = Lock()
        self._encoder = chain.encoder

    def __reduce__(self) -> tuple[type["ChainTrainer"], tuple[Chain, torch.dtype, Task]]:
        """A copy makes its own buffers, whose tensors are views of each other."""
        return ChainTrainer, (self._chain, self._values.dtype, self._task)

    def takes(self, rule: Rule, shape: tuple[int, ...]) -> bool:
        """Whether the rule is the default one, on batches that the chain can run on."""
        return type(rule) is LossRule and type(rule.optimiser) in (Sgd, Adam) and self._chain.takes(shape)

    def train(
        self, params: Parameters, epochs: Iterable[Iterable[Batch]], rule: Rule, extras: Extras, lasting: bool
    ) -> Parameters:
        """The parameters after all batches, by the default rule; `lasting`: memory goes on from epoch to epoch."""
        assert isinstance(rule, LossRule)
        with self._one_at_a_time, torch.no_grad():
            self._begin(params)
            for number, batches in enumerate(epochs):
                if number == 0 or not lasting:
                    memory: Any = rule.optimiser.start({ALL: self._values})
                for batch in batches:
                    self._find_gradients(batch.x, batch.y)
                    memory = self._descend(rule.optimiser, memory, extras)
            return {name: self._named[name].clone() for name in params}

    def encodes(self, shape: tuple[int, ...]) -> bool:
        """Whether latents of batches of this shape can be made here."""
        return self._encoder is not None and self._chain.takes(shape)

    def latents(self, params: Parameters, batches: Iterable[Tensor]) -> list[Tensor]:
        """What the encoder makes of each batch."""
        found = []
        with self._one_at_a_time, torch.no_grad():
            self._begin(params)
            for x in batches:
                layers = self._forward(x, self._encoder).layers
                found.append(layers[self._encoder or 0].entry.t().clone(memory_format=torch.contiguous_format))
        return found

    def _begin(self, params: Parameters) -> None:
        for name, place in self._named.items():
            place.copy_(params[name])

    def _forward(self, x: Tensor, count: int | None = None) -> _Room:
        """A batch through the first layers, or through all."""
        room = self._room(tuple(x.shape))
        entry = room.layers[0].entry
        entry.copy_(x.permute(1, 2, 3, 0) if entry.ndim == 4 else x.flatten(1).t())
        for layer in room.layers[:count]:
            layer.forward()
        return room

    def _find_gradients(self, x: Tensor, y: Tensor) -> None:
        """Those of the mean loss of a batch."""
        layers, logits = self._forward(x)
        gradient = self._task.slope(logits, y)
        for layer in reversed(layers):
            gradient = layer.backward(gradient)

    def _descend(self, optimiser: Optimiser, memory: Any, extras: Extras) -> Any:
        """One step of all weights at once, by SGD in place; the memory after it."""
        if not isinstance(optimiser, Sgd):
            moved, memory = optimiser.update(_FLAT, {ALL: self._values}, {ALL: self._gradients}, memory, extras)
            self._values.copy_(moved[ALL])
            return memory
        if optimiser.clip is not None:
            self._gradients.mul_(shortening(torch.linalg.vector_norm(self._gradients), optimiser.clip))
        if optimiser.weight_decay:
            self._gradients.add_(self._values, alpha=optimiser.weight_decay)
        velocity = memory[ALL].mul_(optimiser.momentum).add_(self._gradients)
        self._values.add_(velocity, alpha=-float(rate_of(extras, optimiser.lr)))
        return memory

    def _room(self, shape: tuple[int, ...]) -> _Room:
        """Made before, or made now in the place of the one that was not used for longest."""
        room = self._rooms.pop(shape, None)
        while room is None and self._rooms and not self._has_space(shape):
            self._rooms.pop(next(iter(self._rooms)))
        self._rooms[shape] = room = room or self._made(shape)
        return room

    def _has_space(self, shape: tuple[int, ...]) -> bool:
        held = sum(self._chain.numbers(one) for one in (*self._rooms, shape))
        return len(self._rooms) < ROOMS and held <= 2 * LARGEST

    def _made(self, shape: tuple[int, ...]) -> _Room:
        """The layers from the last to the first, since each writes into the buffer of the one after it."""
        count, convolutions = shape[0], self._chain.convolutions
        weights, dtype = self._weights[::-1], self._values.dtype
        logits = torch.empty(self._chain.linears[-1][1].out_features, count, dtype=dtype)
        layers: list[Layer] = []
        exit = logits
        for k, (_, linear, relu) in reversed(list(enumerate(self._chain.linears))):
            entry = torch.empty(linear.in_features, count, dtype=dtype)
            first = not convolutions and k == 0
            layers.append(Linear(weights[len(layers)], entry, exit, relu, first))
            exit = entry
        sizes = self._chain.sizes(shape)
        for k, (_, conv) in reversed(list(enumerate(convolutions))):
            layer = Pooled(weights[len(layers)], _padding(conv), sizes[k], exit.view(sizes[k + 1]), k == 0)
            layers.append(layer)
            exit = layer.entry
        return _Room(layers[::-1], logits)


class _Flat:
    """Sums of tensors that hold a whole model."""

    def add(self, left: Parameters, right: Parameters, factor: float) -> Parameters:
        """left + factor · right."""
        return {name: torch.add(tensor, right[name], alpha=factor) for name, tensor in left.items()}


_FLAT = _Flat()


def _layers(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The leaves of a model that runs its parts one after another, with their names."""
    parts: list[tuple[str, nn.Module]] = []
    if type(module) is nn.Sequential:
        parts = list(module._modules.items())  # named_children leaves out repeats
    elif isinstance(module, EncoderHead) and _as_defined(module):
        parts = [("features", module.features), ("classifier", module.classifier)]
    elif type(module) is NamedEncoder:
        parts = [("module", module.module)]
    if not parts:
        yield name, module
    for part, inner in parts:
        yield from _layers(inner, f"{name}.{part}" if name else part)


def _as_defined(model: EncoderHead) -> bool:
    """Whether the model runs its two parts as the class says and as nobody has changed since."""
    own = type(model)
    names = ("__call__", "forward", "encode", "head")
    return all(getattr(own, name) is getattr(EncoderHead, name) and name not in vars(model) for name in names)


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _padding(conv: nn.Conv2d) -> int:
    return int(conv.padding[0])
