"""What FedEM and FedRC share: samples that belong to several models at once, each with a responsibility.

Responsibilities are computed at the client and stay there: of them only sums leave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.data import Split
from fedflux.data.holding import About, Holding, Pass, Seen
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.queries import AskedAlone
from fedflux.engine.rules import Batch, Extras, LossRule, Operations
from fedflux.engine.stack import Parameters
from fedflux.operations import Arrays, operation

Floats = NDArray[np.float64]
SETTLED = 1e-6
"""The weights of a newcomer are settled once no step moves one of them further than this."""
MOST_STEPS = 1000
NEARLY = 1e-6
"""How far weights in double precision may be from summing to one."""


def responsibilities(evidence: Floats, pi: Floats) -> Floats:
    """E-step: q(m) ∝ π(m) exp(evidence(m)) for every sample (samples × models), rows summing to one."""
    with np.errstate(divide="ignore"):
        scores = evidence + np.log(pi)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), dtype=np.float64)


def settled(evidence: Floats) -> Floats:
    """The weights π of a client under fixed models: π ← mean q, from uniform ones, until they stay."""
    pi = np.full(evidence.shape[1], 1 / evidence.shape[1])
    if not len(evidence):
        return pi
    for _ in range(MOST_STEPS):
        before, pi = pi, responsibilities(evidence, pi).mean(axis=0)
        if np.abs(pi - before).max() < SETTLED:
            break
    return pi


@dataclass(frozen=True, eq=False)
class Evidence:
    """log P(y|x; θ_m) = −f(x, y; θ_m) of every training sample (samples × models), at the client."""

    models: int
    log_marginals: Floats | None = None
    """log P(y; θ_m) (models × labels), which FedRC takes off."""
    split: Split = "train"
    """Whose losses are taken. Those of another part are repeated until there is one for every training sample, so that
    a sample's weight is that of an unrelated one; a client without such samples has no evidence."""

    def of(self, held: Holding, losses: NDArray[np.float32]) -> Floats:
        """One client's, from the losses of the split."""
        found = -losses.T.astype(np.float64)
        if self.split != "train":
            count = held.size("train")
            found = found if len(found) else np.zeros((1, self.models))
            found = np.tile(found, (-(-count // len(found)), 1))[:count]
        if self.log_marginals is None:
            return found
        return np.asarray(found - self.log_marginals[:, all_labels(held)].T)


def all_labels(held: Holding) -> NDArray[np.int64]:
    """Of all positions of the client's training part, copies included."""
    return np.tile(held.labels("train"), held.copies("train"))


@operation("responsibilities")
@dataclass(frozen=True, eq=False)
class Responsibilities:
    """The E-step before a client trains: weights q for each model, of which π′ = mean q and sums by label are told.

    The extra `pi` is the client's π of the round before.
    """

    evidence: Evidence
    labels: int = 0
    """U where the client tells S[m][u] = Σ_{j: y_j = u} q_j(m) besides, else 0."""

    @property
    def split(self) -> Split:
        """Whose losses are needed."""
        return self.evidence.split

    def prepare(
        self, held: Holding, losses: NDArray[np.float32], extras: Extras
    ) -> tuple[Sequence[Extras], Mapping[str, NDArray[np.generic]]]:
        """A weight for every training sample and model; a client without samples stays with its π."""
        pi = extras["pi"].cpu().numpy().astype(np.float64)
        q = responsibilities(self.evidence.of(held, losses), pi)
        told: dict[str, NDArray[np.generic]] = {"pi": q.mean(axis=0) if len(q) else pi}
        if self.labels:
            sums = np.zeros((self.evidence.models, self.labels))
            np.add.at(sums.T, all_labels(held), q)
            told["sums"] = sums
        weights = q.astype(np.float32)
        return [{"weights": torch.from_numpy(weights[:, m].copy())} for m in range(self.evidence.models)], told

    def fault(self, told: Arrays, about: About) -> str | None:
        """Weights or sums of another form, not finite, below zero, or of more samples than there are."""
        shapes: dict[str, tuple[int, ...]] = {"pi": (self.evidence.models,)}
        if self.labels:
            shapes["sums"] = (self.evidence.models, self.labels)
        fault = shape_fault(told, shapes, "its responsibilities") or _weights_fault(told, "its responsibilities")
        if fault is not None or not self.labels:
            return fault
        sums = told["sums"].astype(np.float64)
        if (sums < 0).any() or sums.sum() > about.examples["train"] * (1 + NEARLY):
            return "its responsibilities sum to more samples than it holds"
        return None


@operation("mixture-weights")
@dataclass(frozen=True, eq=False)
class AskWeights(AskedAlone):
    """π of a client that never took part, under the models as they are."""

    evidence: Evidence

    @property
    def losses(self) -> Split:  # type: ignore[override]
        """Whose losses are needed."""
        return self.evidence.split

    def passes(self) -> Sequence[Pass]:
        """No latents."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, NDArray[np.generic]]:
        """π, settled."""
        assert seen.losses is not None
        return {"pi": settled(self.evidence.of(held, seen.losses))}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Weights of another form, not finite, below zero, or not summing to one."""
        shapes = {"pi": (self.evidence.models,)}
        return shape_fault(answer, shapes, "its weights") or _weights_fault(answer, "its weights")


def _weights_fault(told: Arrays, what: str) -> str | None:
    pi = told["pi"].astype(np.float64)
    fault = finite_fault(told, what)
    if fault is None and ((pi < 0).any() or abs(pi.sum() - 1) > NEARLY):
        return f"{what}: π are no weights that sum to one"
    return fault


@operation("weighted-loss")
@dataclass(frozen=True)
class WeightedLoss(LossRule):
    """Descend (1/|B|) Σ_j q_j f_j; q is the extra `weights`, by position in the client's training part."""

    def losses(self, operations: Operations, params: Parameters, batch: Batch, extras: Extras) -> Tensor:
        """q_j f_j."""
        return extras["weights"][batch.positions] * super().losses(operations, params, batch, extras)
