"""The work that every runner of a benchmark does: one FedAvg round after another on the same synthetic clients."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedflux.data import Dataset, Examples, Federation
from fedflux.data.scaling import Scaling
from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.engine import Training
from fedflux.engine.stack import Parameters
from fedflux.models import build_model
from fedflux.streams import stream

IMAGE = (1, 28, 28)
CLASSES = 10
PIXELS = (0.5, 0.5)
PIXEL_SCALING = Scaling("pixels", PIXELS[:1], PIXELS[1:])
SPREAD = 0.5
"""Uneven clients hold between half and one and a half of the mean number of examples."""


@dataclass(frozen=True)
class Work:
    """K clients, their sizes, the model and its local training; plain values, so that it can be sent as JSON."""

    clients: int = 10
    samples: int = 600
    model: str = "lenet5"
    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.005
    momentum: float = 0.9
    uneven: bool = False
    device: str = "cpu"
    precision: str = "fp32"
    seed: int = 42

    @property
    def training(self) -> Training:
        """What a client does in a round."""
        return Training(self.epochs, self.batch_size, self.lr, self.momentum)

    def sizes(self) -> NDArray[np.int64]:
        """How many examples each client holds."""
        if not self.uneven:
            return np.full(self.clients, self.samples, dtype=np.int64)
        factors = stream(self.seed, "bench sizes").uniform(1 - SPREAD, 1 + SPREAD, self.clients)
        return np.maximum(np.rint(self.samples * factors), 1).astype(np.int64)

    def samples_a_round(self) -> int:
        """Examples trained on in one round, all clients and epochs together."""
        return int(self.sizes().sum()) * self.epochs

    def client(self, client: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """One client's images and labels: ten patterns under noise, so that the loss can fall."""
        tiles = stream(self.seed, "bench patterns").integers(0, 192, (CLASSES, 1, 7, 7), dtype=np.uint8)
        patterns = tiles.repeat(4, axis=2).repeat(4, axis=3)
        draw = stream(self.seed, "bench images", client=client)
        y = draw.integers(0, CLASSES, int(self.sizes()[client]))
        return patterns[y] + draw.integers(0, 64, (len(y), *IMAGE), dtype=np.uint8), y

    def tensors(self, client: int) -> tuple[Tensor, Tensor]:
        """The same as standardised floats: what runners that know no federation are given, ready to train on."""
        x, y = self.client(client)
        mean, deviation = PIXELS
        return (torch.from_numpy(x).float() / 255 - mean) / deviation, torch.from_numpy(y)

    def federation(self) -> Federation:
        """All clients as the engines take them."""
        parts = [self.client(client) for client in range(self.clients)]
        train = Examples(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
        none = np.empty(0, dtype=np.int64)
        dataset = Dataset("bench", train, Examples(train.x[:0], train.y[:0]), CLASSES, scaling=PIXEL_SCALING)
        cuts = np.split(np.arange(len(train)), np.cumsum(self.sizes())[:-1])
        rows = [ClientRows(train=cut, validation=none, test=none) for cut in cuts]
        return Federation(dataset, rows, [Pattern()] * self.clients, self.seed, IMAGE[0])

    def build(self) -> nn.Module:
        """The model with its initial weights, the same for every runner."""
        return build_model(self.model, IMAGE, CLASSES, self.seed)

    def autocast(self) -> AbstractContextManager[object]:
        """The arithmetic of a forward pass."""
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)

    def allow_tf32(self) -> None:
        """CUDA arithmetic as `make_engine` sets it, for runners that do without."""
        if self.device.startswith("cuda"):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.precision != "fp32-strict"

    def loss(self, state: Parameters) -> float:
        """Mean cross-entropy of a model on the first client: did the runner really train?"""
        model = self.build()
        model.load_state_dict({name: tensor.cpu() for name, tensor in state.items()})
        model.eval()
        x, y = self.tensors(0)
        with torch.no_grad():
            return float(cross_entropy(model(x), y))
