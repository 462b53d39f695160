"""Federations of a few digits clients on the in-process Grid, honest or not."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedflux.deploy.flower import server_app
from fedflux.deploy.flower.client_app import app
from fedflux.deploy.flower.engine import FlowerEngine
from fedflux.deploy.flower.grid import InProcessGrid
from fedflux.models import MLP
from fedflux.models.protocol import EncoderHead
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

CONFIG: dict[str, Any] = {"dataset": "digits", "shift": "px", "level": 4, "clients": 10, "seed": 42, "wait": 5.0}
"""A partition with five true clusters among ten clients."""
DEPLOYED = ("min_nodes", "expected_nodes", "aggregation", "malicious_nodes", "trim", "wait", "timeout", "max_examples")
Tamper = Callable[[Any, Any], Any]
"""(message, reply) → what the node sends instead."""
RUNS = TemporaryDirectory(prefix="fedflux-tests-")
NUMBERS = count()


def new_folder() -> Path:
    """A place for a run that no test looks at by name."""
    return Path(RUNS.name) / str(next(NUMBERS))


def node_id(client: int) -> int:
    """Ids that are in another order than clients, so that nothing may rely on theirs."""
    return 1000 - 7 * client


@dataclass(frozen=True)
class Played:
    """A run over a Grid, after its end."""

    result: dict[str, Any]
    engine: FlowerEngine
    folder: Path

    @property
    def known(self) -> dict[int, float]:
        scores = enumerate(self.result["known_per_client"])
        return {client: score for client, score in scores if score is not None}

    @property
    def assignment(self) -> list[int]:
        return self.result["assignment"]

    @property
    def models(self) -> dict[str, Tensor]:
        return load_file(self.folder / "models.safetensors")

    @property
    def events(self) -> list[str]:
        return self.engine.events

    def wire(self, way: str) -> int:
        return sum(self.result[f"wire_{way}"].values())


def tampered(bad: Mapping[int, Tamper]) -> Callable[[Any, Any], Any]:
    """The client app, with some clients' replies changed on their way out."""

    def answer(message: Any, context: Any) -> Any:
        reply = app(message, context)
        change = bad.get(int(context.node_config.get("partition-id", -1)))
        return reply if change is None else change(message, reply)

    return answer


def make_grid(
    clients: Iterable[int],
    config: Mapping[str, Any] | None = None,
    bad: Mapping[int, Tamper] | None = None,
    unlabelled: Iterable[int] = (),
    **node: Any,
) -> InProcessGrid:
    """Nodes for these clients; `node` is in the configuration of each."""
    told = {key.replace("_", "-"): value for key, value in {**CONFIG, **(config or {})}.items()}
    grid = InProcessGrid(tampered(bad or {}), told)
    for client in clients:
        grid.join(node_id(client), {"partition-id": client, "labels": client not in tuple(unlabelled), **node})
    return grid


def play(grid: InProcessGrid, **config: Any) -> Played:
    """A run over a Grid, to its end."""
    engines: list[FlowerEngine] = []

    def remembered(*arguments: Any) -> FlowerEngine:
        engines.append(FlowerEngine(*arguments))
        return engines[0]

    folder = Path(config.pop("out", None) or new_folder())
    told = {key.replace("_", "-"): value for key, value in {**CONFIG, **config, "out": str(folder)}.items()}
    with patch.object(server_app, "FlowerEngine", remembered):
        result = server_app.run(grid, told)
    return Played(result, engines[0], folder)


def played(nodes: Iterable[int] = range(10), **config: Any) -> Played:
    """An honest run of these clients."""
    members = list(nodes)
    settings = {"min_nodes": len(members), "expected_nodes": len(members), **config}
    return play(make_grid(members, config), **settings)


def simulated(**config: Any) -> dict[str, Any]:
    """The same run without nodes."""
    told = {key: value for key, value in {**CONFIG, **config}.items() if key not in DEPLOYED}
    return run_config(make_config({**told, "engine": "loop", "out": str(new_folder()), "store": "none"}))


def watched(grid: InProcessGrid, look: Callable[[Any, Any], None]) -> InProcessGrid:
    """The Grid, with somebody who sees every message before it is answered."""
    original = grid._app

    def answer(message: Any, context: Any) -> Any:
        look(message, context)
        return original(message, context)

    grid._app = answer
    return grid


def round_of(message: Any) -> int:
    """The round that a message belongs to."""
    return int(message.metadata.group_id)


def same_models(one: Played, other: Played) -> bool:
    """Whether two runs ended with the same models, bit by bit."""
    mine, theirs = one.models, other.models
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def wider(input_shape: tuple[int, ...], classes: int) -> MLP:
    """The MLP for images of twice the width: same names, other shapes."""
    model = MLP((input_shape[0], input_shape[1], 2 * input_shape[2]), classes)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    first.register_forward_pre_hook(lambda _, inputs: (torch.cat([inputs[0], inputs[0]], dim=1),))
    return model


def normalised(input_shape: tuple[int, ...], classes: int) -> EncoderHead:
    """A model with BatchNorm, whose buffers are numbers of two kinds."""
    model = EncoderHead()
    inputs = input_shape[0] * input_shape[1] * input_shape[2]
    model.features = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU())
    model.classifier = nn.Linear(16, classes)
    return model
