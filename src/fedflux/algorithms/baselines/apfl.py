"""APFL: beside the global model every client trains a personal one, and answers with a mixture of the two."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.algorithms.base import RoundMetrics, Settings, Undescribed, aggregate, validated
from fedflux.data import Cohort, Features, Federation
from fedflux.engine import Engine, Job, Key, Predictor, Stack
from fedflux.engine.rules import Batch, Extras, Operations, Sgd
from fedflux.engine.stack import Parameters

PULL = 0.02
"""How strongly the authors' code, which mixes outputs, pulls α towards zero."""


@dataclass(frozen=True)
class Mixing:
    """One batch: w descends f(w), v descends f(v̄) with v̄ = α v + (1 − α) w, and the round's first batch moves α.

    α is a third parameter set that holds it in every element, since it must come back from the client.
    """

    optimiser: Sgd
    adaptive: bool
    output_mixing: bool

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> tuple[Parameters, Parameters]:
        """Zero velocities of w and v."""
        return self.optimiser.start(operations.trained(params[0])), self.optimiser.start(operations.trained(params[1]))

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: tuple[Parameters, Parameters],
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], tuple[Parameters, Parameters]]:
        """In the paper both gradients are taken before the step; the authors' code mixes outputs after that of w."""
        w, v, mixing = params
        alpha = next(iter(operations.trained(mixing).values())).flatten()[0]
        ahead, behind = operations.trained(w), operations.trained(v)

        def loss(at: Parameters) -> Tensor:
            return _loss(batch, operations.apply({**w, **at}, batch.x))

        moved_w, memory_w = self.optimiser.update(operations, ahead, operations.gradient(loss, ahead), memory[0])
        if self.output_mixing:
            of_v, slope = self._outputs(operations, {**w, **moved_w}, v, alpha, batch)
        else:
            of_v, slope = self._parameters(operations, w, v, alpha, batch)
        moved_v, memory_v = self.optimiser.update(operations, behind, of_v, memory[1])
        if self.adaptive:
            moved = (alpha - self.optimiser.lr * slope).clamp(0, 1)
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
            return _loss(batch, operations.apply({**v, **at}, batch.x))

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
            return _loss(batch, alpha * of_v + (1 - alpha) * of_w)

        found = operations.gradient(loss, both)
        terms = ((t - ahead[n]) * (alpha * found[f"v.{n}"] + (1 - alpha) * found[f"w.{n}"]) for n, t in behind.items())
        return {n: found[f"v.{n}"] for n in behind}, _sum(terms) + PULL * alpha


def _loss(batch: Batch, logits: Tensor) -> Tensor:
    return batch.mean(cross_entropy(logits, batch.y, reduction="none"))


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack([term.sum() for term in terms]).sum()


@dataclass(frozen=True, eq=False)
class ApflState:
    """The global model w, every client's own model v_i and weight α_i, and who has taken part so far."""

    model: Stack
    personal: Stack
    alpha: NDArray[np.float64]
    took_part: NDArray[np.bool_]
    round: int = 0


@dataclass(frozen=True)
class Apfl(Undescribed):
    """Deng, Kamani and Mahdavi, 2020; α_i begins at 0.5 and is adapted once a round, as in the paper's experiments.

    `output_mixing` trains as the authors' code does, which mixes logits instead of parameters; clients then answer with
    the mixture of both models' probabilities. BatchNorm's statistics are mixed as parameters are.
    """

    settings: Settings
    alpha: float = 0.5
    adaptive: bool = True
    output_mixing: bool = False
    revision: ClassVar[int] = 1

    def init(self, federation: Federation, engine: Engine) -> ApflState:
        """The same model for everyone and everything."""
        clients = len(federation)
        nobody = np.zeros(clients, dtype=np.bool_)
        return ApflState(engine.initial(), engine.initial().take([0] * clients), np.full(clients, self.alpha), nobody)

    def round(self, state: ApflState, cohort: Cohort, engine: Engine) -> tuple[ApflState, RoundMetrics]:
        """Every member trains w, v_i and α_i; the server averages w, and v_i and α_i stay where they are."""
        state = replace(state, round=state.round + 1)
        metrics = RoundMetrics()
        training, ids, count = self.settings.training, list(cohort.ids), len(cohort)
        with metrics.timed("training"):
            start = Stack.together([state.model, state.personal.take(ids), _filled(state.model, state.alpha[ids])])
            jobs = [Job(client, (0, 1 + k, 1 + count + k)) for k, client in enumerate(cohort)]
            rule = Mixing(training.optimiser, self.adaptive, self.output_mixing)
            trained = engine.train(start, cohort, jobs, training, Key(self.settings.seed, state.round), rule)
            w, v, alphas = (trained.take(range(part, 3 * count, 3)) for part in range(3))
            model = aggregate(state.model, w, np.zeros(count, dtype=np.int64), cohort.sizes("train"))
        alpha, took_part = state.alpha.copy(), state.took_part.copy()
        alpha[ids], took_part[ids] = _held(alphas), True
        state = replace(state, model=model, personal=state.personal.put(ids, v), alpha=alpha, took_part=took_part)
        metrics.send(cohort, up=model.model_bytes(), down=model.model_bytes())
        metrics.count(cohort, models_down=1, models_up=1, training=2 * training.epochs)
        metrics.validation = validated(self.known(state, cohort, engine), cohort, engine)
        return state, metrics

    def known(self, state: ApflState, clients: Cohort, engine: Engine) -> Predictor:
        """v̄_i = α_i v_i + (1 − α_i) w; a client that never took part has no v_i and answers with w."""
        ids, count = list(clients.ids), len(clients)
        alpha = np.where(state.took_part[ids], state.alpha[ids], 0.0)
        both = Stack.together([state.personal.take(ids), state.model])
        weights = np.concatenate([np.diag(alpha), (1 - alpha)[:, None]], axis=1)
        if self.output_mixing:
            return Predictor(both, weights)
        return Predictor.single(both.average(weights), np.arange(count))

    def unseen(self, state: ApflState, features: Sequence[Features], engine: Engine) -> Predictor:
        """w for everyone."""
        return Predictor.shared(state.model, np.ones(1), len(features))

    def assignment(self, state: ApflState) -> NDArray[np.int64]:
        """Everyone has a model of its own."""
        return np.arange(len(state.personal))


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
