"""IFCA: M models on the server; every round each client joins the one with the least loss on its training data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import (
    RoundMetrics,
    Settings,
    Undescribed,
    aggregate,
    by_membership,
    told_clusters,
    validated,
)
from fedflux.algorithms.shared.membership import UNPLACED, mean_losses, own_model, unplaced, with_placed
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack


@dataclass(frozen=True, eq=False)
class IfcaState:
    """The M models θ_m and the cluster that every client found for itself when it last took part."""

    models: Stack
    assignment: NDArray[np.int64]
    round: int = 0


@dataclass(frozen=True)
class Ifca(Undescribed):
    """Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020; with model averaging.

    A client answers with the model that it last chose, even if it has been away since. Models are averaged by size, as
    the authors do on FEMNIST, where sizes differ; elsewhere theirs are equal.
    """

    settings: Settings
    restarts: int = 0
    """How many further sets of M initial models to try in the first round until every model attracts `share` of the
    clients (the authors' "good initialiser" on CIFAR-10). Each set costs M models down and M forward passes."""
    share: float = 0.1
    """The authors': 0.1 for M = 4, 0.35 for M = 2."""
    revision: ClassVar[int] = 1

    def init(self, federation: Federation, engine: Engine) -> IfcaState:
        """M models drawn independently, nobody placed."""
        models = engine.initial(told_clusters(self.settings, "ifca"))
        return IfcaState(models, np.full(len(federation), UNPLACED, dtype=np.int64))

    def round(self, state: IfcaState, cohort: Cohort, engine: Engine) -> tuple[IfcaState, RoundMetrics]:
        """Every member picks the best of the models as they were sent, trains it; models are averaged by cluster."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        with metrics.timed("clustering"):
            if state.round == 1 and self.restarts:
                state = replace(state, models=self._good_models(state, cohort, engine, metrics))
            chosen = self._choose(state, cohort, engine)
        with metrics.timed("training"):
            jobs = [Job(client, (int(m),)) for client, m in zip(cohort, chosen, strict=True)]
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, cohort, jobs, self.settings.training, key)
            models = aggregate(state.models, trained, chosen, cohort.sizes("train"))
        state = replace(state, models=models, assignment=with_placed(state.assignment, cohort, chosen))
        count, size = len(models), models.model_bytes()
        metrics.send(cohort, up=size, down=count * size)
        metrics.count(cohort, models_down=count, models_up=1, forward=count, training=self.settings.training.epochs)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _choose(self, state: IfcaState, clients: Cohort, engine: Engine) -> NDArray[np.int64]:
        """m_i = argmin_m F_i(θ_m), the lowest index where several are as good."""
        return np.asarray(mean_losses(state.models, clients, engine).argmin(axis=1))

    def _good_models(self, state: IfcaState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> Stack:
        """The first set of initial models none of which is left with too few clients, or the most even one."""
        count, size = len(state.models), state.models.model_bytes()
        drawn = engine.initial(count * (1 + self.restarts))
        best, evenness = state.models, -1.0
        for k in range(1 + self.restarts):
            models = drawn.take(range(k * count, (k + 1) * count))
            chosen = self._choose(replace(state, models=models), cohort, engine)
            least = np.bincount(chosen, minlength=count).min() / len(cohort)
            metrics.send(cohort, down=count * size)
            metrics.count(cohort, models_down=count, forward=count)
            if least > evenness:
                best, evenness = models, least
            if least >= self.share:
                break
        return best

    def complete(self, state: IfcaState, clients: Cohort, engine: Engine) -> tuple[IfcaState, RoundMetrics]:
        """Whoever never took part picks a model as in a round."""
        metrics = RoundMetrics()
        newcomers = unplaced(state.assignment, clients)
        if not newcomers:
            return state, metrics
        with metrics.timed("clustering"):
            chosen = self._choose(state, clients.federation.cohort(newcomers, clients.round), engine)
        metrics.send(newcomers, down=len(state.models) * state.models.model_bytes())
        metrics.count(newcomers, models_down=len(state.models), forward=len(state.models))
        return replace(state, assignment=with_placed(state.assignment, newcomers, chosen)), metrics

    def known(self, state: IfcaState, clients: Cohort, engine: Engine) -> Predictor:
        """The model that the client last chose by its training data."""
        return own_model(state.models, state.assignment, clients)

    def unseen(self, state: IfcaState, features: Sequence[Features], engine: Engine) -> Predictor:
        """A loss needs labels: all models, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))

    def assignment(self, state: IfcaState) -> NDArray[np.int64]:
        """The model that every client chose last, −1 where it never has."""
        return state.assignment
