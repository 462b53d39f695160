"""S0 with differential privacy: how large every feature gets, then its mean and deviation within that.

Nobody knows beforehand in which units data comes, and minima and maxima are values of single records. So clients first
count, with noise, how many of their records' numbers lie in every octave [2ᵉ, 2ᵉ⁺¹) of size; the server takes the
window of octaves in which most lie. They then tell noisy sums of numbers, cut to that reach, and of their squares. Both
releases together have `SHARE` of a run's budget (docs/privacy.md).
"""

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from fedflux.data.scaling import Scaling, channels
from fedflux.descriptors.privacy.accounting import SHARE, Privacy, gaussian_noise, release_sigma
from fedflux.errors import FedfluxError

Array = NDArray[np.float64]

LOWEST, OCTAVES = -24, 64
"""Numbers below 2⁻²⁴ in size count as zero, those of 2⁴⁰ and more as of the last octave."""
WINDOW = 5
"""Octaves: of normally distributed numbers around zero 96 % lie in the five around their deviation."""
ENOUGH = 4.0
"""Deviations of a window's noise that the number of all records must have, or no window could be believed."""
WEIGHT = sqrt(0.5)
"""Of squares. A record's (u, u²/√2) with |u| ≤ 1 moves by at most 2: (u − v)² (1 + (u + v)²/2) ≤ 4."""
RELEASES = 2
SLACK = 1 + 1e-6


def octaves_sensitivity(features: int) -> float:
    """ℓ2: of each feature one record's share of octaves is exchanged for another's."""
    return sqrt(2 * features) * SLACK


def sums_sensitivity(features: int) -> float:
    """ℓ2: each feature moves by at most 2."""
    return 2 * sqrt(features) * SLACK


def sigma_of_spread(privacy: Privacy, sensitivity: float) -> float:
    """The deviation of the noise on every number of one of both releases."""
    return release_sigma(privacy.epsilon, privacy.delta, sensitivity * sqrt(RELEASES / SHARE))


def by_feature(x: NDArray[np.generic]) -> Array:
    """(records, features, positions)."""
    return np.asarray(x, dtype=np.float64).reshape(len(x), channels(x.shape[1:]), prod(x.shape[2:]))


def octave_sums(x: NDArray[np.generic]) -> Array:
    """(features, octaves): over records, the share of each record's positions that lie in an octave."""
    values = np.abs(by_feature(x))
    features, positions = values.shape[1:]
    found = np.floor(np.log2(np.maximum(values, 2.0 ** (LOWEST - 1)))).astype(np.int64) - LOWEST
    place = np.minimum(found, OCTAVES - 1)
    sums = np.zeros((features, OCTAVES))
    feature = np.broadcast_to(np.arange(features)[None, :, None], place.shape)
    seen = place >= 0
    np.add.at(sums, (feature[seen], place[seen]), 1.0 / positions)
    return sums


def clipped_sums(x: NDArray[np.generic], reach: Array) -> Array:
    """(2, features): sums over records of the mean over positions of u = x / reach, cut to ±1, and of u²/√2."""
    u = np.clip(by_feature(x) / reach[None, :, None], -1.0, 1.0)
    return np.stack([u.mean(axis=2).sum(axis=0), WEIGHT * (u**2).mean(axis=2).sum(axis=0)])


def noisy(sums: Array, sensitivity: float, privacy: Privacy) -> Array:
    """What leaves the client."""
    return gaussian_noise(sums, sigma_of_spread(privacy, sensitivity))


def check_enough(records: int, features: int, clients: int, privacy: Privacy) -> float:
    """The deviation of a window's noise; numbers that are public already say whether anything is seen beside it."""
    noise = sigma_of_spread(privacy, octaves_sensitivity(features)) * sqrt(clients * WINDOW)
    if records < ENOUGH * noise:
        words = f"{records:,} {privacy.unit}s of {features} features are too few to be standardised with --epsilon"
        raise FedfluxError(
            f"{words} {privacy.epsilon:g}, which takes {ENOUGH * noise:,.0f}: scale them yourself, with --scale none"
        )
    return noise


def reach_of(told: Sequence[Array], records: int, privacy: Privacy) -> Array:
    """(features,): the upper end of the window of octaves in which most of everybody's numbers lie."""
    whole = np.sum(told, axis=0)
    noise = check_enough(records, len(whole), len(told), privacy)
    windows = np.lib.stride_tricks.sliding_window_view(whole, WINDOW, axis=1).sum(axis=2)
    top = _highest(windows, noise)
    return np.asarray(2.0 ** (LOWEST + top + WINDOW), dtype=np.float64)


def _highest(windows: Array, noise: float) -> NDArray[np.int64]:
    """The lowest window among those that hold as many as the fullest, up to noise: its end is nearest to the data."""
    full = windows >= windows.max(axis=1, keepdims=True) - 2 * noise
    return np.asarray(full.argmax(axis=1), dtype=np.int64)


def scaling_of(told: Sequence[Array], records: int, reach: Array, privacy: Privacy) -> Scaling:
    """Means and deviations; a deviation is never taken for smaller than noise lets one see."""
    first, second = np.sum(told, axis=0) / records
    noise = sigma_of_spread(privacy, sums_sensitivity(len(reach))) * sqrt(len(told)) / records
    mean = np.clip(first, -1.0, 1.0)
    square = second / WEIGHT
    unsure = noise * np.sqrt(1 / WEIGHT**2 + 4 * mean**2)
    deviation = np.sqrt(np.clip(square - mean**2, unsure, 1.0))
    return Scaling("standardise", tuple((mean * reach).tolist()), tuple((deviation * reach).tolist()))
