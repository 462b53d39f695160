"""What the server offers to unseen clients, and what a client makes of it by itself: its posterior over clusters."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.placement.misfit import Misfit, UsualMisfit, misfit_of
from fedflux.clustering.placement.mixtures import Array, ClassMixtures, Single
from fedflux.clustering.placement.posterior import Temperature

CUT = 0.02
"""What the unlikeliest clusters may lose together: where one cluster is certain, its model answers alone."""
DIGITS = 3
"""To which posterior and score are rounded before they leave a client."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a client's images say of the clusters on offer: all that it takes to place the client."""

    likelihood: Array
    """(M,): log-likelihoods of the images together."""
    worth: float
    """How many images there are, less what copies repeat (Kish's effective count)."""
    misfit: Misfit


@dataclass(frozen=True, eq=False)
class Offer:
    """Clusters as an unseen client meets them, and how sure it may be."""

    mixtures: ClassMixtures
    prior: Single
    """(M,): shares of clients."""
    temperature: Temperature = field(default_factory=Temperature)
    usual: UsualMisfit = field(default_factory=UsualMisfit)

    @property
    def nbytes(self) -> int:
        """What sending it takes."""
        return self.mixtures.nbytes + int(self.prior.nbytes)

    def only(self, clusters: NDArray[np.int64]) -> "Offer":
        """Some of the clusters."""
        prior = self.prior[clusters]
        return replace(self, mixtures=self.mixtures.only(clusters), prior=prior / prior.sum())

    def scores(self, images: Array, worth: float) -> Scores:
        """What a client with these reduced latents, which are worth so many images, can say of every cluster."""
        likelihood = self.mixtures.log_likelihoods(images).mean(axis=0) * worth
        return Scores(likelihood, worth, misfit_of(self.mixtures, images, likelihood, worth))

    def answer(self, scores: Scores) -> tuple[Array, float]:
        """The posterior (M,) of a client with these scores, and how likely it is to be like any cluster."""
        likelihood, worth = scores.likelihood[None], np.array([scores.worth])
        prior = self.prior.astype(np.float64)
        found = self.temperature.posterior(likelihood, worth, self.mixtures.error, prior)[0]
        return rounded(found), round(self.usual.likeness(scores.misfit), DIGITS)

    def place(self, images: Array, worth: float) -> tuple[Array, float]:
        """Both at once."""
        return self.answer(self.scores(images, worth))


def rounded(posterior: Array) -> Array:
    """The likeliest clusters that have all of the probability but `CUT`, in a few digits."""
    order = np.argsort(-posterior, kind="stable")
    before = np.cumsum(posterior[order]) - posterior[order]
    found = np.where(before < 1 - CUT, posterior[order], 0.0)
    found /= found.sum()
    coarse = np.round(found, DIGITS)
    found = coarse if coarse.sum() > 0.9 else found  # of very many that are alike no digit is left
    kept = np.empty(len(posterior))
    kept[order] = found / found.sum()
    return kept
