"""pFedMe: the global model descends the Moreau envelopes of the clients' losses, whose minimisers are personal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import averaged, count_round, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, Operations
from fedflux.engine.stack import Parameters
from fedflux.engine.training import Sgd, bounded
from fedflux.operations import operation

PERSONAL = "personal"
"""The slot in which a client keeps θ_i."""


@operation("moreau-envelope")
@dataclass(frozen=True)
class Envelope:
    """One batch D: θ ≈ argmin f(θ; D) + (λ/2)‖θ − w_i‖² by a few steps from the last θ, then w_i ← w_i − η λ (w_i − θ).

    λ (w_i − θ) is the gradient of the envelope at w_i, so it is descended by the protocol's SGD, momentum included.
    """

    optimiser: Sgd
    strength: float
    steps: int
    personal_lr: float
    decay: float

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> Parameters:
        """Zero velocity of w_i."""
        return self.optimiser.start(operations.trained(params[0]))

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Parameters,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Parameters]:
        """Both parameter sets after one batch; w_i takes over the buffers of θ, which alone meets data."""
        whole, personal = params
        w, theta = operations.trained(whole), operations.trained(personal)

        def loss(at: Parameters) -> Tensor:
            logits = operations.apply({**personal, **at}, batch.x)
            return batch.mean(cross_entropy(logits, batch.y, reduction="none"))

        for _ in range(self.steps):
            slopes = bounded(operations.gradient(loss, theta), self.optimiser.clip)
            slopes = operations.add(slopes, operations.add(theta, w, -1), self.strength)
            theta = operations.add(theta, operations.add(slopes, theta, self.decay), -self.personal_lr)
        envelope = {name: self.strength * gap for name, gap in operations.add(w, theta, -1).items()}
        moved, memory = self.optimiser.update(operations, w, envelope, memory, extras)
        return ({**personal, **moved}, {**personal, **theta}), memory


@dataclass(frozen=True, eq=False)
class PFedMeState:
    """The global model w, and who has a personal model θ_i: that stays with the client."""

    model: Stack
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    round: int = 0


@algorithm("pfedme")
@dataclass(frozen=True)
class PFedMe(Method):
    """Dinh, Tran and Nguyen, NeurIPS 2020, with batches drawn by epochs as in the shared protocol.

    λ = 15, five inner steps, decay 0.001 and β = 1 are the authors', η is the protocol's learning rate. The authors'
    personal learning rates lie between 0.01 and 0.1. Of these 0.03 is taken: an inner step is stable up to a curvature
    of 2/η_p − λ, which is 52 then and only 7 for 0.09, and five steps still close 95 % of the way. Both steps are the
    authors', so `--optimiser` and `--weight-decay` are not read.
    """

    settings: Settings
    strength: float = 15.0
    """λ: how strongly θ_i is held to w."""
    steps: int = 5
    personal_lr: float = 0.03
    decay: float = 0.001
    beta: float = 1.0
    """The server's step: w ← (1 − β) w + β Σ_i n_i w_i / Σ_i n_i."""
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (PFedMeState,)
    own_rule: ClassVar[bool] = True
    fixes: ClassVar[frozenset[str]] = frozenset({"optimiser", "weight_decay"})

    def init(self, federation: Federation, engine: Engine) -> PFedMeState:
        """The same model for everyone and everything."""
        return PFedMeState(engine.initial(), np.zeros(len(federation), dtype=np.bool_))

    def round(self, state: PFedMeState, cohort: Cohort, engine: Engine) -> tuple[PFedMeState, RoundMetrics]:
        """Every member starts w_i and θ_i from w; the server averages w_i and the member keeps θ_i."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training = self.settings.training.plain
        with metrics.timed("training"):
            rule = Envelope(training.sgd, self.strength, self.steps, self.personal_lr, self.decay)
            jobs = [Job(client, (0, 0), keep=(None, PERSONAL)) for client in cohort]
            trained = engine.train(state.model, cohort, jobs, training, Key(self.settings.seed, state.round), rule)
            if trained.jobs:
                mean = averaged(self.settings, state.model, trained, cohort)
                model = Stack.together([state.model, mean]).average(np.array([[1 - self.beta, self.beta]]))
                took_part = state.took_part.copy()
                took_part[list(trained.clients)] = True
                state = replace(state, model=model, took_part=took_part)
        count_round(metrics, cohort, trained, state.model.model_bytes(), self.steps * training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: PFedMeState, clients: Cohort, engine: Engine) -> Predictor:
        """θ_i, and w for a client that never took part."""
        return Predictor.kept(state.model, PERSONAL, state.took_part[list(clients.ids)])

    def unseen(self, state: PFedMeState, features: Sequence[Features], engine: Engine) -> None:
        """A client without labels has no loss to personalise by."""
        return None

    def assignment(self, state: PFedMeState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.took_part))

    def models(self, state: PFedMeState) -> Mapping[str, Stack]:
        """w; personal models stay with their clients."""
        return {"models": state.model}
