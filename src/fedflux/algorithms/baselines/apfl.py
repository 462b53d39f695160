"""APFL: beside the global model every client trains a personal one, and answers with a mixture of the two."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.algorithms.base import Method, PerClient, RoundMetrics, Settings
from fedflux.algorithms.registry import algorithm
from fedflux.algorithms.shared.averaging import aggregate, count_round, sizes_of, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack, Trained
from fedflux.engine.rules import Batch, Extras, Operations
from fedflux.engine.stack import Parameters
from fedflux.engine.training import Optimiser, rate_of
from fedflux.operations import operation

PERSONAL = "personal"
"""The slot in which a client keeps v_i."""
PULL = 0.02
"""How strongly the authors' code, which mixes outputs, pulls α towards zero."""


@operation("apfl-mixing")
@dataclass(frozen=True)
class Mixing:
    """One batch: w descends f(w), v descends f(v̄) with v̄ = α v + (1 − α) w, and the round's first batch moves α.

    α is a third parameter set that holds it in every element, since it must come back from the client.
    """

    optimiser: Optimiser
    adaptive: bool
    output_mixing: bool

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> tuple[Any, Any]:
        """What the optimisers of w and v begin with."""
        return self.optimiser.start(operations.trained(params[0])), self.optimiser.start(operations.trained(params[1]))

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: tuple[Any, Any],
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], tuple[Any, Any]]:
        """In the paper both gradients are taken before the step; the authors' code mixes outputs after that of w."""
        w, v, mixing = params
        alpha = next(iter(operations.trained(mixing).values())).flatten()[0]
        ahead, behind = operations.trained(w), operations.trained(v)

        def loss(at: Parameters) -> Tensor:
            return batch.mean(operations.example_losses(operations.apply({**w, **at}, batch.x), batch.y))

        of_w = operations.gradient(loss, ahead)
        moved_w, memory_w = self.optimiser.update(operations, ahead, of_w, memory[0], extras)
        if self.output_mixing:
            of_v, slope = self._outputs(operations, {**w, **moved_w}, v, alpha, batch)
        else:
            of_v, slope = self._parameters(operations, w, v, alpha, batch)
        moved_v, memory_v = self.optimiser.update(operations, behind, of_v, memory[1], extras)
        if self.adaptive:
            moved = (alpha - rate_of(extras, self.optimiser.lr) * slope).clamp(0, 1).to(alpha.dtype)
            alpha = torch.where(index.to(alpha.device) == 0, moved, alpha)
        after = {name: alpha.expand(tensor.shape) for name, tensor in operations.trained(mixing).items()}
        return ({**w, **moved_w}, {**v, **moved_v}, {**mixing, **after}), (memory_w, memory_v)

    def _parameters(
        self, operations: Operations, w: Parameters, v: Parameters, alpha: Tensor, batch: Batch
    ) -> tuple[Parameters, Tensor]:
        """∇_v f(v̄) = α ∇f(v̄) and ∂f/∂α = ⟨∇f(v̄), v − w⟩, as in the paper."""
        ahead, behind = operations.trained(w), operations.trained(v)
        mixed = {name: alpha * tensor + (1 - alpha) * ahead[name] for name, tensor in behind.items()}

        def loss(at: Parameters) -> Tensor:
            return batch.mean(operations.example_losses(operations.apply({**v, **at}, batch.x), batch.y))

        gradients = operations.gradient(loss, mixed)
        slope = _sum(g * (behind[name] - ahead[name]) for name, g in gradients.items())
        return {name: alpha * g for name, g in gradients.items()}, slope

    def _outputs(
        self, operations: Operations, w: Parameters, v: Parameters, alpha: Tensor, batch: Batch
    ) -> tuple[Parameters, Tensor]:
        """Gradients of f(α v(x) + (1 − α) w(x)) in v, and the authors' ⟨v − w, α g_v + (1 − α) g_w⟩ + 0.02 α."""
        ahead, behind = operations.trained(w), operations.trained(v)
        w = {name: tensor.clone() for name, tensor in w.items()}  # its statistics have met this batch already
        both = {**{f"w.{n}": t for n, t in ahead.items()}, **{f"v.{n}": t for n, t in behind.items()}}

        def loss(at: Parameters) -> Tensor:
            of_v = operations.apply({**v, **{n: at[f"v.{n}"] for n in behind}}, batch.x)
            of_w = operations.apply({**w, **{n: at[f"w.{n}"] for n in ahead}}, batch.x)
            return batch.mean(operations.example_losses(alpha * of_v + (1 - alpha) * of_w, batch.y))

        found = operations.gradient(loss, both)
        terms = ((t - ahead[n]) * (alpha * found[f"v.{n}"] + (1 - alpha) * found[f"w.{n}"]) for n, t in behind.items())
        return {n: found[f"v.{n}"] for n in behind}, _sum(terms) + PULL * alpha


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack([term.sum() for term in terms]).sum()


