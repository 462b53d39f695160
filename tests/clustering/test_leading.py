"""The directions in which classes differ most: found, tested at their level, and sharper for exchanged labels."""

import numpy as np
import pytest
from tests.clustering.making import Population, Sample, describe_samples

from fedflux.clustering.evidence.comparison import RULES, Pool, compare
from fedflux.clustering.evidence.leading import leading_axes
from fedflux.clustering.variation import UNKNOWN

PLANE = np.eye(10)[:2]


class Flat(Population):
    """Ten classes whose means lie in a plane, with unit scatter in ten directions."""

    def __init__(self, seed: int, reach: float = 1.0) -> None:
        super().__init__(seed)
        self.mean = reach * np.random.default_rng(seed).normal(size=(10, 2)) @ PLANE
        self.mix = np.broadcast_to(np.eye(10), (10, 10, 10)).copy()


def exchanged(sample: Sample) -> Sample:
    z, y = sample
    return z, np.where(y < 6, (y + 1) % 6, y)


def test_the_directions_are_those_that_class_means_span() -> None:
    rng, world = np.random.default_rng(0), Flat(0)
    axes = leading_axes(Pool.of(describe_samples([world.draw(rng, 2000) for _ in range(4)], 10)))
    assert axes.shape == (10, 2)
    unit = np.linalg.qr(axes)[0]
    assert np.linalg.norm(PLANE @ unit) ** 2 == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("size", [100, 400, 2000])
def test_the_null_is_rejected_as_often_as_stated(size: int) -> None:
    found = []
    for seed in range(200):
        rng, world = np.random.default_rng(seed), Population(seed % 5)
        pool = Pool.of(describe_samples([world.draw(rng, size) for _ in range(2)], 10))
        found.append(compare(pool, np.array([0]), np.array([1]), UNKNOWN, RULES).leading[0])
    rejected = np.array(found) < np.log(0.05)
    assert rejected.mean() <= 0.08
    assert (np.array(found) < np.log(0.5)).mean() > 0.2


def test_exchanged_labels_show_there_first() -> None:
    leading, joint = [], []
    for seed in range(10):
        rng, world = np.random.default_rng(seed), Flat(seed, 0.35)
        clients = [world.draw(rng, 250), exchanged(world.draw(rng, 250)), *(world.draw(rng, 250) for _ in range(8))]
        evidence = compare(Pool.of(describe_samples(clients, 10)), np.array([0]), np.array([1]), UNKNOWN, RULES)
        leading.append(evidence.leading[0])
        joint.append(evidence.joint[0])
    assert np.median(leading) < np.log(0.001)
    assert np.median(joint) > np.log(0.01)


def test_latents_of_two_numbers_have_no_other_directions() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(200, 2)), rng.integers(0, 3, 200)) for _ in range(2)]
    evidence = compare(Pool.of(describe_samples(clients, 3)), np.array([0]), np.array([1]), UNKNOWN, RULES)
    assert evidence.leading[0] == 0


def test_two_classes_have_one_direction() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(300, 6)), rng.integers(0, 2, 300)) for _ in range(3)]
    assert leading_axes(Pool.of(describe_samples(clients, 2))).shape == (6, 1)
