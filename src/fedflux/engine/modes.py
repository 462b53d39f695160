"""States that hold for a while: one torch thread, torch's arithmetic on a GPU, a model in evaluation mode.

All of them are put back, also after an error, and may be nested in any order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for a while: small models lose from more, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_settings(device: str, precision: str) -> Iterator[None]:
    """Torch's arithmetic on a CUDA device for a while: TF32 unless `fp32-strict`, which is deterministic too.

    On other devices nothing is changed.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    strict = precision == "fp32-strict"
    put_back = [_kept(get, put) for get, put in _settings()]
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not strict
        torch.backends.cudnn.deterministic = strict
        yield
    finally:
        for restore in put_back:
            restore()


def _settings() -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """How to read and to write what the switches for TF32 change, in the order in which it is put back.

    Since torch 2.9 a switch sets a precision by name too, which says more (`none`: as the precision above it). Names
    are put back last, as the switches would change them.
    """
    cudnn: Any = torch.backends.cudnn
    settings: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        _attribute(cudnn, "allow_tf32"),
        _attribute(cudnn, "deterministic"),
    ]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        mkldnn: Any = torch.backends.mkldnn
        named = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul)
        settings += [_attribute(owner, "fp32_precision") for owner in named]
    return settings


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _kept(get: Callable[[], Any], put: Callable[[Any], None]) -> Callable[[], None]:
    """What puts a setting back."""
    with suppress(RuntimeError):  # a switch cannot be read once the caller has set names: those are put back then
        value = get()
        return lambda: put(value)
    return lambda: None


class EvaluationMode:
    """The model in evaluation mode for a while."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._was_training = self._model.training
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        self._model.train(self._was_training)
