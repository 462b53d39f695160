"""Evaluation, predictions, losses and latents in large batches: clients that share a model are run together."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedflux.data import Cohort, Features, Labelled, Split
from fedflux.data.tasks import ONE_LABEL, Task
from fedflux.engine.base import Job, Key, ManyAtOnce, Statistic
from fedflux.engine.batched.arena import Arena, OnDevice, ranges
from fedflux.engine.batched.memory import PART, Memory
from fedflux.engine.loop import LoopEngine
from fedflux.engine.predictor import Predictor
from fedflux.engine.rules import Extras, Rule
from fedflux.engine.stack import Parameters, Stack
from fedflux.engine.training import Training

T = TypeVar("T")
BATCH = 8192
"""Examples run at once, at most."""
BATCH_BYTES = 2**30
"""What the first layer of a batch may take: a fused one takes 36 bytes a pixel."""
PEAK_BYTES = 4 * 2**30
"""What a batch may take at its peak on a GPU, where that is measured: larger ones are no faster."""
PROBE = 64
"""Examples that it is measured on."""
LATENT_BYTES = 4 * 2**30
"""Latents kept for the next statistic at most."""
AT_ONCE = 16
"""Predictors whose mixtures are held at once."""
LITTLE = 2**28
"""Bytes for which nobody asks whether they are free: asking a GPU takes a while too."""
Kind = tuple[object, ...]
"""What makes training calls alike in the memory that a client takes."""


class BatchedEngine(LoopEngine):
    """The reference engine with everything but training done across clients at once.

    `share` is the part of a GPU that it may take; engines of other processes take the others.
    """

    chunk: int | None = None
    """Clients trained side by side in the last training call; None where there is no such number."""

    def __init__(
        self,
        model: nn.Module,
        device: str = "cpu",
        precision: str = "fp32",
        pixels: tuple[float, float] | None = (0.5, 0.5),
        share: float = 1.0,
        task: Task = ONE_LABEL,
    ) -> None:
        super().__init__(model, device, precision, pixels, task)
        self.share = share
        self._memory = Memory(device, share)
        self._arena = Arena(device, share=share)
        self._latest: tuple[Stack, Sequence[Features], Tensor] | None = None
        self._sizes: dict[Kind, int] = {}
        """Chunks and batches that fit: found once, so that recordings can be used again, and made smaller only."""
        self._costs: dict[Kind, float] = {}
        """Bytes that one client, or one example, takes."""

    def _prepared(self, model: nn.Module) -> nn.Module:
        """In large batches the library's layers are good enough."""
        return model

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
        work = partial(super().train, start, cohort, jobs, training, key, rule, extras)
        return self._memory.insist(work, self._forget, "one client")

    def evaluate(self, predictors: Sequence[Predictor], cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """The score of every member on a split with each predictor; very many members are scored some at a time."""
        if any(one.adaptation is not None for one in predictors):
            return self._memory.insist(partial(super().evaluate, predictors, cohort, split), self._forget, "one client")
        scores = np.full((len(predictors), len(cohort)), np.nan)
        begin = 0
        for part in cohort.parts(split):
            holders = [begin + k for k, client in enumerate(part) if cohort.federation.stored(client, split)]
            begin += len(part)
            if holders:
                work = partial(self._scores, predictors, cohort, holders, split)
                scores[:, holders] = self._memory.insist(work, self._forget, "one part of the clients")
        return scores

    def _scores(
        self, predictors: Sequence[Predictor], cohort: Cohort, holders: list[int], split: Split
    ) -> NDArray[np.float64]:
        data = self.resident(cohort, [cohort.ids[k] for k in holders], split)
        y = data.y[data.rows()]
        found = np.empty((len(predictors), len(holders)))
        for places in _of_one_stack(predictors):
            mixed = self._mixed([predictors[place] for place in places], holders, data)
            for place, one in zip(places, mixed, strict=True):
                found[place] = self.task.scores(one, y, data.bounds)
        return found

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Probabilities of every client's images."""
        alone = partial(super().predict, predictor, features)
        if predictor.adaptation is not None:
            return self._memory.insist(alone, self._forget, "one client")
        return self._all_or(lambda: self._predict_all(predictor, features), alone)

    def _predict_all(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        data = self._joined(features)
        found = self._mixed([predictor], list(range(len(features))), data)[0].float().cpu().numpy()
        parts = np.split(found, data.bounds[1:-1])
        return [np.tile(part, (one.copies, 1)) for part, one in zip(parts, features, strict=True)]

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """The loss of every sample under every model."""
        found: list[NDArray[np.float32]] = []
        for part in cohort.parts(split):
            work = partial(self._losses_of, stack, cohort, part.ids, split)
            found += self._memory.insist(work, self._forget, "one part of the clients")
        return [np.tile(one, (1, cohort.federation.copies(split))) for one in found]

    def _losses_of(
        self, stack: Stack, cohort: Cohort, clients: Sequence[int], split: Split
    ) -> list[NDArray[np.float32]]:
        data = self.resident(cohort, clients, split)
        rows = data.rows()
        y = data.y[rows]
        losses = [self.task.losses(self._run(stack.row(m), data.x, rows), y) for m in range(len(stack))]
        return np.split(torch.stack(losses).float().cpu().numpy(), data.bounds[1:-1], axis=1)

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """A statistic of every client's latents; latents that were just made for the same clients are used again."""
        given = list(clients)
        if not given:
            return []
        alone = partial(super().reduce, stack, clients, statistic)
        return self._all_or(lambda: self._reduce_all(stack, given, statistic), alone)

    def _reduce_all(self, stack: Stack, clients: list[Features], statistic: Statistic[T]) -> list[T] | None:
        """All clients at once; None where that cannot be."""
        data = self._joined(clients)
        if (data.sizes == 0).any():
            raise ValueError("a client without examples has no statistic")
        labelled = [isinstance(one, Labelled) for one in clients]
        latents = self._latents(stack, clients, data) if all(labelled) or not any(labelled) else None
        if latents is None:
            return None
        labels = data.y[data.rows()] if all(labelled) else None
        ends = data.bounds[1:].tolist()
        if isinstance(statistic, ManyAtOnce):
            found: list[T] = statistic.of_each(latents, labels, ends)
            return found
        parts = [slice(begin, end) for begin, end in pairwise([0, *ends])]
        return [statistic.add(None, latents[rows], None if labels is None else labels[rows]) for rows in parts]

    def _all_or(self, together: Callable[[], T | None], alone: Callable[[], T]) -> T:
        """All clients together, or one after another where there is too little memory or another reason not to."""
        found = self._memory.attempt(together)
        if found is not None:
            return found
        return self._memory.insist(alone, self._forget, "one client")

    def _forget(self, everything: bool) -> None:
        """Drop what can be made again; `everything`: clients' examples too."""
        self._latest = None
        if everything:
            self._arena.clear()

    def _fitting(self, kind: Kind, cost: Callable[[], int], clients: int) -> int:
        """How many clients fit side by side by what a step of a few takes; one where not even those fit."""
        measured = self._memory.attempt(cost)
        if measured is None:
            return 1
        self._costs[kind] = measured / clients
        return max(int(PART * self._memory.room(self._recorded()) / self._costs[kind]), 1)

    def _recorded(self) -> int:
        """Bytes that recorded steps keep for themselves."""
        return 0

    def resident(self, cohort: Cohort, clients: Sequence[int], split: Split) -> OnDevice:
        """Some members' examples on the device; what was used last stays there for the rounds to come."""
        return self._arena.place(cohort, clients, split)

    def _joined(self, features: Sequence[Features]) -> OnDevice:
        """Clients' images on the device: those that lie there already, or copies."""
        found = self._arena.find(features)
        return OnDevice.of(features, self.device) if found is None else found

    def _latents(self, stack: Stack, clients: Sequence[Features], data: OnDevice) -> Tensor | None:
        """All latents at once, None where they would not fit."""
        if self._latest is not None and self._latest[0] is stack and _same(self._latest[1], clients):
            return self._latest[2]
        params, rows = stack.row(0), data.rows()
        with torch.no_grad(), self._evaluating():
            few = self._encode(params, self._images(data.x[rows[:2]]))
        needed = len(rows) * few.shape[1] * few.element_size()
        # twice, for the batches and for all of them in one
        if needed > LATENT_BYTES or not self._free_for(2 * needed):
            return None
        latents = self._over(data.x, rows, partial(self._encode, params))
        self._latest = (stack, clients, latents)
        return latents

    def _mixed(self, predictors: Sequence[Predictor], members: list[int], data: OnDevice) -> Tensor:
        """Every client's mixture of probabilities by each predictor of one stack, model by model over all clients
        that use it.
        """
        weights = np.stack([one.weights[members] for one in predictors])
        if not (weights != 0).any(axis=2).all():
            raise ValueError("a client of the predictor has no model")
        mixed: Tensor | None = None
        for model in np.flatnonzero((weights != 0).any(axis=(0, 1))):
            users = np.flatnonzero((weights[:, :, model] != 0).any(axis=0))
            sizes = data.sizes[users]
            logits = self._run(predictors[0].stack.row(int(model)), data.x, data.rows(users))
            outputs = self.task.probabilities(logits)
            if mixed is None:
                mixed = outputs.new_zeros(len(predictors), int(data.sizes.sum()), outputs.shape[1])
            rows = ranges(data.bounds[:-1][users], sizes, data.x.device)
            for place in np.flatnonzero((weights[:, :, model] != 0).any(axis=1)).tolist():
                share = torch.as_tensor(np.repeat(weights[place, users, model], sizes), device=self.device)[:, None]
                mixed[place, rows] += outputs * share.to(outputs.dtype)
        assert mixed is not None
        return mixed

    def _run(self, params: Parameters, x: Tensor, rows: Tensor) -> Tensor:
        """Logits of some rows."""
        return self._over(x, rows, partial(self.apply, params))

    def _over(self, x: Tensor, rows: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """What some rows give, batch by batch; the batches are halved where the device is out of memory."""

        def batch(some: slice, _: int) -> Tensor:
            return run(self._images(x[rows[some]]))

        kind = ("batch", *x.shape[1:])
        with torch.no_grad(), self._evaluating():
            size = self._batch_size(kind, x, len(rows), lambda: batch(slice(0, PROBE), 0))
            found, fits = self._memory.in_chunks(len(rows), size, batch, self._forget, "one image")
        if fits < size:
            self._sizes[kind] = fits
        return torch.cat(found)

    def _batch_size(self, kind: Kind, x: Tensor, rows: int, probe: Callable[[], object]) -> int:
        """Examples run at once; large images and large models in small batches.

        On a GPU it is a power of two and depends on what is free only where that is little: other sizes may round
        otherwise.
        """
        size = max(PROBE, min(BATCH, BATCH_BYTES // (36 * x.shape[1:].numel())))
        if self._memory.limited and rows > PROBE:
            if kind not in self._costs:
                self._costs[kind] = (self._memory.attempt(lambda: self._memory.cost(probe)) or PEAK_BYTES) / PROBE
            fits = max(int(PEAK_BYTES / self._costs[kind]), 1)
            size = min(size, 1 << (fits.bit_length() - 1))
            while size > 1 and not self._free_for(min(size, rows) * self._costs[kind]):
                size //= 2
        return min(size, self._sizes.get(kind, size))

    def _free_for(self, needed: float) -> bool:
        """Whether this engine should take so many bytes for a while."""
        if not self._memory.limited or needed <= LITTLE:
            return True
        return needed <= PART * self._memory.room(self._recorded())


def _of_one_stack(predictors: Sequence[Predictor]) -> list[list[int]]:
    """The places of predictors that mix models of the same stack, some at a time where they are many."""
    found: dict[int, list[int]] = {}
    for place, one in enumerate(predictors):
        found.setdefault(id(one.stack), []).append(place)
    return [places[k : k + AT_ONCE] for places in found.values() for k in range(0, len(places), AT_ONCE)]


def _same(before: Sequence[Features], now: Sequence[Features]) -> bool:
    """Whether the images are the very same; labels do not enter latents."""
    return len(before) == len(now) and all(a.x is b.x for a, b in zip(before, now, strict=True))
