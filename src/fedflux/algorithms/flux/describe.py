"""S1 to S4 on an engine: from clients and the global model of the trigger round to descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.private import (
    NO_BOUNDS,
    describe_privately,
    describe_unlabelled_privately,
    image_numbers,
    public_projector,
    with_paper_noise,
)
from fedflux.data import Cohort, Features, Held
from fedflux.descriptors.bounds import Bounds, LatentRange, client_bounds, merge_bounds, scalar_bounds
from fedflux.descriptors.descriptor import Descriptors, effective_counts, join_descriptors, make_descriptors
from fedflux.descriptors.discriminant import (
    BREADTH,
    Scatter,
    ScatterStatistic,
    client_scatter,
    enough,
    fit_discriminant,
)
from fedflux.descriptors.moments import Moments, MomentStatistic, moments
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.projector import COMPONENTS, POINTS, Projector, fit_projector
from fedflux.descriptors.wire import Arrays, over_the_wire, to_arrays
from fedflux.engine import Engine, Stack

FEW = 10
"""Distinct examples a class, typically, below which the discriminant projector is worth a hint."""


@dataclass(frozen=True)
class DescriptorSettings:
    """How descriptors are made; the defaults are the paper's."""

    components: int = COMPONENTS
    points: int = POINTS
    full_covariance: bool = False
    scalar_bounds: bool = False
    discriminant: bool = False
    """A projector onto the directions in which classes and clients differ, instead of the paper's."""
    privacy: Privacy | None = None


@dataclass(frozen=True, eq=False)
class Extractor:
    """φ, frozen at the trigger round: the global model θ* of that moment, the bounds and the shared projector."""

    reference: Stack
    bounds: Bounds
    projector: Projector
    full_covariance: bool
    privacy: Privacy | None = None
    scatter_bytes: int = 0
    """What every member of the trigger round sent besides its bounds, where the projector was found from scatter."""

    @property
    def up(self) -> int:
        """Bytes that S1 and S2 took from each member."""
        return self.bounds.nbytes + self.scatter_bytes

    @property
    def down(self) -> int:
        """Bytes that S1 and S2 bring to a client: bounds, from which the paper's projector follows, and any other."""
        return self.bounds.nbytes + (self.projector.nbytes if self.scatter_bytes else 0)


def fit_extractor(reference: Stack, cohort: Cohort, engine: Engine, settings: DescriptorSettings) -> Extractor:
    """S1 and S2: bounds from every member's training latents, then the projector everyone derives from them.

    Under the Gaussian mechanism no bounds are asked for: the projector is public.
    """
    privacy = settings.privacy
    if privacy is not None and privacy.mechanism == "gaussian":
        shape = cohort.federation.image_shape
        projector = public_projector(reference, shape, engine, settings.components, settings.points)
        return Extractor(reference, NO_BOUNDS, projector, False, privacy)
    ranges = []
    for part in cohort.parts("train"):
        ranges += engine.reduce(reference, part.held("train"), LatentRange())
    bounds = merge_bounds([client_bounds(one) for one in ranges])
    if settings.scalar_bounds:
        bounds = scalar_bounds(bounds)
    if not settings.discriminant:
        projector = fit_projector(bounds, settings.components, settings.points)
        return Extractor(reference, bounds, projector, settings.full_covariance, privacy)
    base = fit_projector(bounds, max(BREADTH, settings.components), max(settings.points, 2 * BREADTH))
    scatter = _scatter(base, reference, cohort, engine)
    projector = fit_discriminant(base, scatter, fit_projector(bounds, settings.components, settings.points))
    return Extractor(reference, bounds, projector, settings.full_covariance, privacy, scatter.nbytes)


def _scatter(base: Projector, reference: Stack, cohort: Cohort, engine: Engine) -> Scatter:
    """The sum of all members' scatter, some members at a time."""
    federation, total = cohort.federation, None
    statistic = ScatterStatistic(base, federation.classes)
    for part in cohort.parts("train"):
        for client, sums in zip(part, engine.reduce(reference, part.held("train"), statistic), strict=True):
            distinct = effective_counts(federation.labels(client, "train")[0], None, None)[0]
            one = client_scatter(sums, float(distinct))
            total = one if total is None else total + one
    assert total is not None
    return total


