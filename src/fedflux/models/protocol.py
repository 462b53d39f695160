"""What a model must offer, and how any `nn.Module` joins by naming its encoder."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedflux.errors import FedfluxError
from fedflux.plugins import in_words


@runtime_checkable
class Encoding(Protocol):
    """A classifier that also shows its latents: `encode(x)` gives what descriptors are made of."""

    def encode(self, x: Tensor) -> Tensor:
        """One latent vector per input."""

    def forward(self, x: Tensor) -> Tensor:
        """One row of logits per input."""


class EncoderHead(nn.Module):
    """A model in two parts: `features` makes the latent, `classifier` the logits."""

    features: nn.Module
    classifier: nn.Module

    def encode(self, x: Tensor) -> Tensor:
        """The latent of every image."""
        latent: Tensor = self.features(x)
        return latent

    def head(self, latent: Tensor) -> Tensor:
        """Logits from latents."""
        logits: Tensor = self.classifier(latent)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every image."""
        return self.head(self.encode(x))


ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
"""(input_shape, classes) → model."""


class NamedEncoder(nn.Module):
    """Any classifier, with the flattened output of one named submodule as its latent."""

    def __init__(self, module: nn.Module, encoder: str) -> None:
        super().__init__()
        names = dict(module.named_modules())
        if encoder not in names or encoder == "":
            listed = ", ".join(name for name in names if name) or "no submodules"
            raise FedfluxError(f"the model has no submodule '{encoder}' to serve as encoder: it has {listed}")
        self.module = module
        self.encoder = encoder

    def encode(self, x: Tensor) -> Tensor:
        """Run the module and keep what the encoder gave."""
        caught: list[Tensor] = []

        def catch(_: nn.Module, __: object, output: Tensor) -> None:
            caught.append(output)

        handle = self.module.get_submodule(self.encoder).register_forward_hook(catch)
        try:
            self.module(x)
        finally:
            handle.remove()
        return caught[-1].flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """The module's own logits."""
        logits: Tensor = self.module(x)
        return logits


def as_encoding(module: object) -> nn.Module:
    """The module itself if it has `encode`, wrapped if it names its `encoder` in a string attribute; the encoder of an
    `nn.Sequential` that says nothing are all its parts but the last.
    """
    if not isinstance(module, nn.Module):
        raise FedfluxError(f"a model factory must return an nn.Module, not {type(module).__name__}")
    if isinstance(module, Encoding):
        return module
    name = getattr(module, "encoder", None)
    if isinstance(name, str):
        return NamedEncoder(module, name)
    if name is None and type(module) is nn.Sequential and len(module) > 1:
        return NamedEncoder(module, next(name for name, part in module.named_children() if part is module[-2]))
    raise FedfluxError(
        f"{type(module).__name__} shows no latents: give it a method encode(x), "
        "or an attribute `encoder` that names a submodule"
    )


def blank(count: int, input_shape: Sequence[int], integers: bool = False) -> Tensor:
    """Inputs of zeros, in the type that a model is given."""
    return torch.zeros(count, *input_shape, dtype=torch.int64 if integers else torch.float32)


def check_model(module: nn.Module, input_shape: tuple[int, ...], classes: int, integers: bool = False) -> None:
    """A few forward passes on made-up inputs: catches a model that does not fit the data before any training.

    It is asked as in evaluation and as in training, since some answer otherwise then; what a pass does to buffers, such
    as BatchNorm's statistics, is undone.
    """
    own = module.module if isinstance(module, NamedEncoder) else module
    name = type(own).__name__
    _check_inputs(own, name)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise FedfluxError(f"{name} has nothing to train: none of its parameters requires a gradient")
    was_training = module.training
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.no_grad():
            for training in (False, True):
                module.train(training)
                _check_outputs(module, name, blank(2, input_shape, integers), classes)
            module.eval()
            _check_finite(module, name, input_shape, integers)
            for key, buffer in module.named_buffers():
                buffer.copy_(before[key])
    finally:
        module.train(was_training)


def _check_inputs(module: nn.Module, name: str) -> None:
    """Whether it can be called with the features alone."""
    try:
        parameters = list(signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(needed) > 1 or any(one.kind is one.KEYWORD_ONLY for one in needed):
        inputs = ", ".join(one.name for one in needed)
        raise FedfluxError(f"{name} takes several inputs ({inputs}): a model is given a client's features alone")


def _check_outputs(module: nn.Module, name: str, inputs: Tensor, classes: int) -> None:
    """Whether it gives a row of logits and a vector of latents for every input."""
    while_training = " while training" if module.training else ""
    try:
        logits, latents = module(inputs), module.encode(inputs)  # type: ignore[operator]
    except Exception as error:  # a model of the user's may fail in any way
        shape = tuple(inputs.shape[1:])
        raise FedfluxError(f"{name} fails on inputs of shape {shape}{while_training}: {in_words(error)}") from error
    for output, method in ((logits, "forward"), (latents, "encode")):
        if not isinstance(output, Tensor):
            raise FedfluxError(f"{name}.{method} gives {type(output).__name__}{while_training}, not a tensor")
        if not output.is_floating_point():
            raise FedfluxError(f"{name}.{method} gives {output.dtype}{while_training}, not floating-point numbers")
    if tuple(logits.shape) != (2, classes):
        raise FedfluxError(f"{name} gives outputs of shape {tuple(logits.shape)}{while_training}, not (2, {classes})")
    if latents.ndim != 2 or len(latents) != 2:
        raise FedfluxError(f"{name}.encode gives shape {tuple(latents.shape)}{while_training}, not (2, features)")


def _check_finite(module: nn.Module, name: str, input_shape: tuple[int, ...], integers: bool) -> None:
    """Whether outputs are numbers; zeros may be without an answer (what has no length has no direction)."""
    if integers:
        other = blank(2, input_shape, integers) + 1
    else:
        other = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0))
    for inputs in (blank(2, input_shape, integers), other):
        try:
            outputs = (module(inputs), module.encode(inputs))  # type: ignore[operator]
        except Exception:  # of another id than 0 it may know nothing
            break
        if all(bool(output.isfinite().all()) for output in outputs):
            return
    raise FedfluxError(f"{name} gives outputs that are no finite numbers")
