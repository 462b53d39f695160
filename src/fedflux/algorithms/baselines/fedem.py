"""FedEM: every client's data is a mixture of M distributions, learned by federated expectation-maximisation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import RoundMetrics, Settings, Undescribed, told_clusters, validated
from fedflux.algorithms.shared.mixture import Floats, responsibilities, settled, train_mixture
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Key, Predictor, Stack


@dataclass(frozen=True, eq=False)
class FedEMState:
    """The models θ_1 … θ_M, every client's weights π_i, and whose weights are more than the uniform beginning."""

    models: Stack
    pi: Floats
    took_part: NDArray[np.bool_]
    placed: NDArray[np.bool_]
    """Who has weights of its own: those that took part, and after the last round everyone."""
    round: int = 0


@dataclass(frozen=True)
class FedEM(Undescribed):
    """Marfoq et al., NeurIPS 2021.

    The loss of model m is weighted by q(m), which is about 1/M at the start, so that it learns with a fraction 1/M of
    the learning rate. The authors tuned that to three to five times FedAvg's for M = 3; here it is the protocol's, as
    for every method, and `--preset tuned` the one that suits it. Their weight decay and step schedule are left out.
    """

    settings: Settings
    revision: ClassVar[int] = 1
    name: ClassVar[str] = "fedem"

    def init(self, federation: Federation, engine: Engine) -> FedEMState:
        """M models drawn apart, uniform weights."""
        count = told_clusters(self.settings, self.name)
        nobody = np.zeros(len(federation), dtype=np.bool_)
        return FedEMState(engine.initial(count), np.full((len(federation), count), 1 / count), nobody, nobody)

    def round(self, state: FedEMState, cohort: Cohort, engine: Engine) -> tuple[FedEMState, RoundMetrics]:
        """E-step, π_i(m) ← (1/n_i) Σ_j q_ij(m), then every member trains every model on its share q."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        ids, count = list(cohort.ids), len(state.models)
        with metrics.timed("clustering"):
            evidence = self._evidence(state, cohort, engine)
            q = [responsibilities(one, pi) for one, pi in zip(evidence, state.pi[ids], strict=True)]
            state = _with_weights(state, ids, [one.mean(axis=0) for one in q])
            state = self._after_estimation(state, cohort, q, metrics)
        with metrics.timed("training"):
            key = Key(self.settings.seed, state.round)
            models = train_mixture(state.models, cohort, engine, self.settings.training, key, q, state.pi[ids])
        took_part = state.took_part.copy()
        took_part[ids] = True
        state = replace(state, models=models, took_part=took_part)
        metrics.send(cohort, up=count * models.model_bytes(), down=count * models.model_bytes())
        passes = count * self.settings.training.epochs
        metrics.count(cohort, models_down=count, models_up=count, forward=count, training=passes)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _evidence(self, state: FedEMState, cohort: Cohort, engine: Engine) -> list[Floats]:
        """log P(y|x; θ_m) = −f(x, y; θ_m) of every training sample (samples × models), member by member."""
        return [-losses.T.astype(np.float64) for losses in engine.losses(state.models, cohort, "train")]

    def _after_estimation(
        self, state: FedEMState, cohort: Cohort, q: Sequence[Floats], metrics: RoundMetrics
    ) -> FedEMState:
        """What else the server learns from the responsibilities: nothing."""
        return state

    def complete(self, state: FedEMState, clients: Cohort, engine: Engine) -> tuple[FedEMState, RoundMetrics]:
        """A client that never took part finds its π_i under the models as they are."""
        metrics = RoundMetrics()
        newcomers = [client for client in clients if not state.placed[client]]
        if newcomers:
            with metrics.timed("clustering"):
                evidence = self._evidence(state, clients.federation.cohort(newcomers), engine)
                state = _with_weights(state, newcomers, [settled(one) for one in evidence])
            count = len(state.models)
            metrics.send(newcomers, down=count * state.models.model_bytes())
            metrics.count(newcomers, models_down=count, forward=count)
        return state, metrics

    def known(self, state: FedEMState, clients: Cohort, engine: Engine) -> Predictor:
        """Each client's own mixture Σ_m π_i(m) softmax(θ_m(x))."""
        return Predictor(state.models, state.pi[list(clients.ids)])

    def unseen(self, state: FedEMState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The mixture with the mean of π over the clients that took part."""
        mean = state.pi[state.took_part].mean(axis=0) if state.took_part.any() else state.pi[0]
        return Predictor.shared(state.models, mean, len(features))

    def assignment(self, state: FedEMState) -> NDArray[np.int64]:
        """The model of largest weight, −1 where a client has no weights yet."""
        return np.where(state.placed, state.pi.argmax(axis=1), -1).astype(np.int64)


def _with_weights(state: FedEMState, clients: Sequence[int], weights: Sequence[Floats]) -> FedEMState:
    pi, placed = state.pi.copy(), state.placed.copy()
    pi[list(clients)] = weights
    placed[list(clients)] = True
    return replace(state, pi=pi, placed=placed)
