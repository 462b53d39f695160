"""pFedMe: the global model descends the Moreau envelopes of the clients' losses, whose minimisers are personal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.algorithms.base import RoundMetrics, Settings, Undescribed, aggregate, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, Operations, Sgd
from fedflux.engine.stack import Parameters


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
            slopes = self.optimiser.bounded(operations.gradient(loss, theta))
            slopes = operations.add(slopes, operations.add(theta, w, -1), self.strength)
            theta = operations.add(theta, operations.add(slopes, theta, self.decay), -self.personal_lr)
        envelope = {name: self.strength * gap for name, gap in operations.add(w, theta, -1).items()}
        moved, memory = self.optimiser.update(operations, w, envelope, memory)
        return ({**personal, **moved}, {**personal, **theta}), memory


@dataclass(frozen=True, eq=False)
class PFedMeState:
    """The global model w, every client's personal model θ_i, and who has one."""

    model: Stack
    personal: Stack
    took_part: NDArray[np.bool_]
    round: int = 0


@dataclass(frozen=True)
class PFedMe(Undescribed):
    """Dinh, Tran and Nguyen, NeurIPS 2020, with batches drawn by epochs as in the shared protocol.

    λ = 15, five inner steps, decay 0.001 and β = 1 are the authors', η is the protocol's learning rate. The authors'
    personal learning rates lie between 0.01 and 0.1. Of these 0.03 is taken: an inner step is stable up to a curvature
    of 2/η_p − λ, which is 52 then and only 7 for 0.09, and five steps still close 95 % of the way.
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

    def init(self, federation: Federation, engine: Engine) -> PFedMeState:
        """The same model for everyone and everything."""
        clients = len(federation)
        nobody = np.zeros(clients, dtype=np.bool_)
        return PFedMeState(engine.initial(), engine.initial().take([0] * clients), nobody)

    def round(self, state: PFedMeState, cohort: Cohort, engine: Engine) -> tuple[PFedMeState, RoundMetrics]:
        """Every member starts w_i and θ_i from w; the server averages w_i and the member keeps θ_i."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, ids, count = self.settings.training, list(cohort.ids), len(cohort)
        with metrics.timed("training"):
            rule = Envelope(training.optimiser, self.strength, self.steps, self.personal_lr, self.decay)
            jobs = [Job(client, (0, 0)) for client in cohort]
            trained = engine.train(state.model, cohort, jobs, training, Key(self.settings.seed, state.round), rule)
            w, theta = (trained.take(range(part, 2 * count, 2)) for part in range(2))
            mean = aggregate(state.model, w, np.zeros(count, dtype=np.int64), cohort.sizes("train"))
            model = Stack.together([state.model, mean]).average(np.array([[1 - self.beta, self.beta]]))
        took_part = state.took_part.copy()
        took_part[ids] = True
        state = replace(state, model=model, personal=state.personal.put(ids, theta), took_part=took_part)
        metrics.send(cohort, up=model.model_bytes(), down=model.model_bytes())
        metrics.count(cohort, models_down=1, models_up=1, training=self.steps * training.epochs)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: PFedMeState, clients: Cohort, engine: Engine) -> Predictor:
        """θ_i, and w for a client that never took part."""
        ids, count = list(clients.ids), len(clients)
        both = Stack.together([state.personal.take(ids), state.model])
        return Predictor.single(both, np.where(state.took_part[ids], np.arange(count), count))

    def unseen(self, state: PFedMeState, features: Sequence[Features], engine: Engine) -> None:
        """A client without labels has no loss to personalise by."""
        return None

    def assignment(self, state: PFedMeState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.personal))
