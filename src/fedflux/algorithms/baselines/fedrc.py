"""FedRC: FedEM with the likelihood divided by each model's label marginal, so that only concepts part clients."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import RoundMetrics
from fedflux.algorithms.baselines.fedem import FedEM, FedEMState
from fedflux.algorithms.shared.mixture import Floats
from fedflux.data import Cohort, Federation
from fedflux.engine import Engine

LEAST = 1e-8
"""Of a label's summed responsibility, so that no label has probability zero."""
FLOAT_BYTES = 4


@dataclass(frozen=True, eq=False)
class FedRCState(FedEMState):
    """FedEM's state, π_i being the paper's ω_i, and the label marginals C (models × labels), rows summing to one."""

    marginals: Floats = field(kw_only=True)


@dataclass(frozen=True)
class FedRC(FedEM):
    """Guo, Tang and Lin, ICML 2024: P(y|x; θ_m) of FedEM becomes P(y|x; θ_m) / P(y; θ_m).

    C is uniform in the first round, which is therefore FedEM's. So is the choice of learning rate: the authors' own is
    0.06, several times what FedAvg is given.
    """

    revision: ClassVar[int] = 1
    name: ClassVar[str] = "fedrc"

    def init(self, federation: Federation, engine: Engine) -> FedRCState:
        """FedEM's beginning and uniform marginals."""
        begin = super().init(federation, engine)
        shape = (len(begin.models), federation.classes)
        uniform = np.full(shape, 1 / federation.classes)
        return FedRCState(begin.models, begin.pi, begin.took_part, begin.placed, marginals=uniform)

    def _evidence(self, state: FedEMState, cohort: Cohort, engine: Engine) -> list[Floats]:
        """−f(x, y; θ_m) − log C[m][y] of every training sample, member by member."""
        assert isinstance(state, FedRCState)
        return self._without_marginals(state, cohort, super()._evidence(state, cohort, engine))

    def _without_marginals(self, state: FedRCState, cohort: Cohort, likelihoods: Sequence[Floats]) -> list[Floats]:
        """The likelihoods of the training samples, divided by the probabilities of their labels."""
        logs = np.log(state.marginals)
        return [one - logs[:, _labels(cohort, k)].T for k, one in zip(cohort, likelihoods, strict=True)]

    def _after_estimation(
        self, state: FedEMState, cohort: Cohort, q: Sequence[Floats], metrics: RoundMetrics
    ) -> FedRCState:
        """C[m][u] ← Σ_i S_i[m][u], S_i[m][u] = Σ_{j: y_ij = u} q_ij(m), each row normalised."""
        assert isinstance(state, FedRCState)
        sums = np.zeros_like(state.marginals)
        for client, one in zip(cohort, q, strict=True):
            np.add.at(sums.T, _labels(cohort, client), one)
        sums = np.maximum(sums, LEAST)
        table = sums.size * FLOAT_BYTES
        metrics.send(cohort, up=table, down=table)
        return replace(state, marginals=sums / sums.sum(axis=1, keepdims=True))


def _labels(cohort: Cohort, client: int) -> NDArray[np.int64]:
    """Of all positions of the client's training part, copies included."""
    data = cohort.data(client, "train")
    return np.tile(data.y.numpy(), data.copies)
