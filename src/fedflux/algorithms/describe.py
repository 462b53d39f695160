"""S1 to S3 on an engine: from clients and the global model of the trigger round to descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedflux.data import Cohort, Features
from fedflux.engine import Engine, Stack
from fedflux.flux.bounds import Bounds, LatentRange, client_bounds, merge_bounds, scalar_bounds
from fedflux.flux.descriptor import Descriptors, effective_counts, make_descriptors
from fedflux.flux.moments import MomentStatistic, moments
from fedflux.flux.projector import COMPONENTS, POINTS, Projector, fit_projector


@dataclass(frozen=True)
class DescriptorSettings:
    """How descriptors are made; the defaults are the paper's."""

    components: int = COMPONENTS
    points: int = POINTS
    full_covariance: bool = False
    scalar_bounds: bool = False


@dataclass(frozen=True, eq=False)
class Extractor:
    """φ, frozen at the trigger round: the global model θ* of that moment, the bounds and the shared projector."""

    reference: Stack
    bounds: Bounds
    projector: Projector
    full_covariance: bool


def fit_extractor(reference: Stack, cohort: Cohort, engine: Engine, settings: DescriptorSettings) -> Extractor:
    """S1 and S2: bounds from every member's training latents, then the projector everyone derives from them."""
    ranges = engine.reduce(reference, [cohort.data(client, "train") for client in cohort], LatentRange())
    bounds = merge_bounds([client_bounds(one) for one in ranges])
    if settings.scalar_bounds:
        bounds = scalar_bounds(bounds)
    projector = fit_projector(bounds, settings.components, settings.points)
    return Extractor(reference, bounds, projector, settings.full_covariance)


def describe(extractor: Extractor, cohort: Cohort, engine: Engine) -> Descriptors:
    """S3 for labelled members: marginal and class-conditional moments of their training part."""
    classes = cohort.federation.classes
    clients = [cohort.data(client, "train") for client in cohort]
    statistic = MomentStatistic(extractor.projector, classes, extractor.full_covariance)
    sums = engine.reduce(extractor.reference, clients, statistic)
    effective = [effective_counts(one.rows, one.y.numpy(), classes) for one in clients]
    return make_descriptors([moments(one) for one in sums], effective)


def describe_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> Descriptors:
    """d′ = φ(x, 0; ψ): the label-free part, from images alone.

    Labels are dropped before the engine sees the clients, so they cannot enter even if someone passes them in.
    """
    clients = [Features(one.x) for one in features]
    statistic = MomentStatistic(extractor.projector, None, extractor.full_covariance)
    sums = engine.reduce(extractor.reference, clients, statistic)
    found = [moments(one) for one in sums]
    return make_descriptors(found, [one.count.astype("float32") for one in found])
