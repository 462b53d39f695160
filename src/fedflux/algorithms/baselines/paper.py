"""`--preset paper-baselines`: what the paper's comparison ran under the baselines' names, where it is not theirs.

Read off the public code that the paper's experiments build on; see docs/baselines.md. Not reproduced: the test phase
for IFCA, CFL and FedDrift, which averages models' accuracies, not answers, and CFL's child that starts anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.baselines.cfl import Cfl
from fedflux.algorithms.baselines.fedavg import FedAvg, FedAvgState
from fedflux.algorithms.baselines.feddrift import FedDrift
from fedflux.algorithms.baselines.fedem import FedEM
from fedflux.algorithms.baselines.fedrc import FedRC
from fedflux.algorithms.baselines.ifca import Ifca
from fedflux.algorithms.baselines.local import PERSONAL, Local, LocalState
from fedflux.algorithms.registry import PAPER_BASELINES
from fedflux.algorithms.shared.averaging import count_round, validated
from fedflux.data import Cohort, Features, Federation, Split
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, Operations
from fedflux.engine.stack import Parameters
from fedflux.engine.training import Sgd, bounded, descended, rate_of
from fedflux.operations import operation

MODELS = 10
"""How many models the paper's code holds for IFCA and FedDrift, whatever the number of clusters."""


class IfcaByAccuracy(Ifca):
    """Ten models; a client takes the one that is most *accurate* on its training data."""

    def _choose(self, models: Stack, clients: Cohort, engine: Engine) -> dict[int, int]:
        each = [Predictor.single(models, np.full(len(clients), m)) for m in range(len(models))]
        scores = engine.evaluate(each, clients, "train")
        best = zip(clients, scores.values.argmax(axis=0).tolist(), strict=True)
        return {client: m for client, m in best if client not in scores.missing}


class FedEMMisaligned(FedEM):
    """Responsibilities of other samples, those of the validation part, than those they weigh."""

    split_of_losses: ClassVar[Split] = "validation"


class FedRCMisaligned(FedRC):
    """The same, with the label term of the training sample beside the loss of the other one."""

    split_of_losses: ClassVar[Split] = "validation"


@dataclass(frozen=True, eq=False)
class PairState:
    """A global model, and who trained another one alone: that stays with the client."""

    model: Stack
    initial: Stack
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    round: int = 0


@dataclass(frozen=True)
class FedAvgLocalEnsemble(Method):
    """Under the name of APFL: the mean of the probabilities of FedAvg's model and of one that is trained alone."""

    settings: Settings
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (PairState,)

    def init(self, federation: Federation, engine: Engine) -> PairState:
        """The same initial model for all."""
        return PairState(engine.initial(), engine.initial(), np.zeros(len(federation), dtype=np.bool_))

    def round(self, state: PairState, cohort: Cohort, engine: Engine) -> tuple[PairState, RoundMetrics]:
        """A round of FedAvg and one of local training."""
        whole = FedAvgState(state.model, len(state.took_part), state.round)
        after, metrics = FedAvg(self.settings).round(whole, cohort, engine)
        own = LocalState(state.initial, state.took_part, state.round)
        alone, more = Local(self.settings).round(own, cohort, engine)
        metrics.add(more)
        state = PairState(after.model, state.initial, alone.took_part, after.round)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: PairState, clients: Cohort, engine: Engine) -> Predictor:
        """Half and half; who never trained alone has the initial model for that."""
        has_one = state.took_part[list(clients.ids)]
        weights = 0.5 * np.stack([~has_one, np.ones(len(clients)), has_one], axis=1)
        return Predictor(Stack.together([state.initial, state.model]), weights, slots=(PERSONAL,))

    def unseen(self, state: PairState, features: Sequence[Features], engine: Engine) -> Predictor:
        """The global model."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: PairState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.took_part))

    def models(self, state: PairState) -> Mapping[str, Stack]:
        """The global one; personal models stay with their clients."""
        return {"models": state.model}


@operation("pulled-to-mean")
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

        slopes = bounded(operations.gradient(loss, trained), self.optimiser.clip)
        slopes = operations.add(slopes, operations.add(trained, operations.trained(mean), -1), self.pull)
        moved = descended(operations, trained, slopes, rate_of(extras, self.optimiser.lr))
        return ({**own, **moved}, mean), memory


@dataclass(frozen=True, eq=False)
class TowardsMeanState:
    """The initial model and, behind it, those of clients that took part: all are sent, since the mean needs them."""

    models: Stack
    row: Annotated[NDArray[np.int64], PerClient(0)]
    """Which of them is each client's."""
    round: int = 0


@dataclass(frozen=True)
class LocalTowardsMean(Method):
    """Under the name of pFedMe: everyone trains a model of its own, pulled towards the mean of all models."""

    settings: Settings
    pull: float = 1.0
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (TowardsMeanState,)
    own_rule: ClassVar[bool] = True

    def init(self, federation: Federation, engine: Engine) -> TowardsMeanState:
        """The same initial model for everyone."""
        return TowardsMeanState(engine.initial(), np.zeros(len(federation), dtype=np.int64))

    def round(self, state: TowardsMeanState, cohort: Cohort, engine: Engine) -> tuple[TowardsMeanState, RoundMetrics]:
        """Local training with the pull; members send their models, from which the mean of the next round is made."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, everyone = self.settings.training.plain, len(state.row)
        with metrics.timed("training"):
            mean = state.models.take(state.row).average(np.ones((1, everyone)))
            jobs = [Job(client, (int(state.row[client]), len(state.models))) for client in cohort]
            trained = engine.train(
                Stack.together([state.models, mean]),
                cohort,
                jobs,
                training,
                Key(self.settings.seed, state.round),
                Pulled(training.sgd, self.pull),
            )
            own = trained.models.take(range(0, 2 * len(trained.jobs), 2))
            state = _with_models(state, np.array(trained.clients, dtype=np.int64), own)
        count_round(metrics, cohort, trained, mean.model_bytes(), training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: TowardsMeanState, clients: Cohort, engine: Engine) -> Predictor:
        """Each client's own model; the initial one for a client that never took part."""
        return Predictor.single(state.models, state.row[list(clients.ids)])

    def unseen(self, state: TowardsMeanState, features: Sequence[Features], engine: Engine) -> None:
        """A client without labels cannot train, so it has no model."""
        return None

    def assignment(self, state: TowardsMeanState) -> NDArray[np.int64]:
        """Everyone is a cluster of one."""
        return np.arange(len(state.row))

    def models(self, state: TowardsMeanState) -> Mapping[str, Stack]:
        """Every client's."""
        return {"models": state.models.take(state.row)}


def _with_models(state: TowardsMeanState, clients: NDArray[np.int64], own: Stack) -> TowardsMeanState:
    """The state with these clients' new models; first ones go behind those that are there."""
    first = clients[state.row[clients] == 0]
    row = state.row.copy()
    row[first] = len(state.models) + np.arange(len(first))
    models = Stack.together([state.models, own.take(np.flatnonzero(np.isin(clients, first)))])
    return replace(state, models=models.put(row[clients], own), row=row)


PAPER_BASELINES.update(
    {
        "ifca": lambda settings: IfcaByAccuracy(replace(settings, clusters=MODELS)),
        "cfl": lambda settings: Cfl(settings, scale="greatest", gamma_max=0.1),
        "feddrift": lambda settings: FedDrift(settings, max_models=MODELS),
        "fedem": FedEMMisaligned,
        "fedrc": FedRCMisaligned,
        "apfl": FedAvgLocalEnsemble,
        "pfedme": LocalTowardsMean,
    }
)
