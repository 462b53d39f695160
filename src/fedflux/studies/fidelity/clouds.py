"""What is compared: every client after every round of FedAvg, as moments and as points in the projected space."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.algorithms import make_algorithm
from fedflux.algorithms.flux.describe import fit_extractor
from fedflux.data.dataset import Dataset
from fedflux.descriptors.kinds import by_kind
from fedflux.descriptors.moments import Moments, MomentStatistic, MomentSums, moments
from fedflux.engine import one_thread
from fedflux.runs.config import RunConfig
from fedflux.runs.runner import build_federation, engine_for
from fedflux.streams import stream

Points = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Reduced latents and their labels."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """One client after one round."""

    client: int
    round: int
    moments: Moments
    """Of all its training examples: the marginal, then every class."""
    points: Points
    """Some of them, drawn at random."""
    others: Points | None
    """As many more, which `points` does not hold; None where the client has too few."""


@dataclass(frozen=True)
class CloudStatistic:
    """The sums of S3 and the reduced latents themselves: a client of a simulation, which has nothing to hide."""

    moments: MomentStatistic

    def add(
        self, so_far: tuple[MomentSums, Tensor, Tensor] | None, latents: Tensor, labels: Tensor | None
    ) -> tuple[MomentSums, Tensor, Tensor]:
        """One more batch."""
        assert labels is not None
        z, y = self.moments.projector.project(latents).cpu(), labels.cpu()
        if so_far is None:
            return self.moments.add(None, latents, labels), z, y
        sums, before, known = so_far
        return self.moments.add(sums, latents, labels), torch.cat([before, z]), torch.cat([known, y])


def clouds(
    config: RunConfig, dataset: Dataset, points: int, on_round: Callable[[int], None] = lambda done: None
) -> list[Cloud]:
    """Train FedAvg; after each round fit bounds and projector on that round's global model and look at every client."""
    federation, config = build_federation(config, dataset)
    view = federation.blind()
    algorithm = make_algorithm("fedavg", config.settings())
    found: list[Cloud] = []
    with one_thread():
        engine = engine_for(config, view)
        state = algorithm.init(view, engine)
        for round in range(1, config.rounds + 1):
            everyone = view.cohort(range(len(view)), round)
            state, _ = algorithm.round(state, everyone, engine)
            extractor = fit_extractor(state.model, everyone, engine, config.settings().descriptor)
            assert extractor is not None  # simulated clients always answer
            statistic = by_kind(
                CloudStatistic(MomentStatistic(extractor.question.projector, view.kinds)), extractor.question.rarest
            )
            for part in everyone.parts("train"):
                made = engine.backend.reduce(state.model, part.held("train"), statistic)
                for client, (sums, z, y) in zip(part, made, strict=True):
                    order = stream(config.seed, "fidelity points", round, client).permutation(len(z))
                    drawn = [(z.numpy()[rows], y.numpy()[rows]) for rows in (order[:points], order[points:][:points])]
                    others = drawn[1] if len(drawn[1][0]) == points else None
                    found.append(Cloud(client, round, moments(sums), drawn[0], others))
            on_round(round)
    return found
