"""Local: every client trains alone. The floor for clients that differ, the ceiling for clients with plenty of data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import RoundMetrics, Settings, Undescribed, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack


@dataclass(frozen=True, eq=False)
class LocalState:
    """One personal model a client."""

    models: Stack
    round: int = 0


@dataclass(frozen=True)
class Local(Undescribed):
    """No communication at all."""

    settings: Settings
    revision: ClassVar[int] = 1

    def init(self, federation: Federation, engine: Engine) -> LocalState:
        """The same initial model for everyone."""
        return LocalState(engine.initial().take([0] * len(federation)))

    def round(self, state: LocalState, cohort: Cohort, engine: Engine) -> tuple[LocalState, RoundMetrics]:
        """Every member goes on training its own model."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        with metrics.timed("training"):
            jobs = [Job(client, (client,)) for client in cohort]
            trained = engine.train(
                state.models, cohort, jobs, self.settings.training, Key(self.settings.seed, state.round)
            )
            state = replace(state, models=state.models.put(cohort.ids, trained))
        metrics.send(cohort)
        metrics.count(cohort, training=self.settings.training.epochs)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: LocalState, clients: Cohort, engine: Engine) -> Predictor:
        """Each client's own model."""
        return Predictor.single(state.models, np.array(clients.ids, dtype=np.int64))

    def unseen(self, state: LocalState, features: Sequence[Features], engine: Engine) -> None:
        """A client without labels cannot train, so it has no model."""
        return None

    def assignment(self, state: LocalState) -> NDArray[np.int64]:
        """Everyone is a cluster of one."""
        return np.arange(len(state.models))
