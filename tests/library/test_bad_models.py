"""Models handed in from Python that cannot be trained: one line, on every engine, and nothing is written."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflux
from fedflux.data import Dataset, Examples, Partition, partition
from fedflux.errors import FedfluxError
from fedflux.models import MLP


class Two(MLP):
    """Takes two inputs."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * mask


class Pair(MLP):
    """Gives two outputs."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Lost(MLP):
    """Gives no numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0


class Locked(MLP):
    """Can be neither copied nor sent."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes)
        self.lock = threading.Lock()


class Lambda(MLP):
    """Can be copied, and not be sent."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes)
        self.act = lambda x: x


def failing(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Makes none."""
    raise OSError("no weights")


def inner() -> type[MLP]:
    """A class that only this function knows."""

    class Inner(MLP):
        """Nobody finds it by a name."""

    return Inner


def parted() -> nn.Module:
    """Its last part is of such a class."""
    model = nn.Sequential(nn.Linear(5, 4), inner()((4,), CLASSES))
    model.encoder = "0"  # type: ignore[assignment]
    return model


SHAPE, CLASSES = (5,), 2
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "two inputs": (lambda: Two, "Two takes several inputs (x, mask)"),
    "two inputs, a module": (lambda: Two(SHAPE, CLASSES), "Two takes several inputs (x, mask)"),
    "a tuple": (lambda: Pair, "Pair.forward gives tuple, not a tensor"),
    "no numbers": (lambda: Lost, "Lost gives outputs that are no finite numbers"),
    "too many classes": (lambda: MLP(SHAPE, 9), "MLP gives outputs of shape (2, 9), not (2, 2)"),
    "other features": (lambda: MLP((7,), CLASSES), "MLP fails on inputs of shape (5,)"),
    "no latents": (lambda: nn.Linear(5, CLASSES), "Linear shows no latents"),
    "nothing to train": (lambda: MLP(SHAPE, CLASSES).requires_grad_(False), "MLP has nothing to train"),
    "a function that fails": (lambda: failing, "OSError: no weights"),
    "a number": (lambda: 5, "model: int is no model"),
    "a tensor": (lambda: torch.zeros(3), "model: Tensor is no model"),
    "what cannot be copied": (lambda: Locked(SHAPE, CLASSES), "cannot be made from"),
}
ELSEWHERE: dict[str, Callable[[], object]] = {
    "a lambda": lambda: lambda input_shape, classes: MLP(input_shape, classes),
    "a class in a function": lambda: type(
        "Inner", (MLP,), {"__module__": __name__, "__qualname__": "f.<locals>.Inner"}
    ),
    "a module that holds a function": lambda: Lambda(SHAPE, CLASSES),
}


def run(model: object, folder: Path, **options: Any) -> Any:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(60, *SHAPE)).astype(np.float32), np.arange(60) % CLASSES
    own = Examples(x, y.astype(np.int64), np.repeat(np.arange(3), 20))
    data = Dataset("mine", own, own, CLASSES, client_names=("a", "b", "c"))
    federation = partition(data, Partition("none"))
    told = {"rounds": 1, "scale": "standardise", "algorithm": "fedavg", "device": "cpu", "progress": False, **options}
    return fedflux.run(federation, model=model, out=folder / "run", **told)


@pytest.mark.parametrize("engine", ["loop", "processes", "stacked"])
@pytest.mark.parametrize("name", BAD)
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(name: str, engine: str, tmp_path: Path) -> None:
    make, words = BAD[name]
    with pytest.raises(FedfluxError) as caught:
        run(make(), tmp_path, engine=engine)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_no_worker_can_make_is_refused_by_processes_and_trained_by_others(name: str, tmp_path: Path) -> None:
    model = ELSEWHERE[name]()
    with pytest.raises(FedfluxError, match=r"cannot be made in another process: .*engine loop") as caught:
        run(model, tmp_path, engine="processes")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert 0 <= run(model, tmp_path, engine="auto")["known"] <= 100
