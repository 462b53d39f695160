"""BatchNorm seen from outside: what its layers meet, and gradients of their running statistics."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn

from fedflux.engine.stack import Parameters


class Normalisation:
    """The BatchNorm layers of a model that hold running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
        }
        self._names = {f"{name}.{leaf}" for name in self.layers for leaf in ("running_mean", "running_var")}

    @contextmanager
    def caught(self) -> Iterator[Parameters]:
        """Mean and unbiased variance, channel by channel, of the layers' inputs in the forward pass made inside.

        Where a channel has one value only, there is no variance to tell.
        """
        met: Parameters = {}

        def catch(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].transpose(0, 1).flatten(1)
            met[f"{name}.running_mean"] = values.mean(dim=1)
            if values.shape[1] > 1:
                met[f"{name}.running_var"] = values.var(dim=1)

        handles = [module.register_forward_pre_hook(partial(catch, name)) for name, module in self.layers.items()]
        try:
            yield met
        finally:
            for handle in handles:
                handle.remove()

    def differentiable(self, at: Collection[str]) -> AbstractContextManager[None]:
        """Gradients reach running statistics inside, if they are asked for; torch's own layers give none."""
        return nullcontext() if self._names.isdisjoint(at) else self._written_out()

    @contextmanager
    def _written_out(self) -> Iterator[None]:
        layers: list[Any] = list(self.layers.values())
        for layer in layers:
            layer.forward = partial(_normalise, layer)
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward


def _normalise(layer: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    """BatchNorm in evaluation: γ (x − μ) / √(σ² + ε) + β."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    shape = (1, -1, *[1] * (x.ndim - 2))
    scaled = (x - layer.running_mean.view(shape)) * (layer.running_var.view(shape) + layer.eps).rsqrt()
    return scaled * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else scaled
