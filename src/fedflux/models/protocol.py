"""What a model must offer, and how any `nn.Module` joins by naming its encoder."""

from collections.abc import Callable, Sequence
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
    """The module itself if it has `encode`, wrapped if it names its `encoder` in a string attribute."""
    if not isinstance(module, nn.Module):
        raise FedfluxError(f"a model factory must return an nn.Module, not {type(module).__name__}")
    if isinstance(module, Encoding):
        return module
    name = getattr(module, "encoder", None)
    if isinstance(name, str):
        return NamedEncoder(module, name)
    raise FedfluxError(
        f"{type(module).__name__} shows no latents: give it a method encode(x), "
        "or an attribute `encoder` that names a submodule"
    )


def blank(count: int, input_shape: Sequence[int], integers: bool = False) -> Tensor:
    """Inputs of zeros, in the type that a model is given."""
    return torch.zeros(count, *input_shape, dtype=torch.int64 if integers else torch.float32)


def check_model(module: nn.Module, input_shape: tuple[int, ...], classes: int, integers: bool = False) -> None:
    """One forward pass on two blank inputs: catches a model that does not fit the data before any training."""
    name = type(module.module if isinstance(module, NamedEncoder) else module).__name__
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            inputs = blank(2, input_shape, integers)
            logits, latents = module(inputs), module.encode(inputs)  # type: ignore[operator]
    except Exception as error:  # a model of the user's may fail in any way
        raise FedfluxError(f"{name} fails on inputs of shape {input_shape}: {in_words(error)}") from error
    finally:
        module.train(was_training)
    for output, method in ((logits, "forward"), (latents, "encode")):
        if not isinstance(output, Tensor):
            raise FedfluxError(f"{name}.{method} gives {type(output).__name__}, not a tensor")
    if tuple(logits.shape) != (2, classes):
        raise FedfluxError(f"{name} gives outputs of shape {tuple(logits.shape)}, not (2, {classes})")
    if latents.ndim != 2 or len(latents) != 2:
        raise FedfluxError(f"{name}.encode gives shape {tuple(latents.shape)}, not (2, features)")
