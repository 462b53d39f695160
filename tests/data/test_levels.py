"""The paper's table of levels, row by row, and CIFAR-100's own settings."""

from functools import partial
from itertools import product

import pytest
from tests.data.making import error_of

from fedflux.data.shifts import levels
from fedflux.data.shifts.appearance import Look

# tab:hetero_setting_8: level, rotations, colours, #Class, #Swapped Class, #Class Under Augmentation
TABLE: list[tuple[int, list[int], list[str], int, int, int]] = [
    (1, [0, 180], ["original"], 10, 1, 1),
    (2, [0, 120, 240], ["original"], 9, 2, 2),
    (3, [0, 90, 180, 270], ["original"], 8, 3, 3),
    (4, [0, 72, 144, 216, 288], ["original"], 7, 4, 4),
    (5, [0, 180], ["red", "blue", "green"], 6, 5, 5),
    (6, [0, 120, 240], ["red", "blue", "green"], 5, 6, 6),
    (7, [0, 90, 180, 270], ["red", "blue", "green"], 4, 7, 7),
    (8, [0, 72, 144, 216, 288], ["red", "blue", "green"], 3, 8, 8),
]


def as_pairs(looks: tuple[Look, ...]) -> list[tuple[int, str]]:
    return sorted((look.rotation, str(look.colour)) for look in looks)


@pytest.mark.parametrize(("level", "rotations", "colours", "kept", "swapped", "augmented"), TABLE)
def test_the_papers_table(level, rotations, colours, kept, swapped, augmented) -> None:
    assert as_pairs(levels.feature_looks(level)) == sorted(product(rotations, colours))
    assert levels.kept_classes(level, 10) == kept
    assert levels.swapped_classes(level, 10) == swapped
    assert levels.augmented_classes(level, 10) == augmented


@pytest.mark.parametrize("level", levels.LEVELS)
def test_cifar100_has_its_own_settings(level) -> None:
    assert levels.kept_classes(level, 100) == 10 * (11 - level)
    assert levels.swapped_classes(level, 100, hundred_rule=True) == 10 * level + 20
    assert levels.augmented_classes(level, 100) == 10 * level


def test_looks_of_augmented_classes() -> None:
    assert as_pairs(levels.class_looks()) == [(r, "original") for r in (0, 90, 180, 270)]
    nine = as_pairs(levels.class_looks(hundred_rule=True))
    assert nine == sorted(product([0, 120, 240], ["red", "blue", "green"]))


@pytest.mark.parametrize("level", levels.LEVELS)
@pytest.mark.parametrize("classes", [1, 2, 3, 10, 47, 100])
def test_counts_fit_any_number_of_classes(level, classes) -> None:
    assert 1 <= levels.kept_classes(level, classes) <= classes
    for rule in (False, True):
        assert 0 <= levels.swapped_classes(level, classes, rule) <= classes
    assert 0 <= levels.augmented_classes(level, classes) <= classes


def test_a_level_is_one_to_eight() -> None:
    assert list(levels.LEVELS) == [1, 2, 3, 4, 5, 6, 7, 8]
    for level in levels.LEVELS:
        levels.check_level(level)
    for level in (0, 9, -1):
        assert f"level {level} does not exist" in error_of(partial(levels.check_level, level))


def test_every_level_has_an_alpha_and_they_fall() -> None:
    alphas = [levels.DIRICHLET_ALPHA[level] for level in levels.LEVELS]
    assert alphas == sorted(alphas, reverse=True)
    assert len(set(alphas)) == 8
