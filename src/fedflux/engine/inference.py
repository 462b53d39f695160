"""Evaluation, predictions, losses and latents in large batches: clients that share a model are run together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedflux.data import Cohort, Features, Federation, Labelled, Split
from fedflux.engine.base import Statistic
from fedflux.engine.loop import LoopEngine
from fedflux.engine.predictor import Predictor
from fedflux.engine.stack import Parameters, Stack

T = TypeVar("T")
BATCH = 8192
"""Examples run at once."""
DATA_BYTES = 24 * 2**30
"""Examples kept on the device for the rounds to come, at most."""
LATENT_BYTES = 4 * 2**30
"""Latents kept for the next statistic at most."""


@dataclass(frozen=True, eq=False)
class OnDevice:
    """Clients' examples on the device, one client after another."""

    x: Tensor
    y: Tensor
    """Labels; empty where clients have none."""
    bounds: NDArray[np.int64]
    """Where each client begins, and the end."""
    held: tuple[Features, ...]
    """What was copied."""

    @staticmethod
    def of(clients: Sequence[Features], device: str) -> "OnDevice":
        """Copy them there."""
        labels = [one.y for one in clients if isinstance(one, Labelled)]
        return OnDevice(
            torch.cat([one.x for one in clients]).to(device),
            (torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int64)).to(device),
            np.cumsum([0, *(len(one.x) for one in clients)]),
            tuple(clients),
        )


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
        self._resident: dict[tuple[Federation, tuple[int, ...], str], OnDevice] = {}
        self._latest: tuple[Stack, OnDevice, Tensor] | None = None

    def evaluate(self, predictor: Predictor, cohort: Cohort, split: Split) -> NDArray[np.float64]:
        """Accuracy of every member on a split."""
        scores = np.full(len(cohort), np.nan)
        holders = [k for k, client in enumerate(cohort) if cohort.federation.size(client, split)]
        if holders:
            data = self.resident(cohort, [cohort.ids[k] for k in holders], split)
            right = self._mixed(predictor, holders, data).argmax(dim=1) == data.y
            sums = np.concatenate([[0], right.cumsum(0).cpu().numpy()])
            scores[holders] = np.diff(sums[data.bounds]) / np.diff(data.bounds)
        return scores

    def predict(self, predictor: Predictor, features: Sequence[Features]) -> list[NDArray[np.float32]]:
        """Class probabilities of every client's images."""
        data = self._joined(features)
        found = self._mixed(predictor, list(range(len(features))), data).float().cpu().numpy()
        parts = np.split(found, data.bounds[1:-1])
        return [np.tile(part, (one.copies, 1)) for part, one in zip(parts, features, strict=True)]

    def losses(self, stack: Stack, cohort: Cohort, split: Split) -> list[NDArray[np.float32]]:
        """Cross-entropy of every sample under every model."""
        data = self.resident(cohort, cohort.ids, split)
        rows = [cross_entropy(self._run(stack.row(m), data.x), data.y, reduction="none") for m in range(len(stack))]
        parts = np.split(torch.stack(rows).float().cpu().numpy(), data.bounds[1:-1], axis=1)
        return [np.tile(part, (1, one.copies)) for part, one in zip(parts, data.held, strict=True)]

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[T]) -> list[T]:
        """A statistic of every client's latents; latents that were just made for the same clients are used again."""
        if any(len(one) == 0 for one in clients):
            raise ValueError("a client without examples has no statistic")
        data = self._joined(clients)
        latents = self._latents(stack, data)
        if latents is None:
            return super().reduce(stack, clients, statistic)
        found = []
        for k, one in enumerate(clients):
            mine = slice(data.bounds[k], data.bounds[k + 1])
            found.append(statistic.add(None, latents[mine], data.y[mine] if isinstance(one, Labelled) else None))
        return found

    def resident(self, cohort: Cohort, clients: Sequence[int], split: Split) -> OnDevice:
        """Some members' examples on the device; what was used last stays there for the rounds to come."""
        key = (cohort.federation, tuple(clients), split)
        found = self._resident.pop(key, None)
        if found is None:
            found = OnDevice.of([cohort.data(client, split) for client in clients], self.device)
            while self._resident and sum(o.x.nbytes for o in self._resident.values()) + found.x.nbytes > DATA_BYTES:
                self._resident.pop(next(iter(self._resident)))
        self._resident[key] = found
        return found

    def _joined(self, features: Sequence[Features]) -> OnDevice:
        """Clients' images on the device: those that lie there already, or copies."""
        for found in self._resident.values():
            if _same(found.held, features):
                return found
        return OnDevice.of(features, self.device)

    def _latents(self, stack: Stack, data: OnDevice) -> Tensor | None:
        """All latents at once, None where they would not fit."""
        if self._latest is not None and self._latest[0] is stack and self._latest[1] is data:
            return self._latest[2]
        x = data.x
        with torch.no_grad(), self._evaluating():
            first = self._encode(stack.row(0), self._images(x[:BATCH]))
            if len(x) * first.shape[1] * first.element_size() > LATENT_BYTES:
                return None
            rest = [self._encode(stack.row(0), self._images(x[b : b + BATCH])) for b in range(BATCH, len(x), BATCH)]
        latents = torch.cat([first, *rest])
        self._latest = (stack, data, latents)
        return latents

    def _mixed(self, predictor: Predictor, members: list[int], data: OnDevice) -> Tensor:
        """Every client's mixture of softmax outputs, model by model over all clients that use it."""
        x, bounds = data.x, data.bounds
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
