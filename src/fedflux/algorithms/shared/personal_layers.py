"""Methods whose clients keep some layers to themselves and train all others with everybody."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import Method, PerClient, RoundMetrics
from fedflux.algorithms.shared.averaging import averaged, count_round, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack, Trained

PERSONAL = "personal"
"""The slot in which a client keeps its layers."""


@dataclass(frozen=True, eq=False)
class PersonalLayersState:
    """The model whose shared layers everyone has, and who has personal ones: they stay with the client.

    Where a layer is personal the model has the mean of what the last members trained.
    """

    model: Stack
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    round: int = 0


class PersonalLayers(Method):
    """A method says which layers are personal; the rest follows.

    Clients send whole models. Nobody is ever given another client's personal layers: their mean answers unseen clients
    and is what newcomers begin from.
    """

    several_labels: ClassVar[bool] = True
    states: ClassVar[tuple[type, ...]] = (PersonalLayersState,)

    @abstractmethod
    def personal(self, engine: Engine) -> tuple[str, ...]:
        """The tensors of a model that are personal."""

    @property
    def passes(self) -> int:
        """Over each member's data, in a round."""
        return self.settings.training.epochs

    def init(self, federation: Federation, engine: Engine) -> PersonalLayersState:
        """The initial model, and nothing personal yet."""
        return PersonalLayersState(engine.initial(), np.zeros(len(federation), dtype=np.bool_))

    def round(
        self, state: PersonalLayersState, cohort: Cohort, engine: Engine
    ) -> tuple[PersonalLayersState, RoundMetrics]:
        """Every member trains the shared layers with its own in place; the shared ones are averaged by size."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        with metrics.timed("training"):
            trained = self._train(state, cohort, engine, metrics)
            took_part = state.took_part.copy()
            took_part[list(trained.clients)] = True
            model = averaged(self.settings, state.model, trained, cohort)
        state = replace(state, model=model, took_part=took_part)
        count_round(metrics, cohort, trained, model.model_bytes(), self.passes)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _train(self, state: PersonalLayersState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> Trained:
        """The protocol's local training of all layers at once."""
        layers = self.personal(engine)
        jobs = [Job(client, own=(PERSONAL,), keep=(PERSONAL,), layers=layers) for client in cohort]
        return engine.train(state.model, cohort, jobs, self.settings.training, Key(self.settings.seed, state.round))

    def known(self, state: PersonalLayersState, clients: Cohort, engine: Engine) -> Predictor:
        """The shared layers with the client's own; a client that never took part has the mean of the others'."""
        return Predictor.kept(state.model, PERSONAL, state.took_part[list(clients.ids)], self.personal(engine))

    def unseen(self, state: PersonalLayersState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The shared layers with the mean of personal ones."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: PersonalLayersState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.took_part))

    def models(self, state: PersonalLayersState) -> Mapping[str, Stack]:
        """The shared layers with the mean of personal ones."""
        return {"models": state.model}
