"""Class mixtures: densities as scipy has them, means that lean on each other as far as they should, copies, noise."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from tests.clustering.making import Population, describe_samples

from fedflux.clustering.evidence.comparison import Pool
from fedflux.clustering.placement import mixtures as module
from fedflux.clustering.placement.mixtures import PRIOR, PSEUDO, ClassMixtures
from fedflux.clustering.placement.offer import Offer

Array = NDArray[np.float64]


def pool_of(mean: Array, weight: Array, covariance: Array | None = None, noise: float = 0.0) -> Pool:
    """Clusters of one member each, with these class means (M, U, l) and effective counts (M, U)."""
    clusters, classes, length = mean.shape
    shape = np.broadcast_to(np.eye(length) if covariance is None else covariance, (clusters, classes, length, length))
    return Pool(
        np.ones(clusters),
        (weight > 0).astype(np.float64),
        weight,
        mean,
        shape.copy(),
        np.full((clusters, classes), noise),
        weight.copy(),
        np.zeros(clusters),
        weight**2,
        weight.sum(axis=1) ** 2,
    )


def some_mixtures(rng: np.random.Generator, clusters: int = 3, classes: int = 4, length: int = 5) -> ClassMixtures:
    share = rng.dirichlet(np.ones(classes), clusters)
    turn = np.tril(0.2 * rng.normal(size=(clusters, classes, length, length))) + np.eye(length)
    return ClassMixtures(
        rng.normal(size=(classes, length)).astype(np.float32),
        rng.normal(size=(classes, length, length)).astype(np.float32),
        rng.normal(size=(clusters, classes, length)).astype(np.float32),
        rng.uniform(1, 2, (clusters, classes)).astype(np.float32),
        share.astype(np.float32),
        np.abs(turn)[(..., *np.tril_indices(length))].astype(np.float16),
        np.full(clusters, 0.01, dtype=np.float32),
        np.zeros(clusters, dtype=np.float32),
        np.ones(classes, dtype=np.float32),
    )


def by_scipy(mixtures: ClassMixtures, images: Array) -> Array:
    """(n, M, U)."""
    found = np.empty((len(images), len(mixtures), len(mixtures.centre)))
    for u, whitening in enumerate(mixtures.whitening.astype(np.float64)):
        back, length = np.linalg.inv(whitening), len(whitening)
        for m in range(len(mixtures)):
            own = np.eye(length)
            if len(mixtures.shape):
                own[np.tril_indices(length)] = mixtures.shape[m, u]
            wide = back @ np.linalg.inv(own)
            mean = mixtures.centre[u] + back @ mixtures.mean[m, u]
            covariance = mixtures.spread[m, u] * wide @ wide.T
            found[:, m, u] = multivariate_normal(mean, covariance, allow_singular=True).logpdf(images)
    return found


@pytest.mark.parametrize("alike", [False, True])
def test_densities_and_likelihoods_are_scipys(alike: bool) -> None:
    rng = np.random.default_rng(0)
    mixtures, images = some_mixtures(rng), rng.normal(size=(7, 5))
    mixtures = mixtures.alike() if alike else mixtures
    expected = by_scipy(mixtures, images)
    np.testing.assert_allclose(mixtures.densities(images), expected, rtol=2e-4, atol=2e-3)
    likely = logsumexp(expected + np.log(mixtures.share), axis=2)
    np.testing.assert_allclose(mixtures.log_likelihoods(images), likely, rtol=2e-4, atol=2e-3)


def many_examples(covariance: Array) -> tuple[Array, Array, ClassMixtures]:
    """Means (M, U, l) far apart and 20,000 examples behind each, images near them, and the mixtures of all that."""
    rng, shape = np.random.default_rng(1), covariance.shape[:3]
    mean = 3 * rng.normal(size=shape)
    images = 3 * rng.normal(size=(6, shape[2]))
    return mean, images, ClassMixtures.of(pool_of(mean, np.full(shape[:2], 20_000.0), covariance))


def some_covariances(clusters: int = 3, classes: int = 4, length: int = 5) -> Array:
    root = np.random.default_rng(2).normal(size=(clusters, classes, length, length))
    return np.asarray(root @ root.swapaxes(-1, -2) + np.eye(length))


def expected_likelihoods(mean: Array, covariance: Array, images: Array) -> Array:
    clusters, classes = mean.shape[:2]
    found = [
        [multivariate_normal(mean[m, u], covariance[m, u]).logpdf(images) for u in range(classes)]
        for m in range(clusters)
    ]
    return np.asarray(logsumexp(np.array(found).transpose(2, 0, 1) - np.log(classes), axis=2))


def test_of_many_examples_they_have_the_clusters_own_moments() -> None:
    covariance = some_covariances()
    mean, images, mixtures = many_examples(covariance)
    likely = expected_likelihoods(mean, covariance, images)
    np.testing.assert_allclose(mixtures.log_likelihoods(images), likely, rtol=0.02, atol=0.02)


def test_alike_they_have_one_covariance_a_class_that_leans_on_the_average() -> None:
    covariance, count, length = some_covariances(), 20_000.0, 5
    mean, images, mixtures = many_examples(covariance)
    freedom = 3 * (count - 1)
    scatter = count * covariance.sum(axis=0)
    average = scatter.sum(axis=0) / (4 * freedom)
    widened = (freedom + PRIOR) / (freedom + PRIOR - length - 1)
    shared = widened * (scatter + PRIOR * average) / (freedom + PRIOR)
    likely = expected_likelihoods(mean, np.tile(shared, (3, 1, 1, 1)), images)
    assert mixtures.alike().nbytes < mixtures.nbytes
    np.testing.assert_allclose(mixtures.alike().log_likelihoods(images), likely, rtol=2e-3, atol=2e-2)


def test_coded_they_take_a_third_and_say_the_same() -> None:
    rng = np.random.default_rng(8)
    mixtures = some_mixtures(rng, clusters=300, classes=10, length=10).alike()
    coded, images = mixtures.coded(), rng.normal(size=(50, 10))
    shared = mixtures.centre.nbytes + mixtures.whitening.nbytes
    assert coded.nbytes - shared < 0.4 * (mixtures.nbytes - shared)
    gap = coded.log_likelihoods(images) - mixtures.log_likelihoods(images)
    apart = mixtures.log_likelihoods(images).std()
    assert np.abs(gap).max() < 0.05 * apart
    np.testing.assert_allclose(coded.only(np.array([7])).means, coded.means[7:8])


@pytest.mark.parametrize("count", [15, 2000])
def test_where_covariances_differ_no_more_than_by_chance_clusters_share_them(count: int) -> None:
    rng, world = np.random.default_rng(3), Population(3, classes=3, length=5)
    clients = [world.draw(rng, 3 * count, move=m * np.ones_like(world.mean)) for m in range(4)]
    mixtures = ClassMixtures.of(exact_pool(clients))
    turn = mixtures._turn - np.eye(5)
    assert np.abs(turn).max() < 0.1


def own_means(mixtures: ClassMixtures) -> Array:
    """(M, U, l): μ in the space of images."""
    back = np.linalg.inv(mixtures.whitening.astype(np.float64))
    return np.asarray(mixtures.centre[None] + np.einsum("uij,muj->mui", back, mixtures.means))


def test_where_clusters_do_not_differ_every_mean_is_the_class_s() -> None:
    rng, weight = np.random.default_rng(2), np.array([[5.0, 20.0], [10.0, 10.0], [40.0, 5.0], [20.0, 30.0]])
    noise = rng.normal(size=(4, 2, 6)) / np.sqrt(weight)[..., None]
    mean = np.array([1.0, -1.0])[None, :, None] + 0.3 * noise  # less than sampling alone would show
    mixtures = ClassMixtures.of(pool_of(mean, weight))
    weighted = (weight[..., None] * mean).sum(axis=0) / weight.sum(axis=0)[:, None]
    assert not mixtures.mean.any()
    np.testing.assert_allclose(own_means(mixtures), np.tile(weighted, (4, 1, 1)), atol=1e-5)
    np.testing.assert_array_equal(mixtures.spread, 1.0)


def test_where_they_differ_much_every_mean_is_its_own_and_in_between_it_is_in_between() -> None:
    rng, weight = np.random.default_rng(3), np.full((4, 2), 10.0)
    direction = rng.normal(size=(4, 2, 6))
    kept = []
    for reach in (0.5, 1.0, 50.0):
        mean = reach * direction
        found, centre = own_means(ClassMixtures.of(pool_of(mean, weight))), mean.mean(axis=0)[None]
        kept.append(float(np.linalg.norm(found - centre) / np.linalg.norm(mean - centre)))
    assert 0.1 < kept[0] < kept[1] < kept[2]
    assert kept[2] > 0.999


def test_the_fewer_examples_the_more_a_mean_leans_and_the_wider_it_is() -> None:
    rng = np.random.default_rng(4)
    weight = np.array([[2.0], [200.0], [50.0], [50.0]])
    mixtures = ClassMixtures.of(pool_of(rng.normal(size=(4, 1, 8)), weight))
    away = np.linalg.norm(mixtures.mean[:, 0], axis=1) / np.linalg.norm(
        np.einsum("ij,mj->mi", mixtures.whitening[0], pool_means(rng_seed=4) - mixtures.centre[0]), axis=1
    )
    assert away[0] < away[2] < away[1]
    assert mixtures.spread[0, 0] > mixtures.spread[2, 0] > mixtures.spread[1, 0] > 1
    assert mixtures.error[0] > mixtures.error[1]


def pool_means(rng_seed: int) -> Array:
    return np.random.default_rng(rng_seed).normal(size=(4, 1, 8))[:, 0]


def test_a_class_that_nobody_has_is_no_part_of_it() -> None:
    rng = np.random.default_rng(5)
    mean, weight = rng.normal(size=(3, 3, 4)), np.full((3, 3), 30.0)
    weight[:, 1] = 0
    mean[:, 1] = 0
    with_it = ClassMixtures.of(pool_of(mean, weight))
    without = ClassMixtures.of(pool_of(mean[:, [0, 2]], weight[:, [0, 2]]))
    images = rng.normal(size=(5, 4))
    assert not with_it.share[:, 1].any()
    np.testing.assert_allclose(with_it.log_likelihoods(images), without.log_likelihoods(images), rtol=1e-5)
    every = np.arange(3)
    np.testing.assert_allclose(with_it.misfit(images, every), without.misfit(images, every), rtol=1e-4)


def test_a_class_that_a_cluster_lacks_is_rare_there_and_looks_as_elsewhere() -> None:
    rng = np.random.default_rng(6)
    mean, weight = 2 * rng.normal(size=(3, 2, 4)), np.full((3, 2), 30.0)
    weight[0, 1], mean[0, 1] = 0, 0
    mixtures = ClassMixtures.of(pool_of(mean, weight))
    np.testing.assert_allclose(mixtures.share[0, 1], PSEUDO / (30 + 2 * PSEUDO), rtol=1e-5)
    np.testing.assert_allclose(own_means(mixtures)[0, 1], mean[1:, 1].mean(axis=0), atol=1e-4)
    assert mixtures.spread[0, 1] > mixtures.spread[1:, 1].max()  # nobody knows where it lies there
    assert np.isfinite(mixtures.log_likelihoods(mean[1])).all()


def test_known_noise_of_privacy_makes_means_lean() -> None:
    rng = np.random.default_rng(7)
    mean, weight = rng.normal(size=(5, 2, 6)), np.full((5, 2), 100.0)
    clear, noisy, drowned = (ClassMixtures.of(pool_of(mean, weight, noise=noise)) for noise in (0.0, 0.3, 100.0))
    length = [float(np.linalg.norm(one.mean)) for one in (clear, noisy, drowned)]
    assert length[0] > length[1] > 0
    assert length[2] == 0


def test_copies_count_as_what_they_are_worth() -> None:
    rng = np.random.default_rng(8)
    mixtures = some_mixtures(rng)
    mixtures = replace(mixtures, mean=np.float32(0.1) * mixtures.means).alike()
    offer, images = Offer(mixtures, np.full(3, 1 / 3, dtype=np.float32)), rng.normal(size=(6, 5))
    np.testing.assert_array_equal(offer.place(images, 6.0)[0], offer.place(np.tile(images, (3, 1)), 6.0)[0])
    assert offer.place(images, 6.0)[0].max() < offer.place(np.tile(images, (3, 1)), 18.0)[0].max()


def test_training_copies_do_not_make_a_cluster_surer() -> None:
    world, rng = Population(0, classes=3), np.random.default_rng(9)
    z, y = world.draw(rng, 60)
    other = world.draw(rng, 60, move=np.full_like(world.mean, 1.0))
    once = describe_samples([(z, y), other], 3)
    twice = describe_samples(
        [(np.tile(z, (4, 1)), np.tile(y, 4)), other], 3, rows=[np.tile(np.arange(60), 4), np.arange(60)]
    )
    plain, copied = (ClassMixtures.of(Pool.of(one)) for one in (once, twice))
    np.testing.assert_allclose(copied.error, plain.error, rtol=0.02)
    np.testing.assert_allclose(copied.spread, plain.spread, rtol=0.02)


def test_likelihoods_do_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(10)
    mixtures, images = some_mixtures(rng), rng.normal(size=(50, 5))
    whole = mixtures.log_likelihoods(images)
    monkeypatch.setattr(module, "ENTRIES", 30)
    np.testing.assert_allclose(mixtures.log_likelihoods(images), whole, rtol=1e-5)


def test_some_clusters_are_as_they_were_among_all() -> None:
    rng = np.random.default_rng(11)
    mixtures, images, some = some_mixtures(rng), rng.normal(size=(9, 5)), np.array([2, 0])
    few = mixtures.only(some)
    assert len(few) == 2
    assert few.nbytes < mixtures.nbytes
    np.testing.assert_allclose(few.log_likelihoods(images), mixtures.log_likelihoods(images)[:, some], rtol=1e-5)
    np.testing.assert_allclose(mixtures.misfit(images, some), few.misfit(images, np.arange(2)), rtol=1e-5)


def test_what_is_added_to_a_cluster_is_added_for_every_image() -> None:
    rng = np.random.default_rng(12)
    mixtures, images, offset = some_mixtures(rng), rng.normal(size=(9, 5)), np.array([0.0, -0.5, 2.0], dtype=np.float32)
    moved = replace(mixtures, offset=offset)
    added = moved.log_likelihoods(images) - mixtures.log_likelihoods(images)
    np.testing.assert_allclose(added, np.tile(offset, (9, 1)), atol=1e-5)
    one = moved.only(np.array([2])).log_likelihoods(images)
    np.testing.assert_allclose(one[:, 0], moved.log_likelihoods(images)[:, 2], rtol=1e-5)
    np.testing.assert_allclose(moved.misfit(images, np.arange(3)), mixtures.misfit(images, np.arange(3)))


def test_the_misfit_is_that_of_label_shares_fitted_by_expectation_maximisation() -> None:
    """Classes overlap, so that the shares matter."""
    rng = np.random.default_rng(13)
    mixtures, images = replace(some_mixtures(rng), spread=np.full((3, 4), 9.0, np.float32)), rng.normal(size=(40, 5))
    images[:30] = mixtures.centre[2] + 0.1 * images[:30]
    density = by_scipy(mixtures, images)
    for m in range(3):
        share = np.full(4, 0.25)
        for _ in range(module.STEPS):
            taken = share * np.exp(density[:, m])
            taken /= taken.sum(axis=1, keepdims=True)
            share = taken.mean(axis=0)
        squared = -2 * (density[:, m] - mixtures._offset[m])
        expected = (taken * squared).sum(axis=1)
        np.testing.assert_allclose(mixtures.misfit(images, np.array([m]))[0], expected, rtol=1e-3, atol=1e-3)
        assert np.abs(share - 0.25).max() > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_coordinates_changes_nothing(seed: int) -> None:
    rng, world = np.random.default_rng(seed), Population(seed, classes=3, length=4)
    clients = [world.draw(rng, 200, move=m * np.ones_like(world.mean)) for m in range(3)]
    turn, shift = rng.normal(size=(4, 4)) + 2 * np.eye(4), 5 * rng.normal(size=4)
    images = world.draw(rng, 30)[0]
    told = [exact_pool([(z @ t + s, y) for z, y in clients]) for t, s in ((np.eye(4), 0.0), (turn, shift))]
    before, after = ClassMixtures.of(told[0]), ClassMixtures.of(told[1])
    gaps = [
        one.log_likelihoods(z) - one.log_likelihoods(z)[:, :1]
        for one, z in ((before, images), (after, images @ turn + shift))
    ]
    np.testing.assert_allclose(gaps[0], gaps[1], atol=0.02)


def exact_pool(clients: list[tuple[Array, NDArray[np.int64]]]) -> Pool:
    """Without what the wire rounds."""
    by_class = [[z[y == u] for u in range(3)] for z, y in clients]
    weight = np.array([[len(z) for z in one] for one in by_class], dtype=np.float64)
    mean = np.array([[z.mean(axis=0) for z in one] for one in by_class])
    covariance = np.array([[np.cov(z.T, bias=True) for z in one] for one in by_class])
    return replace(pool_of(mean, weight), covariance=covariance)
