"""Late clients with labels go where they belong, be it a large cluster or a small one, whatever made their labels."""

import numpy as np
from numpy.typing import NDArray
from tests.clustering.making import Population, Sample, describe_samples

from fedflux.clustering import with_centroids
from fedflux.clustering.evidence.comparison import Pool
from fedflux.clustering.settling import settled

Array = NDArray[np.float64]
CLASSES = 10


def test_a_small_cluster_keeps_its_newcomers_and_a_large_one_its_own() -> None:
    """Labels are alike everywhere; of a cluster of one client they are only known less well."""
    world, rng = Population(0, CLASSES), np.random.default_rng(0)
    move = 1.5 * np.einsum("ui,uij->uj", rng.normal(size=(CLASSES, 10)), world.mix) / np.sqrt(10)
    move[3:] = 0
    members = [world.draw(rng, 50) for _ in range(50)] + [world.draw(rng, 50, move=move)]
    clusters = with_centroids(describe_samples(members, CLASSES), np.repeat([0, 1], [50, 1]))
    for cluster in (0, 1):
        late = [world.draw(rng, 8000, move=cluster * move) for _ in range(10)]
        assert (clusters.place(describe_samples(late, CLASSES)) == cluster).all()


def test_a_label_that_nobody_holds_says_nothing() -> None:
    world, rng = Population(1, CLASSES), np.random.default_rng(1)
    shares = np.append(np.full(CLASSES - 1, 1 / (CLASSES - 1)), 0.0)
    move = 1.5 * np.einsum("ui,uij->uj", rng.normal(size=(CLASSES, 10)), world.mix) / np.sqrt(10)
    truth = np.repeat([0, 1], [50, 2])
    members = [world.draw(rng, 100, shares, kind * move) for kind in truth]
    clusters = with_centroids(describe_samples(members, CLASSES), truth)
    new = np.append(np.full(CLASSES - 1, 0.8 / (CLASSES - 1)), 0.2)
    for cluster in (0, 1):
        late = [world.draw(rng, 100, new, cluster * move) for _ in range(10)]
        assert (clusters.place(describe_samples(late, CLASSES)) == cluster).mean() >= 0.9


def copied(
    world: Population, rng: np.random.Generator, shares: NDArray[np.float64]
) -> tuple[Sample, NDArray[np.int64]]:
    """A client that holds ten images of every class, and as many copies of each as give its labels these shares."""
    x, y = world.mean.repeat(10, axis=0), np.repeat(np.arange(CLASSES), 10)
    x = x + np.einsum("ni,nij->nj", rng.normal(size=x.shape), world.mix[y])
    counts = rng.multinomial(200, shares)
    rows = np.concatenate([rng.choice(np.flatnonzero(y == u), counts[u]) for u in range(CLASSES)])
    return (x[rows], y[rows]), rows


def test_shares_that_copies_make_count_as_shares() -> None:
    """Distinct examples a class say nothing here: all that differs is how many copies of them there are."""
    world, rng = Population(2, CLASSES), np.random.default_rng(2)
    up = np.linspace(1, 5, CLASSES) / np.linspace(1, 5, CLASSES).sum()
    truth = np.arange(40) % 2
    clients, late = ([copied(world, rng, (up, up[::-1])[kind]) for kind in truth] for _ in range(2))
    told, new = (describe_samples([c for c, _ in some], CLASSES, [r for _, r in some]) for some in (clients, late))
    assert (with_centroids(told, truth).place(new) == truth).mean() >= 0.95
    wrong = truth.copy()
    wrong[:2] = truth[:2][::-1]
    np.testing.assert_array_equal(settled(Pool.of(told), wrong), truth)


def test_one_odd_image_of_a_class_does_not_outweigh_its_label() -> None:
    """A cluster that cannot compare a class must not win by that over the one whose label it is."""
    world, rng = Population(3, CLASSES), np.random.default_rng(3)
    sets = np.zeros((2, CLASSES))
    sets[0, [0, 1, 2, 3]] = sets[1, [0, 1, 2, 4]] = 0.25
    truth = np.arange(60) % 2
    members = [world.draw(rng, 40, sets[kind]) for kind in truth]
    clusters = with_centroids(describe_samples(members, CLASSES), truth)
    late = []
    for kind in truth:
        x, y = world.draw(rng, 12, np.where(np.arange(CLASSES) < 3, 1 / 3, 0.0))
        own = 3 + kind
        odd = world.mean[own] + 6 * world.mix[own].T @ np.eye(len(world.mean[own]))[0]
        late.append((np.concatenate([x, odd[None]]), np.append(y, own)))
    assert (clusters.place(describe_samples(late, CLASSES)) == truth).all()
