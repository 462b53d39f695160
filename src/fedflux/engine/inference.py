"""Evaluation, predictions, losses and latents in large batches: clients that share a model are run together."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.data import Cohort, Features, Labelled, Split
from fedflux.engine.base import Statistic
from fedflux.engine.loop import LoopEngine
from fedflux.engine.predictor import Predictor
from fedflux.engine.stack import Parameters, Stack

T = TypeVar("T")
BATCH = 8192
"""Examples run at once."""
LATENT_BYTES = 4 * 2**30
"""Latents kept for the next statistic at most."""


class BatchedEngine(LoopEngine):
    """The reference engine with everything but training done across clients at once."""

    _kept: tuple[Stack, tuple[Features, ...], Tensor] | None = None

    def evaluate(self, predictor: Predictor, cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """Accuracy of every member on a split."""
        scores = np.full(len(cohort), np.nan)
        holders = [k for k, client in enumerate(cohort) if cohort.federation.size(client, split)]
        if holders:
            x, y, bounds = self.resident(cohort, [cohort.ids[k] for k in holders], split)
            right = self._mixed(predictor, holders, x, bounds).argmax(dim=1) == y
            sums = np.concatenate([[0], right.cumsum(0).cpu().numpy()])
            scores[holders] = np.diff(sums[bounds]) / np.diff(bounds)
        return scores

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of every client's images."""
        x, bounds = self._joined(features)
        found = self._mixed(predictor, list(range(len(features))), x, bounds).float().cpu().numpy()
        return np.split(found, bounds[1:-1])

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """Cross-entropy of every sample under every model."""
        x, y, bounds = self.resident(cohort, list(cohort.ids), split)
        rows = [cross_entropy(self._run(stack.row(m), x), y, reduction="none") for m in range(len(stack))]
        return np.split(torch.stack(rows).float().cpu().numpy(), bounds[1:-1], axis=1)

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """A statistic of every client's latents; latents that were just made for the same clients are used again."""
        if any(len(one) == 0 for one in clients):
            raise ValueError("a client without examples has no statistic")
        latents = self._latents(stack, clients)
        bounds = np.cumsum([0, *(len(one) for one in clients)])
        if latents is None:
            return super().reduce(stack, clients, statistic)
        found = []
        for k, one in enumerate(clients):
            labels = one.y.to(self.device) if isinstance(one, Labelled) else None
            found.append(statistic.add(None, latents[bounds[k] : bounds[k + 1]], labels))
        return found

    def resident(
        self, cohort: Cohort, clients: Sequence[int], split: Split
    ) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """Images and labels of some members on the device, one client after another, and where each begins."""
        data = [cohort.data(client, split) for client in clients]
        bounds = np.cumsum([0, *(len(one) for one in data)])
        x = torch.cat([one.x for one in data]).to(self.device)
        return x, torch.cat([one.y for one in data]).to(self.device), bounds

    def _joined(self, features: Sequence[Features]) -> tuple[Tensor, NDArray[np.int64]]:
        bounds = np.cumsum([0, *(len(one) for one in features)])
        return torch.cat([one.x for one in features]).to(self.device), bounds

    def _latents(self, stack: Stack, clients: Sequence[Features]) -> Tensor | None:
        """All latents at once, None where they would not fit."""
        if self._kept is not None and self._kept[0] is stack and _same(self._kept[1], clients):
            return self._kept[2]
        x, _ = self._joined(clients)
        with torch.no_grad(), self._evaluating():
            first = self._encode(stack.row(0), self._images(x[:BATCH]))
            if len(x) * first.shape[1] * first.element_size() > LATENT_BYTES:
                return None
            rest = [self._encode(stack.row(0), self._images(x[b : b + BATCH])) for b in range(BATCH, len(x), BATCH)]
        latents = torch.cat([first, *rest])
        self._kept = (stack, tuple(clients), latents)
        return latents

    def _mixed(self, predictor: Predictor, members: list[int], x: Tensor, bounds: NDArray[np.int64]) -> Tensor:
        """Every client's mixture of softmax outputs, model by model over all clients that use it."""
        weights = predictor.weights[members]
        if not (weights != 0).any(axis=1).all():
            raise ValueError("a client of the predictor has no model")
        mixed: Tensor | None = None
        for model in np.flatnonzero((weights != 0).any(axis=0)):
            users = np.flatnonzero(weights[:, model])
            sizes = np.diff(bounds)[users]
            share = torch.as_tensor(np.repeat(weights[users, model], sizes), device=self.device)[:, None]
            rows = torch.as_tensor(_ranges(bounds[:-1][users], sizes), device=self.device)
            whole = len(rows) == len(x)
            outputs = self._run(predictor.stack.row(int(model)), x if whole else x[rows]).softmax(dim=1)
            outputs = outputs * share.to(outputs.dtype)
            if mixed is None:
                mixed = outputs.new_zeros(len(x), outputs.shape[1])
            mixed[rows] += outputs
        assert mixed is not None
        return mixed

    def _run(self, params: Parameters, x: Tensor) -> Tensor:
        with torch.no_grad(), self._evaluating():
            parts = [self.apply(params, self._images(x[b : b + BATCH])) for b in range(0, len(x), BATCH)]
            return torch.cat(parts) if parts else self.apply(params, self._images(x))


def _same(before: Sequence[Features], now: Sequence[Features]) -> bool:
    return len(before) == len(now) and all(a.x is b.x for a, b in zip(before, now, strict=True))


def _ranges(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin, begin + 1, … for every range, one after another."""
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(ends[-1]) + np.repeat(begins - (ends - sizes), sizes), dtype=np.int64)
