"""FedRep: as FedPer, but a client trains its own last layer first and then, beneath it, the shared ones."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedflux.algorithms.base import RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.personal_layers import PERSONAL, PersonalLayers, PersonalLayersState
from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Key, Trained
from fedflux.engine.rules import Batch, Extras, LossRule, Operations
from fedflux.engine.stack import Parameters
from fedflux.operations import operation


@operation("some-layers")
@dataclass(frozen=True)
class SomeLayers(LossRule):
    """Descend the task's mean loss in these tensors alone; all others stay as they are."""

    layers: tuple[str, ...]

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> Any:
        """What the optimiser of these begins with."""
        return self.optimiser.start(self._moving(operations, params[0]))

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        """One gradient step; none where the model has no such layer."""
        (model,) = params
        moving = self._moving(operations, model)
        if not moving:
            return params, memory

        def loss(at: Parameters) -> Tensor:
            return batch.mean(self.losses(operations, {**model, **at}, batch, extras))

        gradients = operations.gradient(loss, moving)
        moved, memory = self.optimiser.update(operations, moving, gradients, memory, extras)
        return ({**model, **moved},), memory

    def _moving(self, operations: Operations, model: Parameters) -> Parameters:
        return {name: tensor for name, tensor in operations.trained(model).items() if name in self.layers}


@algorithm("fedrep")
@dataclass(frozen=True)
class FedRep(PersonalLayers):
    """Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.

    The authors train the last layer for several epochs and all others for one; several are the protocol's epochs here.
    """

    settings: Settings
    trunk_epochs: int = 1
    revision: ClassVar[int] = 1
    own_rule: ClassVar[bool] = True

    def personal(self, engine: Engine) -> tuple[str, ...]:
        """The last layer."""
        return tuple(sorted(engine.head_names))

    @property
    def passes(self) -> int:
        """The protocol's epochs for the last layer, and those of the others."""
        return self.settings.training.epochs + self.trunk_epochs

    def _train(self, state: PersonalLayersState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> Trained:
        """The last layer beneath which nothing moves, which stays with the client; then the others beneath it."""
        training, key, head = self.settings.training, Key(self.settings.seed, state.round), self.personal(engine)
        jobs = [Job(client, own=(PERSONAL,), keep=(PERSONAL,), layers=head, sends=False) for client in cohort]
        first = engine.train(state.model, cohort, jobs, training, key, SomeLayers(training.optimiser, head))
        trunk = tuple(sorted(engine.trained_names - engine.head_names))
        members = cohort.only(first.clients)
        jobs = [replace(job, sends=True) for job in first.jobs]
        once = replace(training, epochs=self.trunk_epochs)
        trained = engine.train(state.model, members, jobs, once, key, SomeLayers(training.optimiser, trunk))
        return replace(trained, missing={**first.missing, **trained.missing})
