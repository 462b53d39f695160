"""S1 to S4 on an engine: from clients and the global model of the trigger round to descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort, Features, Held
from fedflux.data.tasks.kinds import rarest_first
from fedflux.descriptors.bounds import Bounds, merge_bounds, scalar_bounds
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.discriminant import Scatter, enough, fit_discriminant
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.projector import COMPONENTS, POINTS, Projector, fit_projector
from fedflux.descriptors.public import LatentSum, mean_latent, public_inputs
from fedflux.descriptors.queries import (
    AskBounds,
    AskDescriptor,
    AskLabels,
    AskScatter,
    AskUnlabelled,
    read_bounds,
)
from fedflux.descriptors.wire import client_bytes, completed, from_arrays, join_arrays
from fedflux.engine import Answers, Engine, Stack
from fedflux.models.protocol import blank
from fedflux.operations import Arrays

ANSWERS = 0.9
"""The share of members that must describe themselves once more for the finer projector to be taken."""
FEW = 10
"""Distinct examples a class, typically, below which the discriminant projector is worth its bytes."""


@dataclass(frozen=True)
class DescriptorSettings:
    """How descriptors are made; the defaults are the paper's."""

    components: int = COMPONENTS
    points: int = POINTS
    full_covariance: bool = False
    scalar_bounds: bool = False
    projector: Literal["auto", "synthetic", "discriminant"] = "synthetic"
    """`discriminant`: onto the directions in which classes and clients differ, instead of the paper's; `auto`: where
    the paper's would see too little."""
    privacy: Privacy | None = None


@dataclass(frozen=True, eq=False)
class Extractor:
    """φ, frozen at the trigger round: the global model θ* of that moment, and what clients are asked under it."""

    reference: Stack
    question: AskDescriptor
    scatter_bytes: int = 0
    """What every member of the trigger round sent besides its bounds, where the projector was found from scatter."""
    earlier_bytes: int = 0
    """What it sent before that, where a description under the paper's projector showed how few examples there are."""

    @property
    def up(self) -> int:
        """Bytes that S1 and S2 took from each member, counts of several labels among them."""
        counts = 8 * len(self.question.rarest) if self.question.privacy is None else 0
        return self._bounds_bytes + counts + self.scatter_bytes + self.earlier_bytes

    @property
    def forward(self) -> int:
        """Passes over each member's data that describing it took."""
        return 1 + (self.scatter_bytes > 0) + (self.earlier_bytes > 0)

    @property
    def down(self) -> int:
        """Bytes that S1 and S2 bring to a client: bounds, from which the paper's projector follows, and any other."""
        return self._bounds_bytes + (self.question.projector.nbytes if self.scatter_bytes else 0)

    @property
    def _bounds_bytes(self) -> int:
        return 0 if self.question.bounds is None else self.question.bounds.nbytes


@dataclass(frozen=True, eq=False)
class Told:
    """Who described itself, and how."""

    clients: tuple[int, ...]
    descriptors: Descriptors


def finer(how: DescriptorSettings) -> DescriptorSettings:
    """The same with the projector that sees most, where it is free to choose."""
    return replace(how, projector="discriminant") if how.projector == "auto" else how


def describe_all(
    reference: Stack, cohort: Cohort, told_by: Cohort, engine: Engine, settings: DescriptorSettings
) -> tuple[Extractor, Told] | None:
    """S1 to S4: bounds, then the projector everyone derives from them, then descriptors; None where nobody answered.

    `told_by` are the members with the data that they describe. Where that shows that classes have few examples, and
    the projector is free to choose, they describe it once more under the discriminant one.
    """
    bounds = _ask_bounds(reference, cohort, engine, settings)
    found = _describe_under(bounds, reference, cohort, told_by, engine, settings)
    if found is None or settings.projector != "auto" or too_few(found[1].descriptors, settings) is None:
        return found
    first = found[1]
    kept = None if bounds is None else {client: bounds[client] for client in first.clients}
    finer = _describe_under(kept, reference, cohort, told_by, engine, replace(settings, projector="discriminant"))
    if finer is None or len(finer[1].clients) < ANSWERS * len(first.clients):
        return found
    extractor, told = finer
    return replace(extractor, earlier_bytes=client_bytes(first.descriptors)), told


def _describe_under(
    bounds: dict[int, Bounds] | None,
    reference: Stack,
    cohort: Cohort,
    told_by: Cohort,
    engine: Engine,
    settings: DescriptorSettings,
) -> tuple[Extractor, Told] | None:
    """S2 to S4. A refused client must leave no trace: where one is refused for its descriptor, the bounds are merged
    anew without it.
    """
    refused: frozenset[int] = frozenset()
    while True:
        extractor = _extractor(reference, cohort, engine, settings, bounds, refused)
        if extractor is None:
            return None
        answered = cohort if bounds is None else cohort.only(bounds)
        told, out = _describe(extractor, told_by.only(answered), engine)
        if not out - refused:
            return None if told is None else (extractor, told)
        refused |= out


def fit_extractor(reference: Stack, cohort: Cohort, engine: Engine, settings: DescriptorSettings) -> Extractor | None:
    """S1 and S2 alone: bounds from everyone that answers, then the projector that everyone derives from them; under
    `auto`, the paper's.
    """
    bounds = _ask_bounds(reference, cohort, engine, settings)
    return _extractor(reference, cohort, engine, settings, bounds, frozenset())


