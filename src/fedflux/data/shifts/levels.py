"""How strong a shift is: the paper's levels 1 to 8 (tab:hetero_setting_8) for any number of classes."""

from itertools import product

from fedflux.data.shifts.appearance import Colour, Look
from fedflux.errors import FedfluxError

LEVELS = range(1, 9)
ROTATIONS: dict[int, tuple[int, ...]] = {
    0: (0, 180),
    1: (0, 120, 240),
    2: (0, 90, 180, 270),
    3: (0, 72, 144, 216, 288),
}
PRIMARIES: tuple[Colour, ...] = ("red", "blue", "green")
DIRICHLET_ALPHA = {1: 10.0, 2: 5.0, 3: 2.0, 4: 1.0, 5: 0.5, 6: 0.3, 7: 0.1, 8: 0.05}


def check_level(level: int) -> None:
    """Refuse a level outside 1 to 8."""
    if level not in LEVELS:
        raise FedfluxError(f"level {level} does not exist: choose 1 (mild) to 8 (strong)")


def feature_looks(level: int) -> tuple[Look, ...]:
    """P(X): the bank of rotations × colours; colours come in from level 5 on."""
    colours: tuple[Colour, ...] = ("original",) if level <= 4 else PRIMARIES
    return tuple(Look(rotation, colour) for rotation, colour in product(ROTATIONS[(level - 1) % 4], colours))


def kept_classes(level: int, classes: int) -> int:
    """P(Y): how many classes a client keeps; 11 − level of ten, 10·(11 − level) of CIFAR-100's hundred."""
    return max(1, round(classes * (11 - level) / 10))


def swapped_classes(level: int, classes: int, hundred_rule: bool = False) -> int:
    """P(Y|X): the size of the swapping pool; `level` of ten, and 10·level + 20 by CIFAR-100's own rule."""
    return min(classes, 10 * level + 20 if hundred_rule else round(classes * level / 10))


def augmented_classes(level: int, classes: int) -> int:
    """P(X|Y): how many classes are augmented; `level` of ten, 10·level of CIFAR-100's hundred."""
    return min(classes, round(classes * level / 10))


def class_looks(hundred_rule: bool = False) -> tuple[Look, ...]:
    """P(X|Y): what an augmented class may look like; four rotations, or CIFAR-100's 3 rotations × 3 colours."""
    if hundred_rule:
        return tuple(Look(rotation, colour) for rotation, colour in product(ROTATIONS[1], PRIMARIES))
    return tuple(Look(rotation) for rotation in ROTATIONS[2])
