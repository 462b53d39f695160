"""What clients are asked about clusters: unseen ones for their choice, members for tries whose answer is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflux.clustering.placement.misfit import Misfit, misfit_of
from fedflux.clustering.placement.mixtures import ClassMixtures
from fedflux.clustering.placement.offer import Offer
from fedflux.data.holding import About, Holding, NothingToTellError, Pass, Seen
from fedflux.data.labelled import Split
from fedflux.descriptors.checks import finite_fault, shape_fault
from fedflux.descriptors.groups import counted, pieces_worth
from fedflux.descriptors.privacy.release import directions
from fedflux.descriptors.queries import AskDescriptor, AskedAlone
from fedflux.operations import Arrays, operation
from fedflux.streams import stream

Array = NDArray[np.generic]

SIZES = (8, 20, 50, 100, 200)
"""Images of the pieces that members try, besides all that they have."""
DRAWS = 4
"""Pieces of each size."""


@dataclass(frozen=True, eq=False)
class ReducedLatents:
    """The reduced latents themselves, at the client, where what is asked about them is no sum.

    `described` says in which form they were described: private moments are of directions.
    """

    described: AskDescriptor

    def add(self, so_far: Tensor | None, latents: Tensor, labels: Tensor | None) -> Tensor:
        """Those of one more batch."""
        found = self._reduced(latents)
        return found if so_far is None else torch.cat([so_far, found])

    def of_each(self, latents: Tensor, labels: Tensor | None, ends: Sequence[int]) -> list[Tensor]:
        """Those of many clients whose latents lie one after another."""
        return list(self._reduced(latents).tensor_split(list(ends)[:-1]))

    def _reduced(self, latents: Tensor) -> Tensor:
        found = self.described.projector.project(latents)
        return (directions(found) if self.described.released else found).cpu()


@operation("placement")
@dataclass(frozen=True, eq=False)
class AskPlacement(AskedAlone):
    """Which of the clusters on offer a client's images are from. Nothing but the posterior leaves the client, and how
    likely images like its are in any of them.
    """

    described: AskDescriptor
    """How latents are reduced."""
    offer: Offer
    split: Split = "test"

    def passes(self) -> Sequence[Pass]:
        """Of the images."""
        return (Pass(self.split, ReducedLatents(self.described), labelled=False),)

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """The posterior and the score."""
        if seen.sums[0] is None:
            raise NothingToTellError(f"it holds no images in its {self.split} part")
        worth = float(counted(held, self.split, None, seen.sums[0])[0])
        posterior, score = self.offer.place(seen.sums[0].numpy(), worth)
        return {"posterior": posterior.astype(np.float32), "score": np.array(score, dtype=np.float32)}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """No distribution over the clusters on offer."""
        fault = shape_fault(answer, {"posterior": (len(self.offer.prior),), "score": ()}, "its placement")
        fault = fault or finite_fault(answer, "its placement")
        if fault is None and not (answer["posterior"].min() >= 0 and abs(float(answer["posterior"].sum()) - 1) < 0.1):
            return "its placement is no distribution over clusters"
        if fault is None and not 0 <= float(answer["score"]) <= 1:
            return "its placement has a score that is no probability"
        return fault


@operation("placement-tries")
@dataclass(frozen=True, eq=False)
class AskTries(AskedAlone):
    """How likely a member's validation part, and pieces of it, are in every cluster: clients with known answers."""

    described: AskDescriptor
    mixtures: ClassMixtures
    seed: int

    def passes(self) -> Sequence[Pass]:
        """Of the validation images."""
        return (Pass("validation", ReducedLatents(self.described), labelled=False),)

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """Log-likelihoods of pieces, how many images each is worth, and the misfit of the whole."""
        if seen.sums[0] is None:
            raise NothingToTellError("it holds no validation examples")
        images = seen.sums[0].numpy()
        each = self.mixtures.log_likelihoods(images)
        worth = float(counted(held, "validation", None, seen.sums[0])[0])
        rng = stream(self.seed, "placement tries", client=held.client)
        drawn = [rng.choice(len(each), size, replace=False) for size in SIZES if size < worth for _ in range(DRAWS)]
        sizes = pieces_worth(held, "validation", drawn, images)
        pieces = [each[some].sum(axis=0) * (size / len(some)) for some, size in zip(drawn, sizes, strict=True)]
        whole = each.mean(axis=0) * worth
        misfit = misfit_of(self.mixtures, images, whole, worth)
        return {
            "likelihoods": np.stack([*pieces, whole]).astype(np.float32),
            "sizes": np.array([*sizes, worth], dtype=np.float32),
            "misfit": np.array([misfit.mean, misfit.variance, misfit.count], dtype=np.float32),
        }

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Tries of other clusters, not finite, or of more images than there are, or of none."""
        rows = len(answer["sizes"]) if "sizes" in answer and answer["sizes"].ndim == 1 else 0
        shapes = {"likelihoods": (rows, len(self.mixtures)), "sizes": (rows,), "misfit": (3,)}
        fault = shape_fault(answer, shapes, "its tries") or finite_fault(answer, "its tries")
        if fault is None and not 0 < rows <= len(SIZES) * DRAWS + 1:
            return f"its tries are {rows}"
        if fault is not None:
            return fault
        most = about.examples["validation"] + 1e-3
        if float(answer["sizes"].max()) > most or float(answer["misfit"][2]) > most:
            return "its tries count more images than it holds"
        if not (answer["sizes"].min() > 0 and answer["misfit"].min() >= 0):
            return "its tries count no images, or lie less than nowhere away"
        return fault


@dataclass(frozen=True, eq=False)
class Tries:
    """What members tried, one row a piece and one a member."""

    likelihoods: NDArray[np.float32]
    """(R, M)."""
    sizes: NDArray[np.float32]
    """(R,)."""
    client: NDArray[np.int64]
    """(R,)."""
    member: NDArray[np.int64]
    """(K,): those behind `misfit`."""
    misfit: NDArray[np.float32]
    """(K, 3): mean, variance between images, images."""

    @staticmethod
    def of(clients: Sequence[int], answers: Sequence[Arrays], clusters: int) -> "Tries":
        """From answers."""
        sizes = [one["sizes"].astype(np.float32) for one in answers]
        blank = np.zeros((0, clusters), dtype=np.float32)
        return Tries(
            np.concatenate([blank, *(one["likelihoods"].astype(np.float32) for one in answers)]),
            np.concatenate([np.zeros(0, dtype=np.float32), *sizes]),
            np.repeat(np.array(clients, dtype=np.int64), [len(one) for one in sizes]),
            np.array(clients, dtype=np.int64),
            np.array([one["misfit"] for one in answers], dtype=np.float32).reshape(-1, 3),
        )

    def join(self, other: "Tries") -> "Tries":
        """Both."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__}
        return Tries(**{name: np.concatenate(both) for name, both in pairs.items()})

    def misfits(self) -> list[Misfit]:
        """One a member."""
        return [Misfit(*map(float, row)) for row in self.misfit]
