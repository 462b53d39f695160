"""Local: every client trains alone. The floor for clients that differ, the ceiling for clients with plenty of data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack

PERSONAL = "personal"
"""The slot in which a client keeps its own model."""


@dataclass(frozen=True, eq=False)
class LocalState:
    """The model that everyone begins from, and who has trained one of its own: that stays with the client."""

    initial: Stack
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    round: int = 0


@algorithm("local")
@dataclass(frozen=True)
class Local(Method):
    """No communication at all."""

    settings: Settings
    several_labels: ClassVar[bool] = True
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (LocalState,)

    def init(self, federation: Federation, engine: Engine) -> LocalState:
        """The same initial model for everyone."""
        return LocalState(engine.initial(), np.zeros(len(federation), dtype=np.bool_))

    def round(self, state: LocalState, cohort: Cohort, engine: Engine) -> tuple[LocalState, RoundMetrics]:
        """Every member goes on training its own model."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        with metrics.timed("training"):
            jobs = [Job(client, own=(PERSONAL,), keep=(PERSONAL,)) for client in cohort]
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.initial, cohort, jobs, self.settings.training, key)
        took_part = state.took_part.copy()
        took_part[list(trained.clients)] = True
        state = replace(state, took_part=took_part)
        metrics.send(cohort)
        metrics.count(cohort.only(trained.clients), training=self.settings.training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: LocalState, clients: Cohort, engine: Engine) -> Predictor:
        """Each client's own model; the initial one for a client that never took part."""
        return Predictor.kept(state.initial, PERSONAL, state.took_part[list(clients.ids)])

    def unseen(self, state: LocalState, features: Sequence[Features], engine: Engine) -> None:
        """A client without labels cannot train, so it has no model."""
        return None

    def assignment(self, state: LocalState) -> NDArray[np.int64]:
        """Everyone is a cluster of one."""
        return np.arange(len(state.took_part))

    def models(self, state: LocalState) -> Mapping[str, Stack]:
        """The server has none but the initial one; personal models stay with their clients."""
        return {"models": state.initial}
