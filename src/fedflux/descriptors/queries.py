"""What a server asks about data, S1 to S4, each computed at the client: bounds, scatter, descriptors.

The answers are small arrays in the form in which they travel; a simulation reads the very same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedflux.data.holding import About, Holding, NothingToTellError, Pass, Seen
from fedflux.data.labelled import Split
from fedflux.descriptors.bounds import Bounds, LatentRange, client_bounds
from fedflux.descriptors.checks import bounds_fault, descriptor_fault, finite_fault, shape_fault, wide_faults
from fedflux.descriptors.descriptor import Descriptors, effective_counts, make_descriptors
from fedflux.descriptors.discriminant import BREADTH, Scatter, ScatterStatistic, client_scatter
from fedflux.descriptors.groups import counted, group_pass
from fedflux.descriptors.kinds import by_kind, label_counts
from fedflux.descriptors.moments import MomentStatistic, moments
from fedflux.descriptors.privacy import mechanism, units
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.descriptors.privacy.release import ReleaseStatistic
from fedflux.descriptors.projector import Projector, fit_projector
from fedflux.descriptors.wire import completed, label_free, to_arrays
from fedflux.operations import Arrays, operation

Array = NDArray[np.generic]


class AskedAlone:
    """A question whose answers are checked one by one, and that needs no losses."""

    losses: ClassVar[Split | None] = None

    def faults(self, answers: Sequence[Arrays]) -> Sequence[str | None]:
        """Nothing is wrong with an answer because of the others'."""
        return [None] * len(answers)


@operation("latent-bounds")
@dataclass(frozen=True)
class AskBounds(AskedAlone):
    """S1: the range of a client's training latents, coordinate by coordinate."""

    width: int
    """v: of the latent."""

    def passes(self) -> Sequence[Pass]:
        """Of the training part."""
        return (Pass("train", LatentRange()),)

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """[m⁻, m⁺]."""
        if seen.sums[0] is None:
            raise NothingToTellError("it holds no training examples")
        bounds = client_bounds(seen.sums[0])
        return {"low": bounds.low, "high": bounds.high}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Bounds of another latent, not finite, or upside down."""
        return bounds_fault(answer, self.width)

    def faults(self, answers: Sequence[Arrays]) -> Sequence[str | None]:
        """Bounds that reach far beyond everyone else's."""
        return wide_faults([read_bounds(one) for one in answers])


