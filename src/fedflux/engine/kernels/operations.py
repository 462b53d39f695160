"""A module as the operations that rules are lent: logits, gradients and statistics under tensors that are given."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.engine.base import Key
from fedflux.engine.kernels.functional import Functional
from fedflux.engine.kernels.fused import with_fused_layers
from fedflux.engine.kernels.normalisation import Normalisation
from fedflux.engine.modes import EvaluationMode
from fedflux.engine.rules import Loss
from fedflux.engine.stack import Parameters
from fedflux.streams import stream_seed


class ModuleOperations:
    """One module on one device, run with tensors in the place of its own."""

    def __init__(
        self,
        model: nn.Module,
        device: str,
        precision: str,
        pixels: tuple[float, float] | None,
        task: Task = ONE_LABEL,
    ) -> None:
        self.task = task
        self.device = device
        self.precision = precision
        self._pixels = pixels
        self._model = self._prepared(model).to(device)
        self._functional = Functional(self._model)
        self.trained_names = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
        self._normalisation = Normalisation(self._model)
        self._dtype = next(iter(model.parameters())).dtype

    def _prepared(self, model: nn.Module) -> nn.Module:
        """The model in the form that is fastest here: on a CPU, runs of layers as one."""
        return with_fused_layers(model) if self.device == "cpu" and self.precision != "bf16" else model

    def _images(self, x: Tensor) -> Tensor:
        """Standardised pixels, in the precision of the parameters; other inputs come scaled, and token ids stay."""
        if self._pixels is None:
            return x.to(self._dtype) if x.is_floating_point() else x
        mean, deviation = self._pixels
        if x.dtype == torch.uint8:
            return x.to(self._dtype).div_(255).sub_(mean).div_(deviation)
        return (x.to(self._dtype) - mean) / deviation

    def apply(self, params: Parameters, x: Tensor) -> Tensor:
        """Logits under these parameters and buffers."""
        with self._autocast():
            return self._functional.forward(params, x).to(self._dtype)

    def example_losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """What each example loses."""
        return self.task.losses(logits, y)

    def trained(self, params: Parameters) -> Parameters:
        """The tensors that training changes."""
        return {name: tensor for name, tensor in params.items() if name in self.trained_names}

    def gradient(self, loss: Loss, at: Parameters) -> Parameters:
        """d loss / d at, by ordinary backpropagation."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
        with torch.enable_grad(), self._normalisation.differentiable(at):
            found = torch.autograd.grad(loss(leaves), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    def statistics(self, params: Parameters, x: Tensor) -> Parameters:
        """Mean and unbiased variance of what each BatchNorm layer meets; empty where there is none."""
        if not self._normalisation.layers:
            return {}
        with torch.no_grad(), self._normalisation.caught() as met:
            self.apply(dict(params), x)
        return met

    def add(self, left: Parameters, right: Parameters, factor: float) -> Parameters:
        """left + factor · right, all tensors in one call."""
        sums = torch._foreach_add(list(left.values()), [right[name] for name in left], alpha=factor)
        return dict(zip(left, sums, strict=True))

    def _encode(self, params: Parameters, x: Tensor) -> Tensor:
        with self._autocast():
            return self._functional.encode(params, x).to(self._dtype)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)

    @contextmanager
    def _random_layers(self, key: Key, client: int) -> Iterator[None]:
        """Layers that draw (dropout) draw the same wherever and after whomever the client is trained."""
        devices = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            seed = stream_seed(key.seed, "random layers", key.round, client)
            if devices:
                torch.manual_seed(seed)
            else:  # the same draws, without telling all kinds of devices, which takes a millisecond
                torch.default_generator.manual_seed(seed)
            yield

    def _evaluating(self) -> EvaluationMode:
        return EvaluationMode(self._model)
