"""S4 on an engine: descriptors as one noisy release a client, or with the paper's noise on every coordinate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort, Features, Held, Labelled, Split
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.privacy.accounting import Privacy, gaussian_noise, laplace_noise, release_sigma
from fedflux.descriptors.privacy.release import SENSITIVITY, ReleaseStatistic, read_marginal, read_release
from fedflux.descriptors.projector import Projector, fit_projector
from fedflux.descriptors.public import LatentSum, as_tensor, mean_latent, public_images
from fedflux.engine import Engine, Stack

NO_BOUNDS = Bounds(np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.float32))
"""What clients tell of their latents' range under privacy: nothing."""


def public_projector(
    reference: Stack, image_shape: tuple[int, int, int], engine: Engine, components: int, points: int
) -> Projector:
    """S1 and S2 without data: the projector of the unit box, around the model's mean latent of public images."""
    images = Features(as_tensor(public_images(image_shape)))
    centre = mean_latent(engine.reduce(reference, [images], LatentSum())[0])
    unit = Bounds(np.zeros(len(centre), dtype=np.float32), np.ones(len(centre), dtype=np.float32))
    return Projector(centre, fit_projector(unit, components, points).components)


def sigma_of(privacy: Privacy) -> float:
    """The deviation of the noise on every number of a release."""
    return release_sigma(privacy.epsilon, privacy.delta, SENSITIVITY, privacy.releases)


def describe_privately(
    reference: Stack, projector: Projector, privacy: Privacy, cohort: Cohort, engine: Engine
) -> Descriptors:
    """One release of every labelled member: sums of its training part by class, and of its validation part.

    No record is in both parts, so together they cost what one costs.
    """
    federation, classes, length = cohort.federation, cohort.federation.classes, len(projector)
    train = _distinct_rows(cohort, "train")
    sums = engine.reduce(reference, train, ReleaseStatistic(projector, classes))
    holding = replace(cohort, ids=tuple(client for client in cohort if federation.size(client, "validation")))
    apart = {k: _unlike(one, federation.labels(k, "train")[0]) for k, one in _labelled(holding, "validation")}
    held = {client: one for client, one in apart.items() if len(one)}
    reduced = engine.reduce(reference, list(held.values()), ReleaseStatistic(projector, None)) if held else []
    of_holder = dict(zip(held, reduced, strict=True))
    sizes = {client: len(one.x) for client, one in held.items()}
    sigma = sigma_of(privacy)
    found, validation = [], np.zeros((len(cohort), length))
    for k, (client, one) in enumerate(zip(cohort, sums, strict=True)):
        own = of_holder.get(client)
        parts = [one.vector(labelled=True)] + ([] if own is None else [own.first[0].cpu().numpy()])
        noisy = gaussian_noise(np.concatenate(parts), sigma)
        found.append(read_release(noisy[: len(parts[0])], len(train[k].x), classes, length, sigma))
        if own is not None:
            validation[k] = noisy[len(parts[0]) :] / sizes[client]
    count = np.array([sizes.get(client, 0) for client in cohort], dtype=np.int64)
    return Descriptors(
        mean=np.stack([one.mean for one in found]),
        spread=np.stack([one.spread for one in found]),
        correlation=np.stack([one.correlation for one in found]),
        count=np.stack([one.count for one in found]).astype(np.int64),
        effective=np.stack([one.effective for one in found]),
        noise=np.stack([one.noise for one in found]),
        validation_mean=validation,
        validation_count=count,
        count_noise=np.array([one.count_noise for one in found]),
        validation_noise=np.where(count > 0, sigma**2 / np.maximum(count, 1) ** 2, 0.0),
    )


