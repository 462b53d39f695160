"""ATP: one FedAvg model, and learned rates by which every unlabelled batch adapts it before it answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.baselines.fedavg import FedAvg, FedAvgState
from fedflux.algorithms.registry import algorithm
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, Operations
from fedflux.engine.stack import Parameters
from fedflux.operations import operation

Rates = Mapping[str, Tensor]
"""α[l]: a scalar for every tensor, or a tensor of its shape that holds the scalar everywhere."""


def directions(
    operations: Operations, params: Parameters, x: Tensor, mean: Callable[[Tensor], Tensor] = torch.mean
) -> Parameters:
    """h: the gradient of the mean entropy, and for BatchNorm's running statistics their distance to the batch's."""

    def entropy(at: Parameters) -> Tensor:
        logs = log_softmax(operations.apply({**params, **at}, x), dim=1)
        return mean(-(logs.exp() * logs).sum(dim=1))

    h = operations.gradient(entropy, operations.trained(params))
    met = operations.statistics(params, x)
    return {**h, **{name: params[name] - statistic for name, statistic in met.items()}}


def adapted(params: Parameters, rates: Rates, h: Parameters) -> Parameters:
    """w′[l] = w[l] − α[l] h[l]; variances stay at zero or above."""
    moved = {name: params[name] - rates[name] * direction for name, direction in h.items()}
    return {
        **params,
        **{name: t.clamp(min=0) if name.endswith("running_var") else t for name, t in moved.items()},
    }


@operation("batch-adaptation")
@dataclass(frozen=True, eq=False)
class BatchAdaptation:
    """Each batch is answered by the model adapted to it alone (the paper's ATP-batch)."""

    rates: Rates
    batch_size: int

    def adapt(self, operations: Operations, params: Parameters, x: Tensor) -> Parameters:
        """One unsupervised step."""
        return adapted(params, self.rates, directions(operations, params, x))


@operation("adaptation-rates")
@dataclass(frozen=True)
class RateRule:
    """α[l] ← α[l] + η_α ⟨g[l], h[l]⟩ / √numel(l), g the gradient of the labelled loss at w′; w itself stays.

    The second parameter set holds α, each tensor filled with its scalar.
    """

    lr: float

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
        """Adapt from w, see how well that did, and move the rates."""
        w, rates = params
        h = directions(operations, w, batch.x, batch.mean)
        moved = adapted(w, rates, h)

        def loss(at: Parameters) -> Tensor:
            logits = operations.apply({**moved, **at}, batch.x)
            return batch.mean(cross_entropy(logits, batch.y, reduction="none"))

        g = operations.gradient(loss, {name: moved[name] for name in h})
        gains = {name: (g[name] * h[name]).sum() / sqrt(h[name].numel()) for name in h}
        return (w, {**rates, **{name: rates[name] + self.lr * gain for name, gain in gains.items()}}), memory


@dataclass(frozen=True, eq=False)
class AtpState:
    """The global model w, the number of clients, and the rates: a row of scalars, one for every tensor of w."""

    model: Stack
    clients: Annotated[int, PerClient()]
    rates: Stack
    round: int = 0


@algorithm("atp")
@dataclass(frozen=True)
class Atp(Method):
    """Bao et al., NeurIPS 2023, in batch mode.

    All R rounds are FedAvg's, as for the other methods. The members of the last one then learn the rates in
    `rate_rounds` further exchanges of a few numbers, each with one pass over the *validation* part, which w has not
    been trained on. η_α = 0.1 is the authors'; batches have the protocol's size, in learning and at test time.
    """

    settings: Settings
    rate_rounds: int = 50
    rate_lr: float = 0.1
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (AtpState,)

    def init(self, federation: Federation, engine: Engine) -> AtpState:
        """The initial model, and no adaptation yet."""
        model = engine.initial()
        rates = {n: t.new_zeros(1) for n, t in model.tensors.items() if t.is_floating_point()}
        return AtpState(model, len(federation), Stack(rates))

    def round(self, state: AtpState, cohort: Cohort, engine: Engine) -> tuple[AtpState, RoundMetrics]:
        """A round of FedAvg; after the last one the rates."""
        begin = FedAvgState(state.model, state.clients, state.round)
        after, metrics = FedAvg(self.settings).round(begin, cohort, engine)
        state = replace(state, model=after.model, round=after.round)
        if state.round == self.settings.rounds:
            with metrics.timed("training"):
                state = self._learn_rates(state, cohort, engine, metrics)
        return state, metrics

    def _learn_rates(self, state: AtpState, cohort: Cohort, engine: Engine, metrics: RoundMetrics) -> AtpState:
        """In each exchange the members carry α through their validation data, and the server takes the plain mean."""
        federation = cohort.federation
        holders = federation.cohort([k for k in cohort if federation.size(k, "validation")], cohort.round)
        if not len(holders):
            metrics.events.append(f"round {state.round}: nobody has validation data to learn rates of adaptation on")
            return state
        training = replace(self.settings.training, epochs=1, split="validation", evaluating=True)
        jobs = [Job(client, (0, 1)) for client in holders]
        rates, sent, answers = state.rates, state.rates.model_bytes(), 0
        metrics.send(holders, down=state.model.model_bytes())
        for exchange in range(1, self.rate_rounds + 1):
            start = Stack.together([state.model, _filled(state.model, rates)])
            key = Key(self.settings.seed, self.settings.rounds + exchange)
            trained = engine.train(start, holders, jobs, training, key, RateRule(self.rate_lr))
            metrics.send(holders, down=sent)
            metrics.send(trained.clients, up=sent)
            count = len(trained.jobs)
            if count:
                mean = trained.models.take(range(1, 2 * count, 2)).average(np.ones((1, count)))
                rates = Stack({name: mean.tensors[name].flatten(1)[:, 0] for name in rates.tensors})
            answers += count
        share = float((holders.sizes("validation") / holders.sizes("train")).mean())
        metrics.count(holders, models_down=1, training=2 * (answers / len(holders)) * share)
        return replace(state, rates=rates)

    def known(self, state: AtpState, clients: Cohort, engine: Engine) -> None:
        """The method is for clients without labels."""
        return None

    def unseen(self, state: AtpState, features: Sequence[Features], engine: Engine) -> Predictor:
        """w, adapted to each batch."""
        shared = Predictor.shared(state.model, np.ones(1), len(features))
        return replace(shared, adaptation=BatchAdaptation(state.rates.row(0), self.settings.training.batch_size))

    def assignment(self, state: AtpState) -> NDArray[np.int64]:
        """One cluster."""
        return np.zeros(state.clients, dtype=np.int64)

    def models(self, state: AtpState) -> Mapping[str, Stack]:
        """w, which is adapted anew to every batch."""
        return {"models": state.model}


def _filled(model: Stack, rates: Stack) -> Stack:
    """The rates as a model: every tensor filled with its scalar, integer buffers with zero."""
    return Stack(
        {n: torch.zeros_like(t) + rates.tensors.get(n, torch.zeros(1).to(t)) for n, t in model.tensors.items()}
    )
