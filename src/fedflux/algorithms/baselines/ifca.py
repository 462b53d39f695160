"""IFCA: M models on the server; every round each client joins the one with the least loss on its training data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, Method, PerClient, RoundMetrics, Settings, told_clusters
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import averaged, by_membership, validated
from fedflux.algorithms.shared.membership import mean_losses, own_model, unplaced, with_placed
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack


@dataclass(frozen=True, eq=False)
class IfcaState:
    """The M models θ_m and the cluster that every client found for itself when it last took part."""

    models: Stack
    assignment: Annotated[NDArray[np.int64], PerClient(UNPLACED)]
    round: int = 0


@algorithm("ifca")
@dataclass(frozen=True)
class Ifca(Method):
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
    states: ClassVar[tuple[type, ...]] = (IfcaState,)
    reads: ClassVar[frozenset[str]] = frozenset(("finetune", "clusters"))

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
                state = replace(state, models=self._good_models(state.models, cohort, engine, metrics))
            chosen = self._choose(state.models, cohort, engine)
        with metrics.timed("training"):
            jobs = [Job(client, (m,)) for client, m in chosen.items()]
            key = Key(self.settings.seed, state.round)
            trained = engine.train(state.models, cohort.only(chosen), jobs, self.settings.training, key)
            models = averaged(self.settings, state.models, trained, cohort)
        state = replace(state, models=models, assignment=with_placed(state.assignment, chosen, [*chosen.values()]))
        count, size = len(models), models.model_bytes()
        metrics.send(cohort, down=count * size)
        metrics.send(trained.clients, up=size)
        metrics.count(cohort, models_down=count)
        metrics.count(chosen, forward=count)
        metrics.count(trained.clients, models_up=1, training=self.settings.training.epochs)
        metrics.missed(state.round, {client: "it chose no model" for client in cohort if client not in chosen})
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _choose(self, models: Stack, clients: Cohort, engine: Engine) -> dict[int, int]:
        """m_i = argmin_m F_i(θ_m) by client, the lowest index where several are as good; of those that answer."""
        return {client: int(losses.argmin()) for client, losses in mean_losses(models, clients, engine).items()}

    def _good_models(self, models: Stack, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> Stack:
        """The first set of initial models none of which is left with too few clients, or the most even one."""
        count, size = len(models), models.model_bytes()
        drawn = engine.initial(count * (1 + self.restarts))
        best, evenness = models, -1.0
        for k in range(1 + self.restarts):
            candidates = drawn.take(range(k * count, (k + 1) * count))
            chosen = self._choose(candidates, cohort, engine)
            held = np.bincount(np.array([*chosen.values()], dtype=np.int64), minlength=count)
            least = held.min() / max(len(chosen), 1)
            metrics.send(cohort, down=count * size)
            metrics.count(cohort, models_down=count)
            metrics.count(chosen, forward=count)
            if least > evenness:
                best, evenness = candidates, least
            if least >= self.share:
                break
        return best

    def complete(self, state: IfcaState, clients: Cohort, engine: Engine) -> tuple[IfcaState, RoundMetrics]:
        """Whoever never took part picks a model as in a round."""
        metrics = RoundMetrics()
        newcomers = clients.only(unplaced(state.assignment, clients))
        if not len(newcomers):
            return state, metrics
        with metrics.timed("clustering"):
            chosen = self._choose(state.models, newcomers, engine)
        metrics.send(newcomers, down=len(state.models) * state.models.model_bytes())
        metrics.count(newcomers, models_down=len(state.models))
        metrics.count(chosen, forward=len(state.models))
        return replace(state, assignment=with_placed(state.assignment, chosen, [*chosen.values()])), metrics

    def known(self, state: IfcaState, clients: Cohort, engine: Engine) -> Predictor:
        """The model that the client last chose by its training data."""
        return own_model(state.models, state.assignment, clients)

    def unseen(self, state: IfcaState, features: Sequence[Features], engine: Engine) -> Predictor:
        """A loss needs labels: all models, by how many clients each has."""
        return by_membership(state.models, state.assignment, len(features))

    def assignment(self, state: IfcaState) -> NDArray[np.int64]:
        """The model that every client chose last, −1 where it never has."""
        return state.assignment
