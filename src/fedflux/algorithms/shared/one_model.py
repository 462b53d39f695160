"""Methods with one model for everyone: what clients answer with does not depend on who they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Method, PerClient
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Predictor, Stack


@dataclass(frozen=True, eq=False)
class OneModelState:
    """The model θ (a stack of one), the number of clients, and how many rounds it has seen."""

    models: Stack
    clients: Annotated[int, PerClient()]
    round: int = 0


class OneModel(Method):
    """A method says what a round does; the rest follows."""

    states: ClassVar[tuple[type, ...]] = (OneModelState,)

    def init(self, federation: Federation, engine: Engine) -> OneModelState:
        """The initial model."""
        return OneModelState(engine.initial(), len(federation))

    def known(self, state: OneModelState, clients: Cohort, engine: Engine) -> Predictor:
        """θ for everyone."""
        return Predictor.shared(state.models, np.ones(1), len(clients))

    def unseen(self, state: OneModelState, features: Sequence[Features], engine: Engine) -> Predictor:
        """θ for everyone."""
        return Predictor.shared(state.models, np.ones(1), len(features))

    def assignment(self, state: OneModelState) -> NDArray[np.int64]:
        """One cluster."""
        return np.zeros(state.clients, dtype=np.int64)
