"""FedEM: every client's data is a mixture of M distributions, learned by federated expectation-maximisation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, Method, PerClient, RoundMetrics, Settings, told_clusters
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import aggregate, rows_of, sizes_of, validated
from fedflux.algorithms.shared.mixture import AskWeights, Evidence, Floats, Responsibilities, WeightedLoss
from fedflux.data import Cohort, Features, Federation, Split
from fedflux.engine import Engine, Job, Key, Predictor, Stack, Trained


@dataclass(frozen=True, eq=False)
class FedEMState:
    """The models θ_1 … θ_M, every client's weights π_i, and whose weights are more than the uniform beginning."""

    models: Stack
    pi: Annotated[Floats, PerClient(0)]
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    placed: Annotated[NDArray[np.bool_], PerClient(False)]
    """Who has weights of its own: those that took part, and after the last round everyone."""
    round: int = 0

    @property
    def weights(self) -> Floats:
        """π of everyone, uniform where a client has none of its own yet."""
        return np.where(self.placed[:, None], self.pi, 1 / len(self.models))


S = TypeVar("S", bound=FedEMState)


@dataclass(frozen=True)
class MixtureRounds(Method, Generic[S]):
    """The rounds of FedEM and its kin, which differ in what a sample says of the models."""

    settings: Settings
    name: ClassVar[str]
    split_of_losses: ClassVar[Split] = "train"
    own_rule: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset(("clusters",))

    def _begin(self, federation: Federation, engine: Engine) -> FedEMState:
        """M models drawn apart, uniform weights."""
        count = told_clusters(self.settings, self.name)
        nobody = np.zeros(len(federation), dtype=np.bool_)
        return FedEMState(engine.initial(count), np.full((len(federation), count), 1 / count), nobody, nobody)

    def _evidence(self, state: S) -> Evidence:
        """What a sample says of the models."""
        return Evidence(len(state.models), split=self.split_of_losses)

    def _preparation(self, state: S) -> Responsibilities:
        """What clients compute before they train."""
        return Responsibilities(self._evidence(state))

    def _bytes_besides(self, state: S) -> int:
        """What travels each way beside the models."""
        return 0

    def round(self, state: S, cohort: Cohort, engine: Engine) -> tuple[S, RoundMetrics]:
        """E-step, π_i(m) ← (1/n_i) Σ_j q_ij(m), then every member trains every model on its share q."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, count = self.settings.training, len(state.models)
        sent = count * state.models.model_bytes() + self._bytes_besides(state)
        with metrics.timed("training"):
            jobs = [Job(client, (m,)) for client in cohort for m in range(count)]
            pi = state.weights
            extras = {client: {"pi": torch.from_numpy(pi[client].copy())} for client in cohort}
            rule, key = WeightedLoss(training.optimiser), Key(self.settings.seed, state.round)
            trained = engine.train(state.models, cohort, jobs, training, key, rule, extras, self._preparation(state))
        members = cohort.only(trained.clients)
        if trained.jobs:
            state = self._learn(state, members, trained)
        metrics.send(cohort, down=sent)
        metrics.send(members, up=sent)
        metrics.count(cohort, models_down=count)
        metrics.count(members, models_up=count, forward=count, training=count * training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _learn(self, state: S, members: Cohort, trained: Trained) -> S:
        """M-step: π_i as told, and θ_m ← Σ_i n_i θ_im / Σ_i n_i.

        Clients weigh by their size, not by π; only one with π_i(m) = 0, which cannot have moved θ_m, is left out.
        """
        ids = list(members.ids)
        state = _with_weights(state, ids, [trained.told[client]["pi"].astype(np.float64) for client in ids])
        rows = rows_of(trained)
        sizes = sizes_of(trained, members) * (state.pi[list(trained.clients), rows] > 0)
        took_part = state.took_part.copy()
        took_part[ids] = True
        models = (self.settings.average or aggregate)(state.models, trained.models, rows, sizes)
        return replace(state, models=models, took_part=took_part)

    def complete(self, state: S, clients: Cohort, engine: Engine) -> tuple[S, RoundMetrics]:
        """A client that never took part finds its π_i under the models as they are."""
        metrics = RoundMetrics()
        newcomers = clients.only([client for client in clients if not state.placed[client]])
        if len(newcomers):
            with metrics.timed("clustering"):
                answers = engine.ask(AskWeights(self._evidence(state)), newcomers, state.models)
                found = [one["pi"].astype(np.float64) for one in answers.arrays]
                state = _with_weights(state, answers.clients, found) if found else state
            count = len(state.models)
            metrics.send(newcomers, down=count * state.models.model_bytes())
            metrics.count(newcomers, models_down=count)
            metrics.count(answers.clients, forward=count)
        return state, metrics

    def known(self, state: S, clients: Cohort, engine: Engine) -> Predictor:
        """Each client's own mixture Σ_m π_i(m) softmax(θ_m(x))."""
        return Predictor(state.models, state.weights[list(clients.ids)])

    def unseen(self, state: S, features: Sequence[Features], engine: Engine) -> Predictor:
        """The mixture with the mean of π over the clients that took part."""
        count = len(state.models)
        mean = state.pi[state.took_part].mean(axis=0) if state.took_part.any() else np.full(count, 1 / count)
        return Predictor.shared(state.models, mean, len(features))

    def assignment(self, state: S) -> NDArray[np.int64]:
        """The model of largest weight, −1 where a client has no weights yet."""
        return np.where(state.placed, state.pi.argmax(axis=1), UNPLACED).astype(np.int64)


@algorithm("fedem")
class FedEM(MixtureRounds[FedEMState]):
    """Marfoq et al., NeurIPS 2021.

    The loss of model m is weighted by q(m), which is about 1/M at the start, so that it learns with a fraction 1/M of
    the learning rate. The authors tuned that to three to five times FedAvg's for M = 3; here it is the protocol's, as
    for every method, and `--preset tuned` the one that suits it. Their weight decay and step schedule are left out.
    """

    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (FedEMState,)
    name: ClassVar[str] = "fedem"

    def init(self, federation: Federation, engine: Engine) -> FedEMState:
        """M models drawn apart, uniform weights."""
        return self._begin(federation, engine)


def _with_weights(state: S, clients: Sequence[int], weights: Sequence[Floats]) -> S:
    pi, placed = state.pi.copy(), state.placed.copy()
    pi[list(clients)] = weights
    placed[list(clients)] = True
    return replace(state, pi=pi, placed=placed)
