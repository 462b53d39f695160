"""Models that clients keep to themselves, by name: personal ones, fine-tuned ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedflux.engine.stack import Parameters, Stack


@dataclass(frozen=True, eq=False)
class Kept:
    """All slots as they are saved: by name, who has one, and the models in that order."""

    clients: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    models: Mapping[str, Stack] = field(default_factory=dict)


class Slots:
    """The slots of simulated clients. A client's row is its own copy: nothing else keeps it alive or changes it."""

    def __init__(self) -> None:
        self._models: dict[str, dict[int, Parameters]] = {}

    def get(self, name: str, client: int) -> Parameters | None:
        """The model that a client keeps under a name."""
        return self._models.get(name, {}).get(client)

    def put(self, name: str, client: int, model: Parameters) -> None:
        """Keep a copy of a model for a client."""
        self._models.setdefault(name, {})[client] = _own(model)

    def copy(self, clients: Sequence[int], source: str, target: str) -> None:
        """These clients keep what is in one slot in another, too."""
        held = self._models[source]
        self._models.setdefault(target, {}).update({client: held[client] for client in clients})

    def drop(self, clients: Sequence[int], name: str) -> None:
        """Forget what these clients keep under a name."""
        for client in clients:
            self._models.get(name, {}).pop(client, None)

    def kept(self) -> Kept:
        """Everything, to be saved."""
        clients = {name: np.array(sorted(held), dtype=np.int64) for name, held in self._models.items() if held}
        models = {name: Stack.join([self._models[name][k] for k in ids.tolist()]) for name, ids in clients.items()}
        return Kept(clients, models)

    def restore(self, kept: Kept) -> None:
        """What was saved, and nothing else."""
        self._models = {
            name: {client: _own(kept.models[name].row(row)) for row, client in enumerate(ids.tolist())}
            for name, ids in kept.clients.items()
        }


def _own(model: Parameters) -> Parameters:
    return {name: tensor.clone() for name, tensor in model.items()}
