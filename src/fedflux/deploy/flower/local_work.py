"""What a node does with its data: the core's engine on the one client that lives here."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedflux.deploy.flower.node_data import NodeData, load_node_data
from fedflux.deploy.flower.records import (
    ASK,
    MODEL,
    Arrays,
    bounds_arrays,
    digest,
    label_free,
    model_arrays,
    model_stack,
    read_bounds,
    unpack,
)
from fedflux.deploy.flower.settings import FlowerSettings, read_settings
from fedflux.engine import Job, Key, LoopEngine, Predictor, Stack
from fedflux.engine import pick_device as checked_device
from fedflux.errors import FedfluxError
from fedflux.models import build_model

HELD = "held-model"
HELD_NAME = "held-model-name"


class MissingModelError(Exception):
    """The model that a question names is not in the message and not held here."""


@dataclass(frozen=True, eq=False)
class LocalWork:
    """One node's settings, data and memory of the run."""

    settings: FlowerSettings
    data: NodeData
    node_config: Mapping[str, Any]
    state: Any

    @staticmethod
    def of(context: Any) -> "LocalWork":
        """From Flower's context; data are loaded once a process."""
        settings = read_settings(context.run_config)
        node, run = _frozen(context.node_config), _frozen(context.run_config)
        return LocalWork(settings, _data(settings.data, node, run, context.node_id), context.node_config, context.state)

    @property
    def client(self) -> int:
        """The node's number in the federation."""
        return self.data.client

    @property
    def labelled(self) -> bool:
        """Whether this node's labels may be used; `labels=false` in its configuration says no."""
        return bool(self.node_config.get("labels", True))

    def introduction(self) -> dict[str, Any]:
        """Who this node is."""
        federation = self.data.federation
        return {
            "client": self.client,
            "labels": self.labelled,
            "examples": federation.size(self.client, "train" if self.labelled else "test"),
            "image-shape": list(federation.image_shape),
            "classes": federation.classes,
        }

    def model(self, content: Any) -> Stack:
        """The model that a question names: the one in the message, which is kept, or the one kept before."""
        named = str(content[ASK]["model"])
        if MODEL in content:
            arrays = unpack(content[MODEL])
            if digest(arrays) != named:
                raise FedfluxError("the model in the message is not the one that it names")
            self.state[HELD] = content[MODEL]
            self.state[HELD_NAME] = ConfigRecord({"name": named})
            return model_stack(arrays)
        if HELD in self.state and self.state[HELD_NAME]["name"] == named:
            return model_stack(unpack(self.state[HELD]))
        raise MissingModelError

    def train(self, start: Stack, round: int) -> tuple[Arrays, int]:
        """The model after local training, and on how many examples."""
        self._need_labels("train")
        cohort = self.data.cohort(round)
        job, key = Job(self.client), Key(self.settings.seed, round)
        trained = self._engine().train(start, cohort, [job], self.settings.training, key)
        return model_arrays(trained.row(0)), self.data.federation.size(self.client, "train")

    def evaluate(self, model: Stack, split: str) -> tuple[float, int]:
        """Accuracy and the number of examples; 0 of 0 where the part is empty."""
        self._need_labels("evaluate")
        if split not in ("validation", "test"):
            raise FedfluxError(f"cannot evaluate on '{split}': choose validation or test")
        cohort = self.data.cohort()
        part: Any = split
        examples = self.data.federation.size(self.client, part)
        if not examples:
            return 0.0, 0
        return float(self._engine().evaluate(Predictor.shared(model, np.ones(1), 1), cohort, part)[0]), examples

    def bounds(self, model: Stack) -> dict[str, NDArray[np.generic]]:
        """S1."""
        from fedflux.descriptors.bounds import LatentRange, client_bounds

        self._need_labels("query.bounds")
        (found,) = self._engine().reduce(model, self.data.cohort().held("train"), LatentRange())
        return bounds_arrays(client_bounds(found))

    def describe(self, model: Stack, bounds: Arrays, ask: Mapping[str, Any], labelled: bool) -> Arrays:
        """S2 and S3, in the wire form."""
        from fedflux.algorithms.flux.describe import Extractor, sent, sent_unlabelled
        from fedflux.descriptors.projector import fit_projector

        box = read_bounds(bounds)
        projector = fit_projector(box, int(ask["components"]))
        extractor = Extractor(model, box, projector, bool(ask["full-covariance"]))
        if labelled:
            self._need_labels("query.descriptor")
            return sent(extractor, self.data.cohort(), self._engine())
        return label_free(sent_unlabelled(extractor, self.data.cohort().features("test"), self._engine()))

    def keep(self, model: Stack, told: Mapping[str, Any]) -> None:
        """Save a model for whoever uses it on this machine, where the configuration names a `model-dir`."""
        folder = self.node_config.get("model-dir")
        if folder:
            from safetensors.torch import save

            from fedflux.files import write_json, written_whole

            path = Path(str(folder))
            path.mkdir(parents=True, exist_ok=True)
            with written_whole(path / "model.safetensors") as handle:
                handle.write(save({name: tensor[0].contiguous() for name, tensor in model.tensors.items()}))
            write_json(
                path / "model.json", {**told, "client": self.client, "digest": digest(model_arrays(model.row(0)))}
            )

    def _need_labels(self, what: str) -> None:
        if not self.labelled:
            raise FedfluxError(f"client {self.client} has no labels: it answers query.assign, not {what}")

    def _engine(self) -> LoopEngine:
        federation = self.data.federation
        shape, device = federation.image_shape, str(self.node_config.get("device", "cpu"))
        return _engine(
            self.settings.model, shape, federation.classes, self.settings.seed, device, federation.dataset.pixels
        )


def _frozen(config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(config.items()))


@lru_cache(maxsize=64)
def _data(name: str, node: tuple[tuple[str, Any], ...], run: tuple[tuple[str, Any], ...], node_id: int) -> NodeData:
    return load_node_data(name, dict(node), dict(run)).numbered(int(dict(node).get("partition-id", node_id)))


@lru_cache(maxsize=8)
def _engine(
    model: str, shape: tuple[int, int, int], classes: int, seed: int, device: str, pixels: tuple[float, float]
) -> LoopEngine:
    """The reference engine; its initial weights are never used, the server's are."""
    return LoopEngine(build_model(model, shape, classes, seed), checked_device(device), "fp32", pixels)
