"""Two classes at once: at their level, and seen where neither shows alone; what many tests pay for the choice."""

import numpy as np
from tests.clustering.making import Population, describe_samples

from fedflux.clustering.evidence.comparison import FIRST_RULES, RULES, Pool, compare
from fedflux.clustering.evidence.strongest import MOST_PAID, PAID, log_one, log_two, strongest
from fedflux.clustering.variation import UNKNOWN

ONE, OTHER = np.array([0]), np.array([1])


def test_two_uniform_p_values_of_ten_are_both_small_as_often_as_stated() -> None:
    classes = np.log(np.random.default_rng(0).uniform(size=(200_000, 10)))
    for level in (0.05, 0.01, 0.001):
        rejected = (log_two(classes) < np.log(level)).mean()
        assert 0.6 * level < rejected < 1.1 * level


def test_clients_of_one_distribution_are_told_apart_by_two_classes_no_more_often_than_stated() -> None:
    found = []
    for seed in range(200):
        rng, world = np.random.default_rng(seed), Population(seed % 5)
        pool = Pool.of(describe_samples([world.draw(rng, 400) for _ in range(2)], 10))
        found.append(compare(pool, ONE, OTHER, UNKNOWN, RULES).two[0])
    assert (np.array(found) < np.log(0.05)).mean() <= 0.08


def test_two_moved_classes_show_together_where_neither_shows_alone() -> None:
    alone, together = [], []
    for seed in range(20):
        rng, world = np.random.default_rng(seed), Population(seed)
        move = np.zeros((10, 10))
        move[:2] = 1.3 * world.mix[:2, 0]
        pool = Pool.of(describe_samples([world.draw(rng, 400), world.draw(rng, 400, move=move)], 10))
        evidence = compare(pool, ONE, OTHER, UNKNOWN, RULES)
        alone.append(log_one(evidence.classes)[0])
        together.append(evidence.two[0])
    assert np.median(together) < np.median(alone) - 2


def test_version_0_1_does_not_ask_for_two() -> None:
    rng, world = np.random.default_rng(0), Population(0)
    pool = Pool.of(describe_samples([world.draw(rng, 400) for _ in range(2)], 10))
    assert compare(pool, ONE, OTHER, UNKNOWN, FIRST_RULES).two[0] == 0


def test_a_class_alone_has_no_second() -> None:
    assert log_two(np.full((3, 1), -20.0)).tolist() == [0, 0, 0]
    assert log_two(np.array([[-20.0, 0.0, 0.0]])).tolist() == [0]


def test_each_test_that_was_made_is_paid_for_and_no_other() -> None:
    classes, quiet, silent = np.array([[-30.0, 0.0]]), np.array([-0.1]), np.zeros(1)
    assert strongest(classes, quiet, quiet, silent, silent) == PAID - 30
    assert np.isclose(strongest(classes, quiet, quiet, quiet, quiet, quiet), MOST_PAID - 30)
