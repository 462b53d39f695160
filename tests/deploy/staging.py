"""Federations of a few digits clients on the in-process Grid, honest or not."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fedflux.deploy.flower.client_app import app
from fedflux.deploy.flower.grid import InProcessGrid
from fedflux.deploy.flower.server_app import run
from fedflux.deploy.flower.settings import read_settings
from fedflux.deploy.flower.strategy import FluxStrategy
from fedflux.models import MLP
from fedflux.models.protocol import EncoderHead

CONFIG: dict[str, Any] = {"dataset": "digits", "shift": "px", "level": 4, "clients": 10, "seed": 42, "wait": 5.0}
"""A partition with five true clusters among ten clients."""
Tamper = Callable[[Any, Any], Any]
"""(message, reply) → what the node sends instead."""


def node_id(client: int) -> int:
    """Ids that are in another order than clients, so that nothing may rely on theirs."""
    return 1000 - 7 * client


def tampered(bad: Mapping[int, Tamper]) -> Callable[[Any, Any], Any]:
    """The client app, with some clients' replies changed on their way out."""

    def answer(message: Any, context: Any) -> Any:
        reply = app(message, context)
        change = bad.get(int(context.node_config["partition-id"]))
        return reply if change is None else change(message, reply)

    return answer


def make_grid(
    clients: Iterable[int], config: Mapping[str, Any], bad: Mapping[int, Tamper] | None = None, **nodes: Any
) -> InProcessGrid:
    """Nodes for these clients; `unlabelled` names those without labels."""
    grid = InProcessGrid(tampered(bad or {}), {**CONFIG, **config})
    for client in clients:
        grid.join(node_id(client), {"partition-id": client, "labels": client not in nodes.get("unlabelled", ())})
    return grid


def play(grid: InProcessGrid, **config: Any) -> FluxStrategy:
    """A run over a Grid, to its end."""
    return run(grid, read_settings({**CONFIG, **{key.replace("_", "-"): value for key, value in config.items()}}))


def wider(image_shape: tuple[int, int, int], classes: int) -> MLP:
    """The MLP for images of twice the width: same names, other shapes."""
    model = MLP((image_shape[0], image_shape[1], 2 * image_shape[2]), classes)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    first.register_forward_pre_hook(lambda _, inputs: (torch.cat([inputs[0], inputs[0]], dim=1),))
    return model


def normalised(image_shape: tuple[int, int, int], classes: int) -> EncoderHead:
    """A model with BatchNorm, whose buffers are numbers of two kinds."""
    model = EncoderHead()
    inputs = image_shape[0] * image_shape[1] * image_shape[2]
    model.features = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU())
    model.classifier = nn.Linear(16, classes)
    return model