def too_few(descriptors: Descriptors, how: DescriptorSettings) -> float | None:
    """How many distinct examples a class has, typically, where so few may hide a shift from the paper's projector and
    all together would tell a discriminant one.
    """
    held = descriptors.effective[:, 1:][descriptors.effective[:, 1:] >= 1]
    if how.discriminant or how.privacy is not None or not len(held) or not enough((held - 1).sum(), how.components):
        return None
    typical = float(np.median(held))
    return typical if typical < FEW else None


def describe(extractor: Extractor, cohort: Cohort, engine: Engine) -> Descriptors:
    """S3 for labelled members, as the server receives it: moments of the training part, mean of the validation part."""
    parts = cohort.parts("train", "validation")
    return join_descriptors([over_the_wire(_describe(extractor, part, engine)) for part in parts])


def sent(extractor: Extractor, cohort: Cohort, engine: Engine) -> Arrays:
    """What labelled members put on the wire; `describe` is what becomes of it on the other side."""
    return to_arrays(_describe(extractor, cohort, engine))


def _describe(extractor: Extractor, cohort: Cohort, engine: Engine) -> Descriptors:
    privacy = extractor.privacy
    if privacy is None:
        return _describe_exactly(extractor, cohort, engine)
    if privacy.mechanism == "gaussian":
        return describe_privately(extractor.reference, extractor.projector, privacy, cohort, engine)
    return with_paper_noise(_describe_exactly(extractor, cohort, engine), extractor.bounds, privacy.epsilon)


def _describe_exactly(extractor: Extractor, cohort: Cohort, engine: Engine) -> Descriptors:
    federation, classes = cohort.federation, cohort.federation.classes
    sums = engine.reduce(extractor.reference, cohort.held("train"), MomentStatistic(extractor.projector, classes))
    effective = [effective_counts(*federation.labels(client, "train"), classes) for client in cohort]
    holders = replace(cohort, ids=tuple(client for client in cohort if federation.size(client, "validation")))
    of_holder = dict(zip(holders, _marginals(extractor, holders.features("validation"), engine), strict=True))
    validation = [of_holder.get(client) for client in cohort]
    distinct = np.array([effective_counts(federation.labels(k, "validation")[0], None, None)[0] for k in cohort])
    found = [moments(one, federation.copies("train")) for one in sums]
    made = make_descriptors(found, effective, validation, extractor.full_covariance)
    return replace(made, validation_count=np.floor(distinct).astype(np.int64))


def describe_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> Descriptors:
    """d′ = φ(x, 0; ψ): the label-free part, from images alone.

    Labels are dropped before the engine sees the clients, so they cannot enter even if someone passes them in.
    """
    return over_the_wire(_describe_unlabelled(extractor, features, engine))


def sent_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> Arrays:
    """What unlabelled clients put on the wire; `describe_unlabelled` is what becomes of it on the other side."""
    return to_arrays(_describe_unlabelled(extractor, features, engine))


def _describe_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> Descriptors:
    privacy = extractor.privacy
    if privacy is not None and privacy.mechanism == "gaussian":
        return describe_unlabelled_privately(extractor.reference, extractor.projector, privacy, features, engine)
    found = _marginals(extractor, features, engine)
    made = make_descriptors(found, _effective(features), full_covariance=extractor.full_covariance)
    return made if privacy is None else with_paper_noise(made, extractor.bounds, privacy.epsilon)


def _effective(features: Sequence[Features]) -> list[NDArray[np.float64]]:
    """Kish's effective count of every client's images: copies are not more evidence, and a client sees its own."""
    if isinstance(features, Held):
        federation, split = features.cohort.federation, features.split
        return [effective_counts(federation.labels(client, split)[0], None, None) for client in features.cohort]
    return [effective_counts(image_numbers(one), None, None) for one in features]


def _marginals(extractor: Extractor, features: Sequence[Features], engine: Engine) -> list[Moments]:
    """Marginal moments of every client's images."""
    if not (isinstance(features, Held) and not features.labelled):
        features = [Features(one.x) for one in features]
    statistic = MomentStatistic(extractor.projector, None)
    return [moments(one) for one in engine.reduce(extractor.reference, features, statistic)]
