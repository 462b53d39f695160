"""Placing clients: late labelled ones and unseen unlabelled ones."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2
from tests.clustering.making import Population, describe_samples, moments_of

from fedflux.clustering import with_centroids
from fedflux.clustering.placement.marginals import Marginals
from fedflux.descriptors.descriptor import make_descriptors
from fedflux.descriptors.wire import over_the_wire


def unlabelled(points):
    found = [moments_of(z, None, None) for z in points]
    return over_the_wire(make_descriptors(found, [m.count.astype(float) for m in found]))


def two_worlds(seed: int, size: int = 800, gap: float = 0.1):
    """Four clients in two clusters whose P(X) differ little in a direction of small variance."""
    rng, world = np.random.default_rng(seed), Population(seed, gap=0.5)
    total = np.cov(world.draw(rng, 20_000)[0].T)
    values, axes = np.linalg.eigh(total)
    move = np.tile(gap * 4 * np.sqrt(values[0]) * axes[:, 0], (10, 1))
    truth = np.array([0, 0, 1, 1])
    clients = [world.draw(rng, size, move=move * m) for m in truth]
    held = [world.draw(rng, size // 4, move=move * m)[0] for m in truth]
    tests = [world.draw(rng, 200, move=move * m)[0] for m in truth]
    return describe_samples(clients, 10, validation=held), truth, unlabelled(tests)


def test_unseen_clients_find_their_cluster_and_better_than_by_euclid() -> None:
    right = {True: 0.0, False: 0.0}
    for seed in range(6):
        descriptors, truth, tests = two_worlds(seed)
        clusters = with_centroids(descriptors, truth)
        for calibrated in right:
            placed, distances = clusters.place_unlabelled(tests, calibrated)
            right[calibrated] += np.mean(placed == truth) / 6
            assert distances.shape == (4, 2)
    assert right[True] >= 0.95
    assert right[True] > right[False]


def test_own_distance_is_about_chi_square() -> None:
    own = []
    for seed in range(25):
        descriptors, truth, tests = two_worlds(seed)
        _, distances = with_centroids(descriptors, truth).place_unlabelled(tests)
        own += list(distances[np.arange(4), truth])
    assert np.median(own) == pytest.approx(chi2.median(10), rel=0.35)
    assert np.mean(np.array(own) > chi2.isf(0.01, 10)) < 0.08


def test_inflation_comes_from_validation_splits_that_differ_from_training() -> None:
    descriptors, truth, _ = two_worlds(0)
    assert Marginals.of(descriptors, truth).inflation < 3
    shifted = descriptors.validation_mean + 0.5
    assert Marginals.of(replace(descriptors, validation_mean=shifted), truth).inflation > 3
    without = replace(descriptors, validation_count=np.zeros(4, np.int64))
    assert Marginals.of(without, truth).inflation == 1


def test_late_labelled_clients_join_their_cluster() -> None:
    rng, world = np.random.default_rng(0), Population(0)
    swap = np.arange(10)
    swap[[0, 1]] = [1, 0]

    def client(swapped: bool):
        z, y = world.draw(rng, 600)
        return z, swap[y] if swapped else y

    truth = np.array([0, 0, 1, 1])
    clusters = with_centroids(describe_samples([client(bool(m)) for m in truth], 10), truth)
    late = describe_samples([client(True), client(False), client(True)], 10)
    for calibrated in (True, False):
        assert clusters.place(late, calibrated).tolist() == [1, 0, 1]


def test_tiny_late_clients_go_where_they_fit_best() -> None:
    """Five examples prove nothing, but they still lean somewhere: ties must not all go to cluster 0."""
    rng, world = np.random.default_rng(0), Population(0, classes=3)
    move = np.einsum("uij,j->ui", np.swapaxes(world.mix, 1, 2), np.ones(10) / np.sqrt(10))
    truth = np.array([0, 0, 1, 1])
    clusters = with_centroids(describe_samples([world.draw(rng, 800, move=2 * m * move) for m in truth], 3), truth)
    late = describe_samples([world.draw(rng, 5, move=2 * move) for _ in range(40)], 3)
    assert clusters.place(late).mean() > 0.7


def test_a_small_cluster_is_still_found_by_its_own() -> None:
    right = 0
    for seed in range(20):
        rng, world = np.random.default_rng(seed), Population(seed % 4)
        far = np.full_like(world.mean, 4.0)
        clients = [world.draw(rng, 2000), world.draw(rng, 6, move=far)]
        clusters = with_centroids(describe_samples(clients, 10), np.array([0, 1]))
        right += clusters.place_unlabelled(unlabelled([world.draw(rng, 100, move=far)[0]]))[0][0]
    assert right >= 17