@operation("label-counts")
@dataclass(frozen=True)
class AskLabels(AskedAlone):
    """How many records have each of several labels, so that everybody knows which are rare."""

    labels: int

    def passes(self) -> Sequence[Pass]:
        """None: labels are counted without any model."""
        return ()

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """(L,)."""
        if not held.size("train"):
            raise NothingToTellError("it holds no training examples")
        return {"labels": label_counts(held.labels("train"), held.copies("train"))}

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Counts of other labels, or of more records than there are."""
        fault = shape_fault(answer, {"labels": (self.labels,)}, "its label counts")
        if fault is None and not (answer["labels"].min() >= 0 and answer["labels"].max() <= about.examples["train"]):
            return "its label counts are of more records than it holds, or of fewer than none"
        return fault


def read_bounds(arrays: Arrays) -> Bounds:
    """Bounds from an answer."""
    return Bounds(arrays["low"].astype(np.float32), arrays["high"].astype(np.float32))


@operation("scatter")
@dataclass(frozen=True)
class AskScatter(AskedAlone):
    """S2 beyond the paper: sums from which the server finds the directions in which classes and clients differ."""

    bounds: Bounds
    components: int
    points: int
    classes: int
    """U: of how many kinds records are."""
    rarest: tuple[int, ...] = ()
    """Of several labels: their order, from which each record's kind follows."""

    @cached_property
    def base(self) -> Projector:
        """The directions in which scatter is summed, the same everywhere."""
        return fit_projector(self.bounds, max(BREADTH, self.components), max(self.points, 2 * BREADTH))

    def passes(self) -> Sequence[Pass]:
        """Of the training part."""
        return (Pass("train", by_kind(ScatterStatistic(self.base, self.classes), self.rarest)),)

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """Two symmetric matrices, a vector and two counts, in single precision."""
        if seen.sums[0] is None:
            raise NothingToTellError("it holds no training examples")
        distinct = effective_counts(held.rows("train"), None, None, held.groups("train"))[0]
        found = client_scatter(seen.sums[0], float(distinct))
        lower = np.tril_indices(len(found.first))
        return {
            "counts": np.array([found.count, found.groups], dtype=np.float64),
            "first": found.first.astype(np.float32),
            "within": found.within[lower].astype(np.float32),
            "second": found.second[lower].astype(np.float32),
        }

    def read(self, answer: Arrays) -> Scatter:
        """The scatter that an answer holds."""
        count, groups = (float(one) for one in answer["counts"])
        first = answer["first"].astype(np.float64)
        return Scatter(count, groups, first, *(_symmetric(answer[name], len(first)) for name in ("within", "second")))

    def fault(self, answer: Arrays, about: About) -> str | None:
        """Sums of another form, not finite, or of more examples than there are."""
        breadth = len(self.base)
        packed = (breadth * (breadth + 1) // 2,)
        shapes = {"counts": (2,), "first": (breadth,), "within": packed, "second": packed}
        fault = shape_fault(answer, shapes, "its scatter") or finite_fault(answer, "its scatter")
        if fault is None and not 0 < float(answer["counts"][0]) <= about.examples["train"] + 1e-3:
            return "its scatter counts more examples than it holds"
        return fault


def _symmetric(lower: Array, size: int) -> NDArray[np.float64]:
    rows, columns = np.tril_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = matrix[columns, rows] = lower
    return matrix


@operation("descriptor")
@dataclass(frozen=True)
class AskDescriptor(AskedAlone):
    """S3 and S4 for clients with labels: moments of the training part, mean of the validation part, in wire form."""

    classes: int
    """U: of how many kinds records are."""
    components: int
    points: int
    bounds: Bounds | None
    """The frozen box, from which the paper's projector follows; None under the Gaussian mechanism."""
    given: Projector | None = None
    """Another projector than the paper's."""
    full_covariance: bool = False
    privacy: Privacy | None = None
    rarest: tuple[int, ...] = ()
    """Of several labels: their order, from which each record's kind follows."""

    @cached_property
    def projector(self) -> Projector:
        """ξ, derived from the bounds by everybody alike, or as it was sent."""
        if self.given is not None:
            return self.given
        assert self.bounds is not None
        return fit_projector(self.bounds, self.components, self.points)

    @property
    def released(self) -> bool:
        """Whether the answer is one noisy release of sums."""
        return self.privacy is not None and self.privacy.mechanism == "gaussian"

    def passes(self) -> Sequence[Pass]:
        """Of the training part by class, and of the validation part as a whole."""
        privacy = self.privacy
        if self.released and privacy is not None:
            statistic = by_kind(ReleaseStatistic(self.projector, self.classes), self.rarest)
            return (
                Pass("train", statistic, chosen=units.chosen("train", privacy)),
                Pass("validation", ReleaseStatistic(self.projector, None), False, units.only_validation(privacy)),
            )
        return (
            Pass("train", by_kind(MomentStatistic(self.projector, self.classes), self.rarest)),
            Pass("validation", MomentStatistic(self.projector, None), labelled=False),
            group_pass(self.projector, "train"),
            group_pass(self.projector, "validation"),
        )

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """One client's descriptor, with the noise that privacy asks for."""
        if seen.sums[0] is None:
            raise NothingToTellError("it holds no training examples")
        if self.released:
            assert self.privacy is not None
            return to_arrays(mechanism.released(held, seen, self.projector, self.classes, self.privacy))
        exact = self._exact(held, seen)
        if self.privacy is not None:
            assert self.bounds is not None
            exact = mechanism.with_paper_noise(exact, self.bounds, self.privacy.epsilon)
        return to_arrays(exact)

    def _exact(self, held: Holding, seen: Seen) -> Descriptors:
        train, validation, reduced, reduced_validation = seen.sums
        found = moments(train, held.copies("train"))
        effective = counted(held, "train", self.classes, reduced, self.rarest)
        apart = None if validation is None else moments(validation)
        distinct = counted(held, "validation", None, reduced_validation)[0]
        made = make_descriptors([found], [effective], [apart], self.full_covariance)
        count = np.floor(np.array([distinct])).astype(np.int64)
        return replace(made, validation_count=count)

    def fault(self, answer: Arrays, about: About) -> str | None:
        """A descriptor of another form, or one that no data of these bounds can have."""
        exactly = about.whole and not self.released
        examples = about.examples["train"]
        return descriptor_fault(answer, self.bounds, self.projector, self.classes, examples, exactly)


@operation("unlabelled-descriptor")
@dataclass(frozen=True)
class AskUnlabelled(AskedAlone):
    """d′ = φ(x, 0; ψ): the label-free part, from images alone."""

    described: AskDescriptor
    """How clients with labels are described."""
    split: Split = "test"

    @property
    def privacy(self) -> Privacy | None:
        """What is promised of the answer: what is promised of the others'."""
        return self.described.privacy

    def passes(self) -> Sequence[Pass]:
        """Of the images."""
        projector = self.described.projector
        if self.described.released and self.privacy is not None:
            statistic = ReleaseStatistic(projector, None)
            return (Pass(self.split, statistic, False, units.chosen(self.split, self.privacy)),)
        return (Pass(self.split, MomentStatistic(projector, None), labelled=False), group_pass(projector, self.split))

    def answer(self, held: Holding, seen: Seen) -> dict[str, Array]:
        """The marginal moments, and how many distinct images they are worth."""
        how = self.described
        if seen.sums[0] is None:
            raise NothingToTellError(f"it holds no images in its {self.split} part")
        if how.released:
            assert how.privacy is not None
            return label_free(
                to_arrays(mechanism.released_marginal(held, seen, how.projector, how.privacy, self.split))
            )
        effective = counted(held, self.split, None, seen.sums[1])
        made = make_descriptors([moments(seen.sums[0])], [effective], full_covariance=how.full_covariance)
        if how.privacy is not None:
            assert how.bounds is not None
            made = mechanism.with_paper_noise(made, how.bounds, how.privacy.epsilon)
        return label_free(to_arrays(made))

    def fault(self, answer: Arrays, about: About) -> str | None:
        """A descriptor of another form, or one that no images of these bounds can have."""
        try:
            whole = completed(answer)
        except (KeyError, ValueError, IndexError):
            return "its descriptor lacks some of its blocks"
        exactly = not self.described.released
        how = self.described
        return descriptor_fault(whole, how.bounds, how.projector, 0, about.examples[self.split], exactly)
