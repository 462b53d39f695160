"""Who is called novel: rarely anyone who belongs, nearly everyone who does not, nobody for a trifle."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.clustering.making import Population, Sample, describe_samples, moments_of

from fedflux.clustering import with_centroids
from fedflux.clustering.placement.novelty import FLOOR, LEVEL, judge
from fedflux.descriptors.descriptor import Descriptors, make_descriptors
from fedflux.descriptors.wire import over_the_wire


def unlabelled(points: Sequence[NDArray[np.float64]]) -> Descriptors:
    found = [moments_of(z, None, None) for z in points]
    return over_the_wire(make_descriptors(found, [m.count.astype(float) for m in found]))


def along(world: Population, rng: np.random.Generator, distance: float) -> NDArray[np.float64]:
    """A move of all classes by this Mahalanobis distance of the marginal, in a random direction."""
    values, axes = np.linalg.eigh(np.cov(world.draw(rng, 5000)[0].T))
    direction = rng.normal(size=len(values))
    direction *= distance / np.linalg.norm(direction)
    return np.tile(axes @ (np.sqrt(values) * direction), (world.classes, 1))


class Setting:
    """Two clusters, some clients each, and what unseen clients are drawn from."""

    def __init__(self, seed: int, members: int = 3, size: int = 400, uneven: float = 0.0, learnt: float = 0.0) -> None:
        self.rng, self.world = np.random.default_rng(seed), Population(seed)
        self.moves = [np.zeros_like(self.world.mean), along(self.world, self.rng, 1.5)]
        self.uneven = uneven
        self.labels = np.repeat([0, 1], members)
        trained, held = [], []
        for m in self.labels:
            shares = self.shares()
            z, y = self.draw(m, size, shares)
            trained.append((z + learnt * self.world.mean[y], y))  # as a model that knows its training data draws apart
            held.append(self.draw(m, size // 4, shares)[0])
        self.descriptors = describe_samples(trained, 10, validation=held)
        self.clusters = with_centroids(self.descriptors, self.labels)

    def shares(self) -> NDArray[np.float64] | None:
        return self.rng.dirichlet(np.full(10, 1 / self.uneven)) if self.uneven else None

    def draw(self, m: int, size: int, shares: NDArray[np.float64] | None, apart: float = 0.0) -> Sample:
        extra = along(self.world, self.rng, apart) if apart else 0.0
        return self.world.draw(self.rng, size, shares, self.moves[m] + extra)

    def unseen(self, count: int, sizes: tuple[int, int] = (50, 1000), apart: float = 0.0) -> Descriptors:
        drawn = self.rng.integers(*sizes, size=count)
        return unlabelled([self.draw(k % 2, int(n), self.shares(), apart)[0] for k, n in enumerate(drawn)])


@pytest.mark.parametrize("changed", [{}, {"members": 1}, {"size": 100}, {"uneven": 0.2}, {"learnt": 0.05}], ids=str)
def test_clients_that_belong_are_rarely_called_novel(changed: dict[str, float]) -> None:
    flags = []
    for seed in range(25):
        setting = Setting(seed, **changed)  # type: ignore[arg-type]
        flags += setting.clusters.judge(setting.unseen(12)).novel.tolist()
    assert np.mean(flags) <= LEVEL


def test_clients_of_another_distribution_are_called_novel() -> None:
    flags = []
    for seed in range(10):
        setting = Setting(seed)
        flags += setting.clusters.judge(setting.unseen(6, (100, 1000), apart=1.0)).novel.tolist()
    assert np.mean(flags) >= 0.95


def test_the_level_decides_and_the_score_does_not_move() -> None:
    setting = Setting(1)
    unseen = setting.unseen(40, (50, 200), apart=0.4)
    strict, lax = (setting.clusters.judge(unseen, level) for level in (0.001, 0.5))
    np.testing.assert_array_equal(strict.score, lax.score)
    np.testing.assert_array_equal(strict.novel, strict.score < 0.001)
    assert strict.novel.sum() < lax.novel.sum()


def test_a_trifle_is_not_novel_however_many_images_show_it() -> None:
    setting = Setting(2, size=40_000)
    trifle = setting.unseen(8, (40_000, 40_001), apart=0.7 * FLOOR)
    real = setting.unseen(8, (40_000, 40_001), apart=2.5 * FLOOR)
    assert setting.clusters.judge(trifle).novel.sum() == 0
    assert setting.clusters.judge(real).novel.all()


def test_confidence_is_how_often_the_placement_is_right() -> None:
    """Clusters that lie close together, small clients: some placements fail, and the confidence says how many."""
    right, sure = [], []
    for seed in range(40):
        setting = Setting(seed)
        setting.moves[1] = along(setting.world, setting.rng, 0.35)
        trained = [setting.draw(m, 1500, None) for m in setting.labels]
        held = [setting.draw(m, 300, None)[0] for m in setting.labels]
        clusters = with_centroids(describe_samples(trained, 10, validation=held), setting.labels)
        found = clusters.judge(setting.unseen(20, (20, 60)))
        right += (found.cluster == np.arange(20) % 2).tolist()
        sure += found.confidence.tolist()
    assert 0.6 < np.mean(right) < 0.95
    assert np.mean(sure) == pytest.approx(np.mean(right), abs=0.05)
    halves = np.array(sure) > np.median(sure)
    assert np.mean(np.array(right)[halves]) > np.mean(np.array(right)[~halves]) + 0.05


def test_clusters_with_one_distribution_share_the_confidence() -> None:
    """P(Y|X) alone: the images say nothing about the cluster, and nobody is new."""
    setting = Setting(3)
    setting.moves[1] = setting.moves[0]
    clients = [setting.draw(0, 4000, None) for _ in range(2)]
    twice = [clients[0], clients[1], *((z, (y + 1) % 10) for z, y in clients)]
    held = [setting.draw(0, 800, None)[0] for _ in range(2)] * 2
    clusters = with_centroids(describe_samples(twice, 10, validation=held), np.array([0, 0, 1, 1]))
    found = clusters.judge(setting.unseen(10))
    np.testing.assert_allclose(found.confidence, 0.5, atol=0.02)
    assert not found.novel.any()


def test_privacy_noise_that_is_known_makes_nobody_novel() -> None:
    setting = Setting(4)
    unseen = setting.unseen(60)
    variance = 0.3 * float(np.trace(setting.clusters.marginals.covariance[0])) / 10
    shaken = unseen.mean + np.sqrt(variance) * setting.rng.normal(size=unseen.mean.shape)
    loud = replace(unseen, mean=shaken)
    assert setting.clusters.judge(loud).novel.mean() > 0.5
    told = replace(loud, noise=np.full_like(loud.noise, variance))
    assert setting.clusters.judge(told).novel.mean() <= LEVEL


def test_members_that_differ_under_noise_make_nobody_novel() -> None:
    """What exceeds sampling and noise is learned from noisy members, and allowed on top of both."""
    called = []
    for seed in range(8):
        setting = Setting(seed, uneven=1.0)
        scale = float(np.trace(setting.clusters.marginals.covariance[0])) / 10
        told, unseen = setting.descriptors, setting.unseen(60, (400, 1000))
        variance = 0.006 * scale

        def shaken(mean: NDArray[np.float64], variance: float = variance, rng: Any = setting.rng) -> Any:
            return mean + np.sqrt(variance) * rng.normal(size=mean.shape)

        noisy = replace(
            told,
            mean=shaken(told.mean),
            noise=np.full_like(told.noise, variance),
            validation_mean=shaken(told.validation_mean),
            validation_noise=np.full(len(told), variance),
        )
        clusters = with_centroids(noisy, setting.labels)
        heard = replace(unseen, mean=shaken(unseen.mean), noise=np.full_like(unseen.noise, variance))
        called.append(clusters.judge(heard).novel.mean())
    assert np.mean(called) <= 1.5 * LEVEL


def test_placement_is_the_same_as_without_the_judgement() -> None:
    setting = Setting(5)
    unseen = setting.unseen(10)
    for calibrated in (True, False):
        nearest, distances = setting.clusters.place_unlabelled(unseen, calibrated)
        found = setting.clusters.judge(unseen, calibrated=calibrated)
        np.testing.assert_array_equal(found.cluster, nearest)
        np.testing.assert_array_equal(found.distances, distances)
    bare = judge(setting.clusters.marginals, setting.clusters.null, unseen)
    np.testing.assert_array_equal(bare.cluster, setting.clusters.marginals.nearest(unseen)[0])


def test_no_variation_still_gives_numbers() -> None:
    z = np.ones((20, 10))
    flat = describe_samples([(z, np.zeros(20, np.int64))], 1, validation=[z[:5]])
    found = with_centroids(flat, np.zeros(1, np.int64)).judge(unlabelled([z, z + 1]))
    assert np.isfinite(found.score).all()
    assert found.novel.tolist() == [False, True]
    np.testing.assert_array_equal(found.confidence, 1.0)


def test_without_any_validation_part_nobody_is_called_novel() -> None:
    """Means of trained images are no yardstick for others: better to say nothing than to call everyone novel."""
    setting = Setting(11, learnt=0.3)
    alone = replace(
        setting.descriptors,
        validation_mean=np.zeros_like(setting.descriptors.validation_mean),
        validation_count=np.zeros_like(setting.descriptors.validation_count),
    )
    clusters, strangers = with_centroids(alone, setting.labels), setting.unseen(20, apart=2.0)
    assert setting.clusters.judge(strangers).novel.all()
    found = clusters.judge(strangers)
    assert not found.novel.any()
    assert (found.score == 1).all()
