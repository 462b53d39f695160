"""Ditto: beside FedAvg's model every client trains one of its own, which is pulled towards it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import averaged, count_round, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, LossRule, Operations
from fedflux.engine.stack import Parameters
from fedflux.operations import operation

PERSONAL = "personal"
"""The slot in which a client keeps v_i."""


@operation("pulled-to-anchor")
@dataclass(frozen=True)
class Pulled(LossRule):
    """Descend f(v) + (λ/2) ‖v − w‖²; w is a second parameter set, which stays as it was sent."""

    strength: float

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Any,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Any]:
        """One gradient step of v."""
        own, anchor = params
        v = operations.trained(own)

        def loss(at: Parameters) -> Tensor:
            return batch.mean(self.losses(operations, {**own, **at}, batch, extras))

        gap = operations.add(v, operations.trained(anchor), -1)
        slopes = operations.add(operations.gradient(loss, v), gap, self.strength)
        moved, memory = self.optimiser.update(operations, v, slopes, memory, extras)
        return ({**own, **moved}, anchor), memory


@dataclass(frozen=True, eq=False)
class DittoState:
    """The global model w, the model that everyone begins from, and who has one of its own: v_i stays at the client."""

    model: Stack
    initial: Stack
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    round: int = 0


@algorithm("ditto")
@dataclass(frozen=True)
class Ditto(Method):
    """Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.

    v_i is pulled to w as it was sent in the round: with λ = 0 it is local training; the larger λ, the nearer it is.
    """

    settings: Settings
    strength: float = 0.1
    """λ: the authors choose among a few values from 0.05 to 2 by validation."""
    several_labels: ClassVar[bool] = True
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (DittoState,)
    own_rule: ClassVar[bool] = True

    def init(self, federation: Federation, engine: Engine) -> DittoState:
        """The same model for everyone and everything."""
        return DittoState(engine.initial(), engine.initial(), np.zeros(len(federation), dtype=np.bool_))

    def round(self, state: DittoState, cohort: Cohort, engine: Engine) -> tuple[DittoState, RoundMetrics]:
        """Every member trains w, which is averaged by size, and its own v_i, which stays where it is."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, key = self.settings.training, Key(self.settings.seed, state.round)
        with metrics.timed("training"):
            start = Stack.together([state.initial, state.model])
            jobs = [Job(client, (0, 1), (PERSONAL, None), (PERSONAL, None)) for client in cohort]
            rule = Pulled(training.optimiser, self.strength)
            own = engine.train(start, cohort, jobs, training, key, rule)
            trained = engine.train(state.model, cohort, [Job(client) for client in cohort], training, key)
            took_part = state.took_part.copy()
            took_part[list(own.clients)] = True
            model = averaged(self.settings, state.model, trained, cohort)
        state = replace(state, model=model, took_part=took_part)
        count_round(metrics, cohort, trained, model.model_bytes(), training.epochs)
        metrics.count(own.clients, training=training.epochs)
        metrics.missed(state.round, {**own.missing, **trained.missing})
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: DittoState, clients: Cohort, engine: Engine) -> Predictor:
        """v_i, and w for a client that never took part."""
        return Predictor.kept(state.model, PERSONAL, state.took_part[list(clients.ids)])

    def unseen(self, state: DittoState, features: Sequence[Features], engine: Engine) -> Predictor:
        """w for everyone."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: DittoState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.took_part))

    def models(self, state: DittoState) -> Mapping[str, Stack]:
        """w; personal models stay with their clients."""
        return {"models": state.model}
