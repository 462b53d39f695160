"""Evaluation, predictions, losses and latents in large batches: clients that share a model are run together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedflux.data import Cohort, Features, Labelled, Split
from fedflux.engine.base import ManyAtOnce, Statistic
from fedflux.engine.batched.arena import Arena, OnDevice, ranges
from fedflux.engine.loop import LoopEngine
from fedflux.engine.predictor import Predictor
from fedflux.engine.stack import Parameters, Stack

T = TypeVar("T")
BATCH = 8192
"""Examples run at once, at most."""
BATCH_BYTES = 2**30
"""What the first layer of a batch may take: a fused one takes 36 bytes a pixel."""
LATENT_BYTES = 4 * 2**30
"""Latents kept for the next statistic at most."""


class BatchedEngine(LoopEngine):
    """The reference engine with everything but training done across clients at once."""

    def __init__(
        self,
        model: nn.Module,
        device: str = "cpu",
        precision: str = "fp32",
        pixels: tuple[float, float] = (0.5, 0.5),
    ) -> None:
        super().__init__(model, device, precision, pixels)
        self._arena = Arena(device)
        self._latest: tuple[Stack, Sequence[Features], Tensor] | None = None

    def _prepared(self, model: nn.Module) -> nn.Module:
        """In large batches the library's layers are good enough."""
        return model

    def evaluate(self, predictor: Predictor, cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """Accuracy of every member on a split; very many members are scored some at a time."""
        if predictor.adaptation is not None:
            return super().evaluate(predictor, cohort, split)
        scores = np.full(len(cohort), np.nan)
        begin = 0
        for part in cohort.parts(split):
            holders = [begin + k for k, client in enumerate(part) if cohort.federation.stored(client, split)]
            begin += len(part)
            if holders:
                data = self.resident(cohort, [cohort.ids[k] for k in holders], split)
                right = self._mixed(predictor, holders, data).argmax(dim=1) == data.y[data.rows()]
                sums = np.concatenate([[0], right.cumsum(0).cpu().numpy()])
                scores[holders] = np.diff(sums[data.bounds]) / data.sizes
        return scores

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of every client's images."""
        if predictor.adaptation is not None:
            return super().predict(predictor, features)
        data = self._joined(features)
        found = self._mixed(predictor, list(range(len(features))), data).float().cpu().numpy()
        parts = np.split(found, data.bounds[1:-1])
        return [np.tile(part, (one.copies, 1)) for part, one in zip(parts, features, strict=True)]

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """Cross-entropy of every sample under every model."""
        found: list[NDArray[np.float32]] = []
        for part in cohort.parts(split):
            data = self.resident(cohort, part.ids, split)
            rows = data.rows()
            y = data.y[rows]
            losses = [
                cross_entropy(self._run(stack.row(m), data.x, rows), y, reduction="none") for m in range(len(stack))
            ]
            found += np.split(torch.stack(losses).float().cpu().numpy(), data.bounds[1:-1], axis=1)
        return [np.tile(one, (1, cohort.federation.copies(split))) for one in found]

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """A statistic of every client's latents; latents that were just made for the same clients are used again."""
        given = list(clients)
        if not given:
            return []
        data = self._joined(given)
        if (data.sizes == 0).any():
            raise ValueError("a client without examples has no statistic")
        labelled = [isinstance(one, Labelled) for one in given]
        latents = self._latents(stack, given, data) if all(labelled) or not any(labelled) else None
        if latents is None:
            return super().reduce(stack, clients, statistic)
        labels = data.y[data.rows()] if all(labelled) else None
        ends = data.bounds[1:].tolist()
        if isinstance(statistic, ManyAtOnce):
            found: list[T] = statistic.of_each(latents, labels, ends)
            return found
        parts = [slice(begin, end) for begin, end in pairwise([0, *ends])]
        return [statistic.add(None, latents[rows], None if labels is None else labels[rows]) for rows in parts]

    def _pieces(self, x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows by batches that fit; large images in small batches."""
        return torch.split(rows, max(64, min(BATCH, BATCH_BYTES // (36 * x[0].numel()))))

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
        pieces = self._pieces(data.x, data.rows())
        with torch.no_grad(), self._evaluating():
            first = self._encode(stack.row(0), self._images(data.x[pieces[0]]))
            if int(data.sizes.sum()) * first.shape[1] * first.element_size() > LATENT_BYTES:
                return None
            rest = [self._encode(stack.row(0), self._images(data.x[piece])) for piece in pieces[1:]]
        latents = torch.cat([first, *rest])
        self._latest = (stack, clients, latents)
        return latents

    def _mixed(self, predictor: Predictor, members: list[int], data: OnDevice) -> Tensor:
        """Every client's mixture of softmax outputs, model by model over all clients that use it."""
        weights = predictor.weights[members]
        if not (weights != 0).any(axis=1).all():
            raise ValueError("a client of the predictor has no model")
        mixed: Tensor | None = None
        for model in np.flatnonzero((weights != 0).any(axis=0)):
            users = np.flatnonzero(weights[:, model])
            sizes = data.sizes[users]
            share = torch.as_tensor(np.repeat(weights[users, model], sizes), device=self.device)[:, None]
            outputs = self._run(predictor.stack.row(int(model)), data.x, data.rows(users)).softmax(dim=1)
            outputs = outputs * share.to(outputs.dtype)
            if mixed is None:
                mixed = outputs.new_zeros(int(data.sizes.sum()), outputs.shape[1])
            mixed[ranges(data.bounds[:-1][users], sizes, data.x.device)] += outputs
        assert mixed is not None
        return mixed

    def _run(self, params: Parameters, x: Tensor, rows: Tensor) -> Tensor:
        """Logits of some rows."""
        with torch.no_grad(), self._evaluating():
            return torch.cat([self.apply(params, self._images(x[piece])) for piece in self._pieces(x, rows)])


def _same(before: Sequence[Features], now: Sequence[Features]) -> bool:
    """Whether the images are the very same; labels do not enter latents."""
    return len(before) == len(now) and all(a.x is b.x for a, b in zip(before, now, strict=True))
