"""Federated averaging as research code writes it: a fresh model, DataLoader and optimiser per client and round.

Nothing is made slow on purpose: images are standardised floats in memory, no worker processes are started for a few
hundred images, and torch has the threads it takes by default, as such code leaves them.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedflux.engine.stack import Parameters
from fedflux.models import MODELS
from fedflux.studies.bench.work import CLASSES, IMAGE, Work

Loader = DataLoader[tuple[Tensor, ...]]


def train_locally(model: nn.Module, loader: Loader, work: Work) -> int:
    """A client's local training; momentum starts anew each epoch, as in the engines."""
    model.train()
    seen = 0
    for _ in range(work.epochs):
        optimiser = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
        for x, y in loader:
            x, y = x.to(work.device), y.to(work.device)
            optimiser.zero_grad()
            with work.autocast():
                logits = model(x)
            cross_entropy(logits.float(), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            seen += len(y)
    return seen


class NaiveRunner:
    """The usual loop over clients."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def start(self) -> None:
        """Load the data and make the global model."""
        self._work.allow_tf32()
        self._datasets = [TensorDataset(*self._work.tensors(client)) for client in range(self._work.clients)]
        self._model = self._work.build().to(self._work.device)

    def round(self) -> int:
        """Every client in turn, then the mean of the state dicts key by key."""
        work = self._work
        states: list[Parameters] = []
        seen = 0
        for client in range(work.clients):
            model = MODELS[work.model](IMAGE, CLASSES).to(work.device)
            model.load_state_dict(self._model.state_dict())
            seen += train_locally(model, self.loader(client), work)
            states.append(deepcopy(model.state_dict()))
        self._model.load_state_dict(average(states, [len(dataset) for dataset in self._datasets]))
        return seen

    def loader(self, client: int) -> Loader:
        """A fresh DataLoader over one client's examples."""
        return DataLoader(self._datasets[client], batch_size=self._work.batch_size, shuffle=True)

    def state(self) -> Parameters:
        """The global model."""
        return self._model.state_dict()

    def loss(self) -> float:
        """Of the global model."""
        return self._work.loss(self.state())

    def device_peak(self) -> int | None:
        """All in this process."""
        return None

    def close(self) -> None:
        """Nothing to end."""


def average(states: list[Parameters], sizes: list[int]) -> Parameters:
    """The size-weighted mean, key by key; counters are taken from the first client."""
    total = sum(sizes)
    mean = deepcopy(states[0])
    for name, first in mean.items():
        if first.is_floating_point():
            parts = [state[name] * (size / total) for state, size in zip(states, sizes, strict=True)]
            mean[name] = torch.stack(parts).sum(dim=0)
    return mean
