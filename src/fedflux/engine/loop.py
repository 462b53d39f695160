"""The reference engine: clients one after another in this process, simple enough to trust."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedflux.data import Cohort, Features, Labelled, Split
from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.engine.base import DivergedError, Job, Key, Statistic
from fedflux.engine.kernels.chain import ChainTrainer
from fedflux.engine.kernels.operations import ModuleOperations
from fedflux.engine.kernels.recent_latents import RecentLatents
from fedflux.engine.predictor import Adaptation, Predictor
from fedflux.engine.recipe import Recipe
from fedflux.engine.rules import Batch, Extras, LossRule, Rule
from fedflux.engine.schedule import epoch_orders
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.training import Training
from fedflux.models.depth import head_names

T = TypeVar("T")
Outputs = tuple[int, int, int]
"""What names a model's outputs while several predictors are scored: its stack, its row and how it is adapted."""
EVALUATION_BATCH = {"cpu": 64, "cuda": 512}
"""Examples run at once: on a CPU so few that what a layer leaves stays in a core's cache for the next."""


class LoopEngine(ModuleOperations):
    """Trains and evaluates clients one by one on one device."""

    name = "loop"

    def __init__(
        self,
        model: nn.Module,
        device: str = "cpu",
        precision: str = "fp32",
        pixels: tuple[float, float] | None = (0.5, 0.5),
        task: Task = ONE_LABEL,
    ) -> None:
        super().__init__(model, device, precision, pixels, task)
        self._has_batch_norm = has_batch_norm(model)
        self._chain = ChainTrainer.of(model, task) if self.device == "cpu" and self.precision != "bf16" else None
        self._initial = Stack.of(self._model)
        self._recent = RecentLatents()
        self.recipe: Recipe | None = None
        """How to draw further initial models; without it there is only the one."""
        self._registered_head = head_names(model)

    @property
    def head_names(self) -> frozenset[str]:
        """The tensors of the last layer: of a forward pass where the images' shape is known, else of the module."""
        return self._registered_head if self.recipe is None else self.recipe.head_names

    def initial(self, count: int = 1) -> Stack:
        """Models as they are built: the first is everyone's, the others are drawn apart from it."""
        if count == 1:
            return self._initial
        if self.recipe is None:
            raise ValueError("this engine was given one model and no recipe for more")
        others = [Stack.of(self.recipe.build(index).to(self.device)).row(0) for index in range(1, count)]
        return Stack.join([self._initial.row(0), *others])

    def train(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        key: Key,
        rule: Rule | None = None,
        extras: Sequence[Extras] | None = None,
    ) -> Stack:
        """Local training of every job in order."""
        arguments = (start, cohort, jobs, training, key, rule, extras)
        trained = Stack.join([row for k in range(len(jobs)) for row in self.train_at(*arguments, k)])
        check_finite(trained, jobs, key)
        return trained

    def train_at(
        self,
        start: Stack,
        cohort: Cohort,
        jobs: Sequence[Job],
        training: Training,
        key: Key,
        rule: Rule | None,
        extras: Sequence[Extras] | None,
        position: int,
    ) -> list[Parameters]:
        """One job: its parameter sets after local training."""
        job = jobs[position]
        rule = rule or LossRule(training.optimiser)
        self._model.train(not training.evaluating)
        data = cohort.data(job.client, training.split)
        params = tuple(_own(start.row(model)) for model in job.models)
        sent = {**(extras[position] if extras else {}), **training.extras(key.round)}
        told = {name: tensor.to(self.device) for name, tensor in sent.items()}
        with self._random_layers(key, job.client):
            epochs = self._batches(data, training, key, job.client)
            shape = (min(training.batch_size, len(data)), *data.x.shape[1:])
            params = self._train_one(params, epochs, rule, told, shape, training.lasting)
        return list(params)

    def step(self, batch: Batch, rule: Rule) -> tuple[Parameters, ...]:
        """One step from the initial model, the way training takes it: for whoever wants to time it."""
        self._model.train()
        return self._train_one((_own(self._initial.row(0)),), [[batch]], rule, {}, tuple(batch.x.shape))

    def _train_one(
        self,
        params: tuple[Parameters, ...],
        epochs: Iterable[Iterable[Batch]],
        rule: Rule,
        extras: Extras,
        shape: tuple[int, ...],
        lasting: bool = False,
    ) -> tuple[Parameters, ...]:
        """All batches of a client, of this shape or shorter; `lasting`: memory is not begun anew by an epoch."""
        if self._chain is not None and len(params) == 1 and self._chain.takes(rule, shape):
            return (self._chain.train(params[0], epochs, rule, extras, lasting),)
        index = 0
        for number, batches in enumerate(epochs):
            if number == 0 or not lasting:
                memory = rule.start(self, params)
            for batch in batches:
                params, memory = rule.step(self, params, memory, batch, extras, torch.tensor(index))
                index += 1
        return params

    def _batches(self, data: Labelled, training: Training, key: Key, client: int) -> Iterator[Iterator[Batch]]:
        """A client's batches, epoch by epoch, in the order that the key says."""
        x, y = data.x.to(self.device), data.y.to(self.device)

        def batches(order: NDArray[np.int64]) -> Iterator[Batch]:
            for positions in torch.split(torch.from_numpy(order).to(self.device), training.batch_size):
                if self._has_batch_norm and len(positions) == 1:
                    continue  # a batch of one has no variance
                rows = positions if data.copies == 1 else positions % len(x)
                yield Batch(self._images(x.index_select(0, rows)), y.index_select(0, rows), positions)

        return (batches(order) for order in epoch_orders(key, client, len(data), training.epochs))

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """The score of every member on a split with each predictor."""
        found = [self.evaluate_at(predictors, cohort, split, k) for k in range(len(cohort))]
        return np.array(found, dtype=np.float64).reshape(len(cohort), len(predictors)).T

    def evaluate_at(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split, position: int) -> list[float]:
        """One member's score with each predictor, NaN where the split is empty."""
        data = cohort.data(cohort.ids[position], split)
        if not len(data):
            return [float("nan")] * len(predictors)
        y = data.y.to(self.device)
        run: dict[Outputs, Tensor] | None = {} if len(predictors) > 1 else None
        return [self.task.score(self._probabilities(one, position, data, run), y) for one in predictors]

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Probabilities of every client's images."""
        return [self.predict_at(predictor, features, k) for k in range(len(features))]

    def predict_at(self, predictor: Predictor, features: Sequence[Features], position: int) -> NDArray[np.float32]:
        """One client's probabilities."""
        found: NDArray[np.float32] = self._probabilities(predictor, position, features[position]).cpu().numpy()
        return np.tile(found, (features[position].copies, 1))

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """The loss of every sample under every model."""
        return [self.losses_at(stack, cohort, split, k) for k in range(len(cohort))]

    def losses_at(self, stack: Stack, cohort: Cohort, split: Split, position: int) -> NDArray[np.float32]:
        """One member's losses (models × samples)."""
        data = cohort.data(cohort.ids[position], split)
        y = data.y.to(self.device)
        per_model = [self.task.losses(self._outputs(stack.row(m), data, self.apply), y) for m in range(len(stack))]
        found: NDArray[np.float32] = torch.stack(per_model).cpu().numpy()
        return np.tile(found, (1, data.copies))

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """Stream every client's latents through a statistic."""
        return [self.reduce_at(stack, clients, statistic, k) for k in range(len(clients))]

    def reduce_at(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T], position: int) -> T:
        """One client's statistic."""
        data, params = clients[position], stack.row(0)
        labels = data.y.to(self.device) if isinstance(data, Labelled) else None
        summary: T | None = None
        begin = 0
        for latents in self._latents_of(params, data):
            chunk = None if labels is None else labels[begin : begin + len(latents)]
            summary = statistic.add(summary, latents, chunk)
            begin += len(latents)
        if summary is None:
            raise ValueError("a client without examples has no statistic")
        return summary

    def _latents_of(self, params: Parameters, data: Features) -> list[Tensor]:
        """Latents batch by batch; those just made of the same images by the same model are used again."""
        found = self._recent.get(params, data.x)
        if found is None:
            found = self._encoded(params, data)
            self._recent.put(params, data.x, found)
        return found

    def _encoded(self, params: Parameters, data: Features) -> list[Tensor]:
        batches = (x for _, x in self._chunks(data))
        size = min(EVALUATION_BATCH[torch.device(self.device).type], len(data.x))
        if self._chain is not None and self._chain.encodes((size, *data.x.shape[1:])):
            return self._chain.latents(params, batches)
        with torch.no_grad(), self._evaluating():
            return [self._encode(params, x) for x in batches]

    def _probabilities(
        self, predictor: Predictor, client: int, data: Features, run: dict[Outputs, Tensor] | None = None
    ) -> Tensor:
        """The client's mixture of probabilities; models of weight zero are not run, nor those that `run` holds."""
        weights = predictor.weights[client]
        used = np.flatnonzero(weights)
        mixed: Tensor | None = None
        for model in used:
            key = (id(predictor.stack), int(model), id(predictor.adaptation))
            outputs = None if run is None else run.get(key)
            if outputs is None:
                logits = self._answers(predictor.stack.row(int(model)), data, predictor.adaptation)
                outputs = self.task.probabilities(logits)
            if run is not None:
                run[key] = outputs
            mixed = outputs * float(weights[model]) if mixed is None else mixed + outputs * float(weights[model])
        if mixed is None:
            raise ValueError(f"client {client} of the predictor has no model")
        return mixed

    def _outputs(self, params: Parameters, data: Features, run: Callable[[Parameters, Tensor], Tensor]) -> Tensor:
        with torch.no_grad(), self._evaluating():
            outputs = [run(params, x).float() for _, x in self._chunks(data)]
            return torch.cat(outputs) if outputs else run(params, self._images(data.x.to(self.device))).float()

    def _answers(self, params: Parameters, data: Features, adaptation: Adaptation | None) -> Tensor:
        """A model's logits, each batch's under the parameters adapted to it where there is an adaptation."""
        if adaptation is None or not len(data):
            return self._outputs(params, data, self.apply)
        with torch.no_grad(), self._evaluating():
            batches = [x for _, x in self._chunks(data, adaptation.batch_size)]
            return torch.cat([self.apply(adaptation.adapt(self, params, x), x).float() for x in batches])

    def _chunks(self, data: Features, size: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Images batch by batch, copies once."""
        size = size or EVALUATION_BATCH[torch.device(self.device).type]
        for begin in range(0, len(data.x), size):
            yield begin, self._images(data.x[begin : begin + size].to(self.device))


def _own(params: Parameters) -> Parameters:
    """Copies, so that BatchNorm's running statistics do not touch the start stack."""
    return {name: tensor.clone() for name, tensor in params.items()}


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model takes statistics of its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check_finite(trained: Stack, jobs: Sequence[Job], key: Key) -> None:
    """Stop at the first job, in order, whose training left the finite numbers."""
    for row in np.flatnonzero(~trained.finite())[:1]:
        client = [job.client for job in jobs for _ in job.models][row]
        where = f"client {client} diverged in round {key.round}"
        raise DivergedError(f"{where}: its model is not finite; lower --lr, or give a (smaller) --clip")
