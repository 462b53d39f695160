"""`--preset flux-paper`: what the paper's comparison ran under the baselines' names, where it is not what they define.

Read off the public code that the paper's harness builds on; see docs/baselines.md. Not reproduced: the test phase for
IFCA, CFL and FedDrift, which averages models' accuracies instead of their answers, and CFL's child that starts anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.algorithms.base import Algorithm, RoundMetrics, Settings, Undescribed, validated
from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.fedavg import FedAvg, FedAvgState
from fedflux.algorithms.baselines.feddrift import FedDrift
from fedflux.algorithms.baselines.fedem import FedEM, FedEMState
from fedflux.algorithms.baselines.fedrc import FedRC, FedRCState
from fedflux.algorithms.baselines.ifca import Ifca, IfcaState
from fedflux.algorithms.baselines.local import Local, LocalState
from fedflux.algorithms.shared.mixture import Floats
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, Operations, Sgd
from fedflux.engine.stack import Parameters

MODELS = 10
"""How many models the harness holds for IFCA and FedDrift, whatever the number of clusters."""


class IfcaByAccuracy(Ifca):
    """Ten models; a client takes the one that is most *accurate* on its training data."""

    def _choose(self, state: IfcaState, clients: Cohort, engine: Engine) -> NDArray[np.int64]:
        rows = [
            engine.evaluate(Predictor.single(state.models, np.full(len(clients), m)), clients, "train")
            for m in range(len(state.models))
        ]
        return np.asarray(np.stack(rows).argmax(axis=0))


def _of_other_samples(state: FedEMState, cohort: Cohort, engine: Engine) -> list[Floats]:
    """Evidence of the *validation* samples, repeated until there is one for every training sample.

    A sample's weight is then that of an unrelated one; a client without validation samples has no evidence.
    """
    found = []
    for client, losses in zip(cohort, engine.losses(state.models, cohort, "validation"), strict=True):
        count = cohort.federation.size(client, "train")
        held = -losses.T.astype(np.float64) if losses.shape[1] else np.zeros((1, len(state.models)))
        found.append(np.tile(held, (-(-count // len(held)), 1))[:count])
    return found


class FedEMMisaligned(FedEM):
    """Responsibilities of other samples than those they weigh."""

    def _evidence(self, state: FedEMState, cohort: Cohort, engine: Engine) -> list[Floats]:
        return _of_other_samples(state, cohort, engine)


class FedRCMisaligned(FedRC):
    """The same, with the label term of the training sample beside the loss of the other one."""

    def _evidence(self, state: FedEMState, cohort: Cohort, engine: Engine) -> list[Floats]:
        assert isinstance(state, FedRCState)
        return self._without_marginals(state, cohort, _of_other_samples(state, cohort, engine))


@dataclass(frozen=True, eq=False)
class PairState:
    """A global and a personal run side by side."""

    model: Stack
    personal: Stack
    round: int = 0


@dataclass(frozen=True)
class FedAvgLocalEnsemble(Undescribed):
    """Under the name of APFL: the mean of the probabilities of FedAvg's model and of one that is trained alone."""

    settings: Settings
    revision: ClassVar[int] = 1

    def init(self, federation: Federation, engine: Engine) -> PairState:
        """The same initial model for all."""
        return PairState(engine.initial(), engine.initial().take([0] * len(federation)))

    def round(self, state: PairState, cohort: Cohort, engine: Engine) -> tuple[PairState, RoundMetrics]:
        """A round of FedAvg and one of local training."""
        whole = FedAvgState(state.model, len(state.personal), state.round)
        after, metrics = FedAvg(self.settings).round(whole, cohort, engine)
        alone, more = Local(self.settings).round(LocalState(state.personal, state.round), cohort, engine)
        metrics.add(more)
        state = PairState(after.model, alone.models, after.round)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: PairState, clients: Cohort, engine: Engine) -> Predictor:
        """Half and half."""
        ids, count = list(clients.ids), len(clients)
        weights = np.concatenate([0.5 * np.eye(count), np.full((count, 1), 0.5)], axis=1)
        return Predictor(Stack.together([state.personal.take(ids), state.model]), weights)

    def unseen(self, state: PairState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The global model."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: PairState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.personal))


@dataclass(frozen=True)
class Pulled:
    """Descend f(w_i) + (μ/2)‖w_i − w̄‖² without momentum; w̄ is the second parameter set and stays."""

    optimiser: Sgd
    pull: float

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> Parameters:
        """No memory."""
        return {}

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: Parameters,
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], Parameters]:
        """One step."""
        own, mean = params
        trained = operations.trained(own)

        def loss(at: Parameters) -> Tensor:
            return batch.mean(cross_entropy(operations.apply({**own, **at}, batch.x), batch.y, reduction="none"))

        slopes = self.optimiser.bounded(operations.gradient(loss, trained))
        slopes = operations.add(slopes, operations.add(trained, operations.trained(mean), -1), self.pull)
        return ({**own, **operations.add(trained, slopes, -self.optimiser.lr)}, mean), memory


@dataclass(frozen=True)
class LocalTowardsMean(Local):
    """Under the name of pFedMe: everyone trains a model of its own, pulled towards the mean of all models."""

    pull: float = 1.0

    def round(self, state: LocalState, cohort: Cohort, engine: Engine) -> tuple[LocalState, RoundMetrics]:
        """Local training with the pull; members send their models, from which the mean of the next round is made."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, everyone = self.settings.training, len(state.models)
        with metrics.timed("training"):
            mean = state.models.average(np.ones((1, everyone)))
            jobs = [Job(client, (client, everyone)) for client in cohort]
            trained = engine.train(
                Stack.together([state.models, mean]),
                cohort,
                jobs,
                training,
                Key(self.settings.seed, state.round),
                Pulled(training.optimiser, self.pull),
            )
            state = replace(state, models=state.models.put(cohort.ids, trained.take(range(0, len(trained), 2))))
        metrics.send(cohort, up=mean.model_bytes(), down=mean.model_bytes())
        metrics.count(cohort, models_down=1, models_up=1, training=training.epochs)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics


HARNESS: dict[str, Callable[[Settings], Algorithm[Any]]] = {
    "ifca": lambda settings: IfcaByAccuracy(replace(settings, clusters=MODELS)),
    "cfl": lambda settings: Cfl(settings, scale="greatest", gamma_max=0.1),
    "feddrift": lambda settings: FedDrift(settings, max_models=MODELS),
    "fedem": FedEMMisaligned,
    "fedrc": FedRCMisaligned,
    "apfl": FedAvgLocalEnsemble,
    "pfedme": LocalTowardsMean,
}
