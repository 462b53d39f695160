"""FedRC: FedEM with the likelihood divided by each model's label marginal, so that only concepts part clients."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedflux.algorithms.baselines.fedem import FedEMState, MixtureRounds
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.mixture import Evidence, Floats, Responsibilities
from fedflux.data import Cohort, Federation
from fedflux.engine import Engine, Trained

LEAST = 1e-8
"""Of a label's summed responsibility, so that no label has probability zero."""
FLOAT_BYTES = 4


@dataclass(frozen=True, eq=False)
class FedRCState(FedEMState):
    """FedEM's state, π_i being the paper's ω_i, and the label marginals C (models × labels), rows summing to one."""

    marginals: Floats = field(kw_only=True)


@algorithm("fedrc")
class FedRC(MixtureRounds[FedRCState]):
    """Guo, Tang and Lin, ICML 2024: P(y|x; θ_m) of FedEM becomes P(y|x; θ_m) / P(y; θ_m).

    C is uniform in the first round, which is therefore FedEM's. So is the choice of learning rate: the authors' own is
    0.06, several times what FedAvg is given.
    """

    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (FedRCState,)
    name: ClassVar[str] = "fedrc"

    def init(self, federation: Federation, engine: Engine) -> FedRCState:
        """FedEM's beginning and uniform marginals."""
        begin = self._begin(federation, engine)
        shape = (len(begin.models), federation.classes)
        uniform = np.full(shape, 1 / federation.classes)
        return FedRCState(begin.models, begin.pi, begin.took_part, begin.placed, marginals=uniform)

    def _evidence(self, state: FedRCState) -> Evidence:
        """−f(x, y; θ_m) − log C[m][y] of every training sample."""
        return replace(super()._evidence(state), log_marginals=np.log(state.marginals))

    def _preparation(self, state: FedRCState) -> Responsibilities:
        """Clients tell their sums by label, too."""
        return replace(super()._preparation(state), labels=state.marginals.shape[1])

    def _learn(self, state: FedRCState, members: Cohort, trained: Trained) -> FedRCState:
        """FedEM's M-step, and C[m][u] ← Σ_i S_i[m][u], S_i[m][u] = Σ_{j: y_ij = u} q_ij(m), each row normalised."""
        sums = np.zeros_like(state.marginals)
        for client in members:
            sums += trained.told[client]["sums"].astype(np.float64)
        sums = np.maximum(sums, LEAST)
        state = replace(state, marginals=sums / sums.sum(axis=1, keepdims=True))
        return super()._learn(state, members, trained)

    def _bytes_besides(self, state: FedRCState) -> int:
        """The table of marginals down, sums up."""
        return state.marginals.size * FLOAT_BYTES
