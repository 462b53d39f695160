"""From likelihoods to a posterior over clusters that means what it says: its temperature is learned from tries.

Classes are not quite Gaussian, and means are estimates, so that likelihoods are surer than they should be. The evidence
for cluster m against the likeliest, m*, is therefore divided by

    T = a (1 + (n₀ + n) (e_m* + e_m)) + c n,

n being the number of images, e the error of what is known of a cluster: errors of estimates do not average out over
images, and the likeliest of poorly known clusters owes something to luck, however few images there are (n₀). And where
classes are far from Gaussian, one cluster's mixture may be likelier for everybody's images: to every cluster's
log-likelihood of an image b_m is added. All of it, a, c and b, is learned: members' validation parts, and small pieces
of them, are clients with known answers.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedflux.clustering.placement.mixtures import Array

BASE, DOUBT = 1.8, 0.5
"""What a is before anything was tried, and how sure that is (a deviation of its logarithm)."""
GROWTH = 0.05
"""The size of c that nothing has spoken for yet."""
LUCK = 10.0
"""n₀."""
BASES = np.exp(np.linspace(np.log(0.5), np.log(12.0), 23))
GROWTHS = (0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
OFFSET = 0.1
"""The size of b, in nats an image, that nothing has spoken for yet."""
UNLIKELY = 1e-6
"""The least probability that a try is counted with: one client in an odd cluster must not decide alone."""


@dataclass(frozen=True)
class Temperature:
    """a and c."""

    base: float = BASE
    growth: float = 0.0

    def heat(self, best: NDArray[np.int64], counts: Array, error: NDArray[np.floating]) -> Array:
        """T (R, M): of n images each (R,), against the likeliest cluster (R,)."""
        shared = 1 + (LUCK + counts[:, None]) * (error[best][:, None] + error[None])
        return np.asarray(self.base * shared + self.growth * counts[:, None])

    def posterior(self, likelihoods: Array, counts: Array, error: NDArray[np.floating], prior: Array) -> Array:
        """(R, M): probabilities of clusters, from log-likelihoods (R, M) of n images each (R,)."""
        best = likelihoods.argmax(axis=1)
        rows = np.arange(len(likelihoods))
        behind = likelihoods[rows, best][:, None] - likelihoods
        heat = self.heat(best, counts, error)
        with np.errstate(divide="ignore"):
            log = np.log(prior)[None] - behind / heat
        found = np.exp(log - log.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))


def votes_of(counts: Array, client: NDArray[np.int64]) -> Array:
    """(R,): what every try counts: a client once a size, since pieces of one validation part tell the same again."""
    vote = np.zeros(len(counts))
    for size in np.unique(counts):
        same = np.flatnonzero(counts == size)
        _, group, times = np.unique(client[same], return_inverse=True, return_counts=True)
        vote[same] = 1 / times[group.reshape(-1)]
    return vote


def learned_offsets(
    likelihoods: Array,
    counts: Array,
    own: NDArray[np.int64],
    vote: Array,
    error: NDArray[np.floating],
    prior: Array,
) -> Array:
    """b (M,): logistic regression of the known clusters on the likelihoods of tries, which are heated as usual."""
    rows, best = np.arange(len(own)), likelihoods.argmax(axis=1)
    heat = Temperature().heat(best, counts, error)
    behind = likelihoods - likelihoods[rows, best][:, None]
    with np.errstate(divide="ignore"):
        before = np.log(prior)[None]

    def surprise(offset: Array) -> tuple[float, Array]:
        log = before + (behind + counts[:, None] * offset) / heat
        total = np.logaddexp.reduce(log, axis=1)
        slope = np.exp(log - total[:, None])
        slope[rows, own] -= 1
        told = (vote * (total - log[rows, own])).sum() + 0.5 * (offset**2).sum() / OFFSET**2
        return float(told), np.asarray(
            (vote[:, None] * counts[:, None] / heat * slope).sum(axis=0) + offset / OFFSET**2
        )

    return np.asarray(minimize(surprise, np.zeros(len(prior)), jac=True, method="L-BFGS-B").x)


def learned(
    likelihoods: Array,
    counts: Array,
    own: NDArray[np.int64],
    vote: Array,
    error: NDArray[np.floating],
    prior: Array,
) -> Temperature:
    """The temperature under which tries (R) with known clusters are likeliest."""
    if not len(own):
        return Temperature()

    def surprise(base: float, growth: float) -> float:
        found = Temperature(base, growth).posterior(likelihoods, counts, error, prior)[np.arange(len(own)), own]
        doubt = 0.5 * (np.log(base / BASE) / DOUBT) ** 2 + growth / GROWTH
        return float(doubt - (vote * np.log(np.maximum(found, UNLIKELY))).sum())

    return Temperature(*min(((float(a), c) for a, c in product(BASES, GROWTHS)), key=lambda pair: surprise(*pair)))
