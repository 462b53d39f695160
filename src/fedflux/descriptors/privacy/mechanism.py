"""S4 at the client: a descriptor as one noisy release, or with the paper's noise on every coordinate.

Noise is made where the data are; what leaves the client has it already.
"""

from dataclasses import replace
from math import sqrt

import numpy as np

from fedflux.data.holding import Holding, Seen
from fedflux.data.labelled import Split
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.privacy import accounting
from fedflux.descriptors.privacy.accounting import SHARE, Privacy, release_sigma
from fedflux.descriptors.privacy.release import SENSITIVITY, read_marginal, read_release
from fedflux.descriptors.privacy.units import counted, only_validation
from fedflux.descriptors.projector import Projector


def sigma_of(privacy: Privacy) -> float:
    """The deviation of the noise on every number of a release."""
    sensitivity = SENSITIVITY / sqrt(1 - SHARE) if privacy.scaling else SENSITIVITY
    return release_sigma(privacy.epsilon, privacy.delta, sensitivity, privacy.releases)


def spent_by(privacy: Privacy, releases: int, scalings: int) -> float:
    """ε of so many releases of a descriptor, and of so many times both releases that scaling takes."""
    of_scaling = scalings * privacy.releases * SHARE / (1 - SHARE) if privacy.scaling else 0.0
    return accounting.spent(sigma_of(privacy), SENSITIVITY * sqrt(releases + of_scaling), privacy.delta)


def released(held: Holding, seen: Seen, projector: Projector, classes: int, privacy: Privacy) -> Descriptors:
    """One release of a labelled client: sums of its training part by class, and of its validation part.

    No record is in both parts, and no group where those are protected, so together they cost what one costs.
    """
    train, own = seen.sums
    length, sigma = len(projector), sigma_of(privacy)
    parts = [train.vector(labelled=True)] + ([] if own is None else [own.first[0].cpu().numpy()])
    noisy = accounting.gaussian_noise(np.concatenate(parts), sigma)
    found = read_release(noisy[: len(parts[0])], counted(held, "train", privacy), classes, length, sigma)
    validation, count = np.zeros((1, length)), 0
    if own is not None:
        records = only_validation(privacy)(held)
        assert records is not None
        count = len(records)
        validation[0] = noisy[len(parts[0]) :] / count
    return Descriptors(
        mean=found.mean[None],
        spread=found.spread[None],
        correlation=found.correlation[None],
        count=found.count[None].astype(np.int64),
        effective=found.effective[None],
        noise=found.noise[None],
        validation_mean=validation,
        validation_count=np.array([count], dtype=np.int64),
        count_noise=np.array([found.count_noise]),
        validation_noise=np.array([sigma**2 / count**2 if count else 0.0]),
    )


def released_marginal(held: Holding, seen: Seen, projector: Projector, privacy: Privacy, split: Split) -> Descriptors:
    """One release of an unlabelled client's images."""
    sigma, length, size = sigma_of(privacy), len(projector), counted(held, split, privacy)
    noisy = accounting.gaussian_noise(seen.sums[0].vector(labelled=False), sigma)
    mean, spread, noise = read_marginal(noisy, size, length, sigma)
    count = np.array([[size]], dtype=np.int64)
    return Descriptors(
        mean=mean[None, None],
        spread=spread[None, None],
        correlation=np.zeros((1, 0, length, length)),
        count=count,
        effective=count.astype(np.float64),
        noise=np.array([[noise]]),
        validation_mean=np.zeros((1, length)),
        validation_count=np.zeros(1, dtype=np.int64),
        count_noise=np.zeros(1),
        validation_noise=np.zeros(1),
    )


def with_paper_noise(exact: Descriptors, bounds: Bounds, epsilon: float) -> Descriptors:
    """The paper's S4: Laplace noise of scale Range/(s ε) on every mean and every deviation, s the client's examples."""
    scale = float((bounds.high - bounds.low).max()) / (np.maximum(exact.count[:, 0], 1) * epsilon)
    told = np.concatenate([np.ones((len(exact), 1), dtype=bool), exact.count[:, 1:] >= 2], axis=1)
    mean, spread = exact.mean.copy(), exact.deviations()
    for k in range(len(exact)):
        mean[k, told[k]] = accounting.laplace_noise(mean[k, told[k]], scale[k])
        spread[k, told[k]] = np.maximum(accounting.laplace_noise(spread[k, told[k]], scale[k]), 0.0)
    return replace(exact, mean=mean, spread=spread, noise=np.where(told, 2 * scale[:, None] ** 2, 0.0))