def describe_unlabelled_privately(
    reference: Stack, projector: Projector, privacy: Privacy, features: Sequence[Features], engine: Engine
) -> Descriptors:
    """One release of every unlabelled client's images."""
    once, sigma, length = distinct(features), sigma_of(privacy), len(projector)
    sums = engine.reduce(reference, once, ReleaseStatistic(projector, None))
    noisy = [gaussian_noise(one.vector(labelled=False), sigma) for one in sums]
    found = [read_marginal(one, len(held.x), length, sigma) for one, held in zip(noisy, once, strict=True)]
    count = np.array([len(held.x) for held in once], dtype=np.int64)[:, None]
    return Descriptors(
        mean=np.stack([mean for mean, _, _ in found])[:, None],
        spread=np.stack([spread for _, spread, _ in found])[:, None],
        correlation=np.zeros((len(once), 0, length, length)),
        count=count,
        effective=count.astype(np.float64),
        noise=np.array([[noise] for _, _, noise in found]),
        validation_mean=np.zeros((len(once), length)),
        validation_count=np.zeros(len(once), dtype=np.int64),
        count_noise=np.zeros(len(once)),
        validation_noise=np.zeros(len(once)),
    )


def with_paper_noise(exact: Descriptors, bounds: Bounds, epsilon: float) -> Descriptors:
    """The paper's S4: Laplace noise of scale Range/(s ε) on every mean and every deviation, s the client's examples."""
    scale = float((bounds.high - bounds.low).max()) / (np.maximum(exact.count[:, 0], 1) * epsilon)
    told = np.concatenate([np.ones((len(exact), 1), dtype=bool), exact.count[:, 1:] >= 2], axis=1)
    mean, spread = exact.mean.copy(), exact.deviations()
    for k in range(len(exact)):
        mean[k, told[k]] = laplace_noise(mean[k, told[k]], scale[k])
        spread[k, told[k]] = np.maximum(laplace_noise(spread[k, told[k]], scale[k]), 0.0)
    return replace(exact, mean=mean, spread=spread, noise=np.where(told, 2 * scale[:, None] ** 2, 0.0))


def _labelled(cohort: Cohort, split: Split) -> Iterator[tuple[int, Labelled]]:
    for client, one in zip(cohort, _distinct_rows(cohort, split), strict=True):
        assert isinstance(one, Labelled)
        yield client, one


def _unlike(held: Labelled, others: NDArray[np.int64]) -> Features:
    """The examples that are not among these rows: data that changes gradually may have moved one between the parts."""
    apart = ~np.isin(held.rows, others)
    return Features(held.x if apart.all() else held.x[apart])


def _distinct_rows(cohort: Cohort, split: Split) -> Sequence[Features]:
    """What members hold of a split, each example once: a copy would count a record twice."""
    held = cohort.held(split)
    if all(_first(cohort.federation.labels(client, split)[0]) is None for client in cohort):
        return held
    once = []
    for one in held:
        assert isinstance(one, Labelled)
        keep = _first(one.rows)
        once.append(one if keep is None else Labelled(one.x[keep], one.y[keep], one.rows[keep]))
    return once


def distinct(features: Sequence[Features]) -> Sequence[Features]:
    """The same clients with every example kept once and without labels: by what it is a copy of where that is known,
    since copies may look different, and otherwise by equal images.
    """
    once = []
    for k, one in enumerate(features):
        if isinstance(features, Held):
            numbers = features.cohort.federation.labels(features.cohort.ids[k], features.split)[0]
        else:
            numbers = image_numbers(one)
        found = np.unique(numbers, return_index=True)[1]
        once.append(Features(one.x if len(found) == len(one.x) else one.x[np.sort(found)]))
    return once


def image_numbers(features: Features) -> NDArray[np.int64]:
    """A number for every image, the same for equal ones."""
    return np.array([hash(image.tobytes()) for image in features.x.cpu().numpy()], dtype=np.int64)


def _first(rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Positions of the first of equal rows, None where there are no copies."""
    first = np.unique(rows, return_index=True)[1]
    return None if len(first) == len(rows) else np.sort(first)