@dataclass(frozen=True, eq=False)
class ApflState:
    """The global model w, the model that everyone begins from, every client's α_i, and who has taken part so far.

    A client's own model v_i stays with it.
    """

    model: Stack
    initial: Stack
    alpha: Annotated[NDArray[np.float64], PerClient(0)]
    """Of those that have taken part."""
    took_part: Annotated[NDArray[np.bool_], PerClient(False)]
    round: int = 0


@algorithm("apfl")
@dataclass(frozen=True)
class Apfl(Method):
    """Deng, Kamani and Mahdavi, 2020; α_i begins at 0.5 and is adapted once a round, as in the paper's experiments.

    `output_mixing` trains as the authors' code does, which mixes logits instead of parameters; clients then answer with
    the mixture of both models' probabilities. BatchNorm's statistics are mixed as parameters are.
    """

    settings: Settings
    alpha: float = 0.5
    adaptive: bool = True
    output_mixing: bool = False
    several_labels: ClassVar[bool] = True
    revision: ClassVar[int] = 1
    states: ClassVar[tuple[type, ...]] = (ApflState,)
    own_rule: ClassVar[bool] = True

    def init(self, federation: Federation, engine: Engine) -> ApflState:
        """The same model for everyone and everything."""
        clients = len(federation)
        nobody = np.zeros(clients, dtype=np.bool_)
        return ApflState(engine.initial(), engine.initial(), np.full(clients, self.alpha), nobody)

    def round(self, state: ApflState, cohort: Cohort, engine: Engine) -> tuple[ApflState, RoundMetrics]:
        """Every member trains w, v_i and α_i; the server averages w and is told α_i, and v_i stays where it is."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, ids = self.settings.training, list(cohort.ids)
        with metrics.timed("training"):
            alpha = np.where(state.took_part, state.alpha, self.alpha)
            start = Stack.together([state.model, state.initial, _filled(state.model, alpha[ids])])
            own = (None, PERSONAL, None)
            jobs = [Job(client, (0, 1, 2 + k), own, keep=own) for k, client in enumerate(cohort)]
            rule = Mixing(training.optimiser, self.adaptive, self.output_mixing)
            trained = engine.train(start, cohort, jobs, training, Key(self.settings.seed, state.round), rule)
            if trained.jobs:
                state = self._learn(state, trained, sizes_of(trained, cohort))
        count_round(metrics, cohort, trained, state.model.model_bytes(), 2 * training.epochs)
        metrics.missed(state.round, trained.missing)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def _learn(self, state: ApflState, trained: Trained, sizes: NDArray[np.float64]) -> ApflState:
        """w from everybody's w, and the new α_i; of each job both were sent back."""
        ids, count = list(trained.clients), len(trained.jobs)
        w, mixing = (trained.models.take(range(part, 2 * count, 2)) for part in range(2))
        average = self.settings.average or aggregate
        model = average(state.model, w, np.zeros(count, dtype=np.int64), sizes)
        alpha, took_part = state.alpha.copy(), state.took_part.copy()
        alpha[ids], took_part[ids] = _held(mixing), True
        return replace(state, model=model, alpha=alpha, took_part=took_part)

    def known(self, state: ApflState, clients: Cohort, engine: Engine) -> Predictor:
        """v̄_i = α_i v_i + (1 − α_i) w; a client that never took part has no v_i and answers with w."""
        ids = list(clients.ids)
        alpha = np.where(state.took_part[ids], state.alpha[ids], 0.0)
        weights = np.stack([1 - alpha, alpha], axis=1)
        return Predictor(state.model, weights, slots=(PERSONAL,), blended=not self.output_mixing)

    def unseen(self, state: ApflState, features: Sequence[Features], engine: Engine) -> Predictor:
        """w for everyone."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: ApflState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.alpha))

    def models(self, state: ApflState) -> Mapping[str, Stack]:
        """w; personal models stay with their clients."""
        return {"models": state.model}


def _filled(like: Stack, values: NDArray[np.float64]) -> Stack:
    """One row a value, which stands in every element of the row."""
    return Stack(
        {
            name: torch.as_tensor(values).to(tensor).reshape(-1, *[1] * (tensor.ndim - 1)).repeat(1, *tensor.shape[1:])
            for name, tensor in like.tensors.items()
        }
    )


def _held(rows: Stack) -> NDArray[np.float64]:
    """The value that stands in each row."""
    found: NDArray[np.float64] = next(iter(rows.tensors.values())).flatten(1)[:, 0].double().cpu().numpy()
    return found
