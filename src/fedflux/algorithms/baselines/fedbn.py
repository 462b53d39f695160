"""FedBN: the layers that normalise are the client's own, all others are everybody's."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from fedflux.algorithms.base import Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.personal_layers import PersonalLayers, PersonalLayersState
from fedflux.data import Federation
from fedflux.engine import Engine
from fedflux.errors import FedfluxError


@algorithm("fedbn")
@dataclass(frozen=True)
class FedBN(PersonalLayers):
    """Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.

    Weights, offsets and running statistics of BatchNorm stay with the client.
    """

    settings: Settings
    revision: ClassVar[int] = 1
    needs_batch_norm: ClassVar[bool] = True

    def init(self, federation: Federation, engine: Engine) -> PersonalLayersState:
        """The initial model, where it has something to keep."""
        if not self.personal(engine):
            raise FedfluxError(
                "fedbn keeps BatchNorm with the client, and this model has none: take --model resnet9, or fedper"
            )
        return super().init(federation, engine)

    def personal(self, engine: Engine) -> tuple[str, ...]:
        """BatchNorm's tensors."""
        return batch_norm_names(engine.initial().tensors)


def batch_norm_names(tensors: Collection[str]) -> tuple[str, ...]:
    """The tensors of the layers that keep running statistics, among a model's."""
    owners = {name.rpartition(".")[0] for name in tensors if name.rpartition(".")[2] == "running_mean"}
    return tuple(sorted(name for name in tensors if name.rpartition(".")[0] in owners))
