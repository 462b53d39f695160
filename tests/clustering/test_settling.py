"""Settling mends what merging got wrong, and leaves alone what is right."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from tests.clustering.making import Population, describe_samples

from fedflux.clustering import with_centroids
from fedflux.clustering.calibrated import CalibratedClustering
from fedflux.clustering.evidence.comparison import Pool
from fedflux.clustering.settling import settled
from fedflux.descriptors.descriptor import Descriptors

CLASSES, KINDS, EACH = 6, 5, 8


@pytest.fixture(scope="module")
def relabelled() -> tuple[Descriptors, np.ndarray]:
    """Forty clients of thirty examples, eight to each of five orders of the labels."""
    world, rng = Population(1, CLASSES, 6, gap=1.5), np.random.default_rng(1)
    orders = [rng.permutation(CLASSES) for _ in range(KINDS)]
    truth = np.arange(KINDS * EACH) % KINDS
    clients = []
    for kind in truth:
        x, y = world.draw(rng, 30)
        clients.append((x, orders[kind][y]))
    return describe_samples(clients, CLASSES), truth


def test_clients_in_the_wrong_cluster_move_to_their_own(relabelled: tuple[Descriptors, np.ndarray]) -> None:
    descriptors, truth = relabelled
    wrong = truth.copy()
    wrong[:4] = (truth[:4] + 1) % KINDS
    np.testing.assert_array_equal(settled(Pool.of(descriptors), wrong), truth)


def test_true_clusters_stay(relabelled: tuple[Descriptors, np.ndarray]) -> None:
    descriptors, truth = relabelled
    assert settled(Pool.of(descriptors), truth) is truth


def test_a_client_alone_stays_alone(relabelled: tuple[Descriptors, np.ndarray]) -> None:
    descriptors, _ = relabelled
    alone = np.arange(len(descriptors))
    assert settled(Pool.of(descriptors), alone) is alone


def test_clusters_that_differ_in_labels_alone_stay() -> None:
    world, rng = Population(2, CLASSES, 6), np.random.default_rng(2)
    shares = np.array([[0.4, 0.3, 0.1, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.1, 0.3, 0.4]])
    truth = np.arange(30) % 2
    descriptors = describe_samples([world.draw(rng, 60, shares[kind]) for kind in truth], CLASSES)
    assert settled(Pool.of(descriptors), truth) is truth
    wrong = truth.copy()
    wrong[0] = 1
    np.testing.assert_array_equal(settled(Pool.of(descriptors), wrong), truth)


def test_one_example_of_a_label_that_nobody_there_holds_decides() -> None:
    """Two sets of labels that share two of four: whoever holds mostly those is near both, and belongs to one."""
    world, rng = Population(7, CLASSES, 6), np.random.default_rng(7)
    shares = np.array([[1, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 1]]) / 4
    truth = np.arange(400) % 2
    clients = [world.draw(rng, 8, shares[kind]) for kind in truth]
    labels = np.array([0] + [1] * 4 + [2] * 3)
    clients[0] = world.mean[labels] + np.einsum("ni,nij->nj", rng.normal(size=(8, 6)), world.mix[labels]), labels
    descriptors = describe_samples(clients, CLASSES)
    wrong = truth.copy()
    wrong[0] = 1
    np.testing.assert_array_equal(settled(Pool.of(descriptors), wrong), truth)
    late = with_centroids(descriptors.take(np.arange(1, 400)), truth[1:])  # numbered by their first client
    assert late.place(descriptors.take([0]))[0] == late.labels[1]


def test_one_distribution_parted_by_chance_hardly_moves() -> None:
    """The level of a move is one in 400 for a given other cluster: forty clients must not run to and fro."""
    world, rng = Population(3, CLASSES, 6), np.random.default_rng(3)
    descriptors = describe_samples([world.draw(rng, 60) for _ in range(40)], CLASSES)
    parted = np.arange(40) % 2
    assert (settled(Pool.of(descriptors), parted) != parted).sum() <= 2


def test_neither_large_nor_small_true_clusters_lose_members() -> None:
    """One cluster of thirty, and thirty clients that are each one of a kind, or come in pairs."""
    for alike in (1, 2):
        for size, gap in ((40, 1.2), (100, 0.8)):
            world, rng = Population(4, 10, 10), np.random.default_rng(4)
            truth = np.concatenate([np.zeros(30, np.int64), 1 + np.arange(30) // alike])
            moves = gap * np.einsum("uij,kuj->kui", world.mix, rng.normal(size=(truth.max() + 1, 10, 10))) / 3
            clients = [world.draw(rng, size, move=moves[kind]) for kind in truth]
            found = settled(Pool.of(describe_samples(clients, 10)), truth)
            assert (found == truth).mean() > 0.96


def test_two_pairs_that_hold_each_others_partners_sort_themselves_out() -> None:
    world, rng = Population(5, CLASSES, 6), np.random.default_rng(5)
    order = rng.permutation(CLASSES)
    clients = []
    for kind in (0, 1, 0, 1):
        x, y = world.draw(rng, 200)
        clients.append((x, order[y] if kind else y))
    found = settled(Pool.of(describe_samples(clients, CLASSES)), np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(found[:, None] == found, np.tile([[1, 0], [0, 1]], (2, 2)).astype(bool))


def test_without_scatter_within_classes_everyone_stays() -> None:
    """One example a class and client: nothing says how large noise is."""
    world, rng = Population(6, CLASSES, 6), np.random.default_rng(6)
    clients = []
    for k in range(20):
        held = np.arange(3) + 3 * (k % 2)
        clients.append((world.mean[held] + rng.normal(size=(3, 6)), held))
    truth = np.arange(20) % 2
    assert settled(Pool.of(describe_samples(clients, CLASSES)), truth) is truth


def test_under_privacys_noise_everyone_stays(relabelled: tuple[Descriptors, np.ndarray]) -> None:
    descriptors, truth = relabelled
    noisy = replace(descriptors, noise=descriptors.noise + 0.1)
    wrong = (truth + 1) % KINDS
    assert settled(Pool.of(noisy), wrong) is wrong


def test_the_clusterer_returns_the_pool_of_what_it_returns(relabelled: tuple[Descriptors, np.ndarray]) -> None:
    descriptors, _ = relabelled
    found = CalibratedClustering().fit(descriptors)
    expected = Pool.of(descriptors).merge(found.labels_)
    np.testing.assert_allclose(found.pool_.mean, expected.mean, atol=1e-12)
    np.testing.assert_array_equal(found.pool_.members, expected.members)


@pytest.mark.parametrize("seed", [8, 15, 29])
def test_a_client_of_five_examples_joins_those_that_explain_it(seed: int) -> None:
    """So few examples rule hardly anybody out when two clients are compared, and yet they fit one cluster alone."""
    world, rng = Population(seed, 4, 8, gap=3.0), np.random.default_rng(seed)
    truth, clients = np.arange(12) % 3, []
    for size, kind in zip(rng.permutation([5, 6, 8, 13, 26, 51, 77, 128, 256, 448, 768, 1280]), truth, strict=True):
        x, y = world.draw(rng, size)
        clients.append((x, (y + kind) % 4))
    labels = CalibratedClustering().fit(describe_samples(clients, 4)).labels_
    assert adjusted_rand_score(labels, truth) == 1
