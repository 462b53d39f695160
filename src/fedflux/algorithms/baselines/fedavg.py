"""FedAvg: one global model, the size-weighted mean of what clients trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import averaged, count_round, sizes_of, validated
from fedflux.algorithms.shared.momentum import carried_on
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack


@dataclass(frozen=True, eq=False)
class FedAvgState:
    """The global model θ (a stack of one), the number of clients, and how many rounds it has seen."""

    model: Stack
    clients: Annotated[int, PerClient()]
    round: int = 0
    velocity: Stack | None = None
    """How θ has been moving, where the server has momentum."""


@algorithm("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    """McMahan et al., AISTATS 2017."""

    settings: Settings
    several_labels: ClassVar[bool] = True
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (FedAvgState,)
    reads: ClassVar[frozenset[str]] = frozenset(("finetune", "server_momentum"))

    def init(self, federation: Federation, engine: Engine) -> FedAvgState:
        """The initial model."""
        return FedAvgState(engine.initial(), len(federation))

    def round(self, state: FedAvgState, cohort: Cohort, engine: Engine) -> tuple[FedAvgState, RoundMetrics]:
        """Train from θ on every member, average by size."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        with metrics.timed("training"):
            jobs = [Job(client) for client in cohort]
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.model, cohort, jobs, self.settings.training, key)
            model = averaged(self.settings, state.model, trained, cohort)
            velocity, beta = state.velocity, self.settings.server_momentum
            if beta:
                rows = [0] if sizes_of(trained, cohort).any() else []
                model, velocity = carried_on(state.model, model, velocity, beta, rows, engine.trained_names)
        state = replace(state, model=model, velocity=velocity)
        count_round(metrics, cohort, trained, model.model_bytes(), self.settings.training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: FedAvgState, clients: Cohort, engine: Engine) -> Predictor:
        """θ for everyone."""
        return Predictor.shared(state.model, np.ones(1), len(clients))

    def unseen(self, state: FedAvgState, features: Sequence[Features], engine: Engine) -> Predictor:
        """θ for everyone."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: FedAvgState) -> NDArray[np.int64]:
        """One cluster."""
        return np.zeros(state.clients, dtype=np.int64)

    def models(self, state: FedAvgState) -> Mapping[str, Stack]:
        """θ."""
        return {"models": state.model}
