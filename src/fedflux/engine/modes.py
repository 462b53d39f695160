"""States that hold for a while: one torch thread, a model in evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

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


class EvaluationMode:
    """The model in evaluation mode for a while."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._was_training = self._model.training
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        self._model.train(self._was_training)
