"""FedPer: all layers but the last are everybody's, the last one is the client's own."""

from dataclasses import dataclass
from typing import ClassVar

from fedflux.algorithms.base import Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.personal_layers import PersonalLayers
from fedflux.engine import Engine


@algorithm("fedper")
@dataclass(frozen=True)
class FedPer(PersonalLayers):
    """Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, with one personal layer.

    It is what FLUX's shared trunk comes to when every client is a cluster of its own.
    """

    settings: Settings
    revision: ClassVar[int] = 1

    def personal(self, engine: Engine) -> tuple[str, ...]:
        """The last layer."""
        return tuple(sorted(engine.head_names))
