"""Have all classes moved the same way? How often the test is wrong, and what it sees that no class shows alone."""

import numpy as np
import pytest
from scipy.stats import kstest
from tests.clustering.making import Population, describe_samples

from fedflux.clustering.change.displacement import log_displacement
from fedflux.clustering.evidence.comparison import Pool, compare

WORLD = Population(3)
ALIKE = Population(4)
ALIKE.mix[:] = ALIKE.mix[0]
"""All classes vary alike, so that one vector is as long in each."""


def pairs(rng: np.random.Generator, count: int, sizes: tuple[int, int], length: float | None = None) -> Pool:
    """Clients before, and then the same clients later, with all classes moved by so many deviations."""
    world, move = (WORLD, None) if length is None else (ALIKE, shared(length))
    before = [world.draw(rng, sizes[0]) for _ in range(count)]
    after = [world.draw(rng, sizes[1], move=move) for _ in range(count)]
    return Pool.of(describe_samples([*before, *after], 10))


def shared(length: float) -> np.ndarray:
    """Every class moves by the same vector, of this many deviations."""
    direction = np.random.default_rng(0).normal(size=10)
    return np.tile(length * direction / np.linalg.norm(direction) @ ALIKE.mix[0], (10, 1))


@pytest.mark.parametrize("sizes", [(180, 60), (400, 400)])
def test_p_values_are_uniform_where_nothing_moved(sizes: tuple[int, int]) -> None:
    count = 300
    pool = pairs(np.random.default_rng(sizes[1]), count, sizes)
    log_p = log_displacement(pool, np.arange(count), np.arange(count, 2 * count), 0.0)
    assert kstest(np.exp(log_p), "uniform").pvalue > 0.001
    assert (log_p < np.log(0.01)).mean() <= 0.01 + 0.02


def test_a_small_displacement_of_all_classes_is_seen_that_no_class_shows() -> None:
    count = 40
    pool = pairs(np.random.default_rng(1), count, (600, 600), 0.4)
    rows = np.arange(count)
    together = log_displacement(pool, rows, rows + count, 0.02) < np.log(0.001)
    alone = compare(pool, rows, rows + count).classes.min(axis=1) < np.log(0.001 / 10)
    assert together.mean() > 0.9
    assert alone.mean() < 0.5


def test_trifles_are_no_displacement_and_nothing_is_said_of_too_few() -> None:
    rng, rows = np.random.default_rng(2), np.arange(4)
    pool = pairs(rng, 4, (60_000, 60_000), 0.05)
    assert (log_displacement(pool, rows, rows + 4, 0.0) < np.log(0.001)).all()
    assert (log_displacement(pool, rows, rows + 4, 0.02) > np.log(0.001)).all()
    assert (log_displacement(pairs(rng, 4, (8, 8)), rows, rows + 4, 0.0) == 0).all()