def _ask_bounds(
    reference: Stack, cohort: Cohort, engine: Engine, settings: DescriptorSettings
) -> dict[int, Bounds] | None:
    """S1: the bounds of every member's training latents; under the Gaussian mechanism none are asked for."""
    if settings.privacy is not None and settings.privacy.mechanism == "gaussian":
        return None
    width = latent_width(reference, cohort, engine)
    answers = engine.ask(AskBounds(width), cohort, reference)
    return {client: read_bounds(one) for client, one in zip(answers.clients, answers.arrays, strict=True)}


def latent_width(reference: Stack, cohort: Cohort, engine: Engine) -> int:
    """v: how many numbers the model's latent has."""
    nothing = blank(1, cohort.federation.input_shape, cohort.federation.integers)
    return len(mean_latent(engine.public(reference, nothing, LatentSum())))


def _extractor(
    reference: Stack,
    cohort: Cohort,
    engine: Engine,
    settings: DescriptorSettings,
    bounds: dict[int, Bounds] | None,
    refused: frozenset[int],
) -> Extractor | None:
    """S1 and S2 on the server; None where no bounds are left."""
    classes, rarest = cohort.federation.kinds, _as_they_stand(cohort)
    if bounds is None:
        inputs = public_inputs(cohort.federation)
        centre = mean_latent(engine.public(reference, inputs, LatentSum()))
        return Extractor(reference, replace(public_question(centre, classes, settings), rarest=rarest))
    kept = {client: one for client, one in bounds.items() if client not in refused}
    if not kept:
        return None
    if rarest and settings.privacy is None:
        counts = engine.ask(AskLabels(len(rarest)), cohort.only(kept), reference)
        rarest = rarest_first(counts.stacked("labels").sum(axis=0)) if len(counts) else rarest
    question = replace(bounded_question(list(kept.values()), classes, settings), rarest=rarest)
    if settings.projector != "discriminant":
        return Extractor(reference, question)
    ask = scatter_of(question)
    answers = engine.ask(ask, cohort.only(kept), reference)
    if not len(answers):
        return None
    return Extractor(reference, *discriminant_question(question, answers.arrays))


def _as_they_stand(cohort: Cohort) -> tuple[int, ...]:
    """Several labels in the order of the data; nothing where records have one."""
    return tuple(range(cohort.federation.classes)) if cohort.federation.task.several else ()


def bounded_question(bounds: Sequence[Bounds], classes: int, settings: DescriptorSettings) -> AskDescriptor:
    """S1 and S2 as the paper has them: from the bounds of everybody's latents to the projector that all derive."""
    merged = merge_bounds(bounds)
    return AskDescriptor(
        classes,
        settings.components,
        settings.points,
        scalar_bounds(merged) if settings.scalar_bounds else merged,
        full_covariance=settings.full_covariance,
        privacy=settings.privacy,
    )


def public_question(centre: NDArray[np.float64], classes: int, settings: DescriptorSettings) -> AskDescriptor:
    """S1 and S2 without data: the projector of the unit box, around the model's mean latent of public inputs."""
    unit = Bounds(np.zeros(len(centre), dtype=np.float32), np.ones(len(centre), dtype=np.float32))
    projector = Projector(centre, fit_projector(unit, settings.components, settings.points).components)
    return AskDescriptor(classes, settings.components, settings.points, None, projector, privacy=settings.privacy)


def scatter_of(question: AskDescriptor) -> AskScatter:
    """What clients are asked for a projector that sees finer than the question's."""
    assert question.bounds is not None
    return AskScatter(question.bounds, question.components, question.points, question.classes, question.rarest)


def discriminant_question(question: AskDescriptor, answers: Sequence[Arrays]) -> tuple[AskDescriptor, int]:
    """The same under the projector that clients' scatter leads to, and the bytes that each of them sent for it."""
    ask = scatter_of(question)
    scatter = _total([ask.read(one) for one in answers])
    return replace(question, given=fit_discriminant(ask.base, scatter, question.projector)), scatter.nbytes


def _total(parts: Sequence[Scatter]) -> Scatter:
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total


def describe(extractor: Extractor, cohort: Cohort, engine: Engine) -> Told | None:
    """Descriptors of labelled members, as the server receives them; None where nobody answered."""
    return _describe(extractor, cohort, engine)[0]


def _describe(extractor: Extractor, cohort: Cohort, engine: Engine) -> tuple[Told | None, frozenset[int]]:
    if not len(cohort):
        return None, frozenset()
    answers = engine.ask(extractor.question, cohort, extractor.reference)
    return _told(answers, answers.arrays), answers.refused


def describe_unlabelled(extractor: Extractor, features: Sequence[Features], engine: Engine) -> Told | None:
    """d′ of unlabelled clients, from images alone.

    Labels are dropped before the engine sees the clients, so they cannot enter even if someone passes them in.
    """
    answers = engine.ask(AskUnlabelled(extractor.question), features, extractor.reference)
    return _told(answers, [completed(one) for one in answers.arrays])


def asked(features: Sequence[Features]) -> Sequence[int]:
    """The clients that features are of: their ids, or their places where they belong to no federation."""
    return features.cohort.ids if isinstance(features, Held) else range(len(features))


def _told(answers: Answers, arrays: Sequence[Arrays]) -> Told | None:
    if not len(answers):
        return None
    return Told(answers.clients, from_arrays(join_arrays(arrays)))


def too_few(descriptors: Descriptors, how: DescriptorSettings) -> float | None:
    """How many distinct examples a class has, typically, where so few may hide a shift from the paper's projector and
    all together would tell a discriminant one.
    """
    held: NDArray[np.float64] = descriptors.effective[:, 1:][descriptors.effective[:, 1:] >= 1]
    if how.projector == "discriminant" or how.privacy is not None or not len(held):
        return None
    if not enough((held - 1).sum(), how.components):
        return None
    typical = float(np.median(held))
    return typical if typical < FEW else None
