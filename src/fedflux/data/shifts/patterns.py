"""What distinguishes one client's distribution from another's, and how each shift draws it.

A pattern's *content* is the truth: clients with equal patterns hold one distribution, whatever their index in a bank.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.shifts import levels
from fedflux.data.shifts.appearance import PLAIN, Look, apply_look
from fedflux.errors import FedfluxError, unknown
from fedflux.streams import stream

Weighted = tuple[tuple[Look, float], ...]


@dataclass(frozen=True)
class Pattern:
    """One distribution relative to the pooled data; every field left empty means "as pooled"."""

    look: Look = PLAIN
    """P(X): how every image looks."""
    look_weights: Weighted = ()
    """Soft P(X): looks with the probability that an image takes each."""
    kept: tuple[int, ...] | None = None
    """P(Y): the classes that are kept."""
    label_weights: tuple[float, ...] | None = None
    """Soft P(Y): the probability of each class."""
    relabel: tuple[int, ...] | None = None
    """P(Y|X): the label given to each class."""
    class_looks: tuple[tuple[int, Look], ...] = ()
    """P(X|Y): how the images of some classes look."""

    def content(self) -> "Pattern":
        """The same distribution in its plainest form: what happens to classes that are dropped does not count."""
        if self.kept is None:
            return self
        looks = tuple((label, look) for label, look in self.class_looks if label in self.kept)
        relabel = self.relabel and tuple(new if old in self.kept else old for old, new in enumerate(self.relabel))
        return replace(self, class_looks=looks, relabel=relabel)

    def merge(self, other: "Pattern") -> "Pattern":
        """Both patterns at once (a mixed shift); the two never fill the same field."""
        filled = {name: value for name, value in vars(other).items() if value != getattr(_AS_POOLED, name)}
        return replace(self, **filled)

    def transform(
        self, x: NDArray[np.generic], y: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Images and labels as this client sees them; `rng` decides which image takes which look of a soft shift."""
        if self.look != PLAIN:
            x = apply_look(x, self.look)
        if self.look_weights:
            looks, weights = zip(*self.look_weights, strict=True)
            chosen = rng.choice(len(looks), size=len(x), p=np.array(weights) / sum(weights))
            x = _look_by_group(x, chosen, dict(enumerate(looks)))
        if self.class_looks:
            x = _look_by_group(x, y, dict(self.class_looks))
        return x, self.labels(y)

    def labels(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels as this client gives them; of several, each under its new name."""
        if self.relabel is None:
            return y
        new = np.array(self.relabel, dtype=np.int64)
        return new[y] if y.ndim == 1 else y[:, np.argsort(new)]


_AS_POOLED = Pattern()


def _look_by_group(x: NDArray[np.generic], group: NDArray[np.int64], looks: dict[int, Look]) -> NDArray[np.generic]:
    x = x.copy()
    for key, look in looks.items():
        members = group == key
        if look != PLAIN and members.any():
            x[members] = apply_look(x[members], look)
    return x


@dataclass(frozen=True)
class ShiftSettings:
    """Everything that decides the patterns besides the seed."""

    level: int
    classes: int
    hundred_rule: bool = False
    """CIFAR-100's own pool sizes and looks."""
    shared: bool = False
    """Draw a small bank of patterns first and let clients pick from it, so that clusters have several members."""
    bank: int = 5
    strength: float | None = None
    """0 to 1: a soft skew instead of a hard pattern (P(X) and P(Y)); 0 is no skew, near 1 almost a hard one."""

    def few(self, shift: str) -> bool:
        """Whether clients draw from a few patterns, so that several hold the same; else nearly all have their own."""
        return self.shared or (self.strength is None and set(shift_parts(shift)) <= SOFT)


Draw = Callable[[np.random.Generator], Pattern]


def _feature_shift(settings: ShiftSettings, seed: int) -> Draw:
    looks = levels.feature_looks(settings.level)
    if settings.strength is None:
        return lambda rng: Pattern(look=looks[rng.integers(len(looks))])
    strength = settings.strength
    return lambda rng: Pattern(look_weights=tuple(zip(looks, soft_weights(rng, len(looks), strength), strict=True)))


def _label_shift(settings: ShiftSettings, seed: int) -> Draw:
    if settings.strength is not None:
        strength = settings.strength
        return lambda rng: Pattern(label_weights=soft_weights(rng, settings.classes, strength))
    count = levels.kept_classes(settings.level, settings.classes)
    bank_rng = stream(seed, "label shift bank")
    bank = [_subset(bank_rng, settings.classes, count) for _ in range(settings.bank)]
    return lambda rng: Pattern(kept=bank[rng.integers(len(bank))])


def _concept_shift(settings: ShiftSettings, seed: int) -> Draw:
    count = levels.swapped_classes(settings.level, settings.classes, settings.hundred_rule)
    pool = _subset(stream(seed, "swapping pool"), settings.classes, count)

    def draw(rng: np.random.Generator) -> Pattern:
        relabel = np.arange(settings.classes)
        relabel[list(pool)] = rng.permutation(pool)
        return Pattern(relabel=tuple(relabel.tolist()))

    return draw


def _appearance_shift(settings: ShiftSettings, seed: int) -> Draw:
    count = levels.augmented_classes(settings.level, settings.classes)
    pool = _subset(stream(seed, "augmented classes"), settings.classes, count)
    looks = levels.class_looks(settings.hundred_rule)

    def draw(rng: np.random.Generator) -> Pattern:
        chosen = rng.integers(len(looks), size=len(pool)).tolist()
        return Pattern(class_looks=tuple((label, looks[which]) for label, which in zip(pool, chosen, strict=True)))

    return draw


def _no_shift(settings: ShiftSettings, seed: int) -> Draw:
    return lambda rng: Pattern()


SHIFTS: dict[str, Callable[[ShiftSettings, int], Draw]] = {
    "none": _no_shift,
    "px": _feature_shift,
    "py": _label_shift,
    "pygx": _concept_shift,
    "pxgy": _appearance_shift,
    "dirichlet": _no_shift,  # label skew by the way rows are dealt, not by a pattern
}
MIXES = ("px+py", "pxgy+py", "pygx+py")
SOFT = {"px", "py"}


def shift_parts(shift: str) -> list[str]:
    """The single shifts of a name such as `px` or `px+py`."""
    if shift not in SHIFTS and shift not in MIXES:
        raise unknown("shift", shift, [*SHIFTS, *MIXES])
    return shift.split("+")


def has_level(shift: str, strength: float | None = None, alpha: float | None = None) -> bool:
    """Whether a shift has a level at all, and is not set by other numbers."""
    parts = set(shift_parts(shift))
    by_number = (parts == {"dirichlet"} and alpha is not None) or (parts == {"py"} and strength is not None)
    return parts != {"none"} and not by_number


class PatternDraw:
    """The pattern of any client: client k's draw depends on (seed, epoch, k) alone, not on how many clients there are.

    Pickled as its settings, since the draws of the parts are plain functions.
    """

    def __init__(self, shift: str, seed: int, settings: ShiftSettings, epoch: int = 0) -> None:
        levels.check_level(settings.level)
        parts = shift_parts(shift)
        if settings.strength is not None and not 0 <= settings.strength <= 1:
            raise FedfluxError(f"strength {settings.strength} is outside 0 to 1")
        if settings.strength is not None and not set(parts) <= SOFT:
            raise FedfluxError(f"strength makes soft skews of px and py; '{shift}' has none")
        if settings.bank < 1:
            raise FedfluxError(f"a bank of {settings.bank} patterns: give 1 or more")
        self._told = (shift, seed, settings, epoch)
        self._draws: list[tuple[str, Draw]] = []
        for part in parts:
            draw = SHIFTS[part](settings, seed)
            if settings.shared and (part in ("pygx", "pxgy") or settings.strength is not None):
                draw = _from_bank([draw(stream(seed, f"bank {part}", client=i)) for i in range(settings.bank)])
            self._draws.append((f"pattern {part}", draw))

    def __call__(self, client: int) -> Pattern:
        """What client k draws, over all parts of the shift."""
        seed, epoch = self._told[1], self._told[3]
        drawn = (draw(stream(seed, purpose, round=epoch, client=client)) for purpose, draw in self._draws)
        return reduce(Pattern.merge, drawn)

    def __reduce__(self) -> tuple[Any, ...]:
        return PatternDraw, self._told


def pattern_truth(patterns: Iterable[Pattern]) -> NDArray[np.int64]:
    """The true cluster of every client: equal patterns, equal number, counted in order of appearance."""
    seen: dict[Pattern, int] = {}
    return np.fromiter((seen.setdefault(pattern.content(), len(seen)) for pattern in patterns), dtype=np.int64)


def soft_weights(rng: np.random.Generator, count: int, strength: float) -> tuple[float, ...]:
    """Softmax of Gaussian scores with inverse temperature s / (1 − s): uniform at s = 0, one-hot at s = 1."""
    scores = rng.standard_normal(count)
    scores = scores - scores.max()
    with np.errstate(over="ignore"):
        weights = np.exp(scores * (strength / (1 - strength))) if strength < 1 else (scores == 0).astype(float)
    return tuple((weights / weights.sum()).tolist())


def _from_bank(bank: list[Pattern]) -> Draw:
    return lambda rng: bank[rng.integers(len(bank))]


def _subset(rng: np.random.Generator, classes: int, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.choice(classes, size=count, replace=False).tolist()))
