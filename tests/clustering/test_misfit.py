"""Who is like no cluster: other label shares are no misfit, a class that moved is one, and the level is kept."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.clustering.making import Population, describe_samples

from fedflux.clustering import with_centroids
from fedflux.clustering.placement.misfit import LEAST, Misfit, UsualMisfit, misfit_of, usual_among
from fedflux.clustering.placement.mixtures import ClassMixtures

Array = NDArray[np.float64]
LEVEL = 0.05


class Setting:
    """Two clusters of Gaussian classes, and the misfits of their members' validation parts."""

    def __init__(self, seed: int, members: int = 3, size: int = 600, held: int = 100) -> None:
        self.rng, self.world = np.random.default_rng(seed), Population(seed, classes=5, length=6, gap=4.0)
        direction = self.rng.normal(size=self.world.mean.shape)
        self.moves = [np.zeros_like(self.world.mean), 3 * direction]
        own = np.repeat([0, 1], members)
        trained = [self.world.draw(self.rng, size, move=self.moves[m]) for m in own]
        self.mixtures: ClassMixtures = with_centroids(describe_samples(trained, 5), own).mixtures
        self.seen = [self.misfit(self.draw(m, held)) for m in own]
        self.usual = UsualMisfit.of(self.seen)

    def draw(self, m: int, size: int, shares: Array | None = None, move: Array | float = 0.0) -> Array:
        return self.world.draw(self.rng, size, shares, self.moves[m] + move)[0]

    def misfit(self, images: Array) -> Misfit:
        return misfit_of(self.mixtures, images, self.mixtures.log_likelihoods(images).sum(axis=0), len(images))


def test_where_images_belong_it_is_about_the_number_of_dimensions() -> None:
    setting = Setting(0)
    images = setting.draw(0, 4000)
    away = setting.mixtures.misfit(images, np.array([0, 1])).mean(axis=1)
    assert away[0] == pytest.approx(6, rel=0.1)
    assert away[1] > 12


def test_other_label_shares_are_no_misfit_and_a_moved_class_is_one() -> None:
    setting = Setting(1)
    shares = np.array([0.0, 0.9, 0.1, 0.0, 0.0])
    moved = np.zeros_like(setting.world.mean)
    moved[1] = 6.0
    plain, skewed = (setting.misfit(setting.draw(0, 2000, given)).mean for given in (None, shares))
    other = setting.misfit(setting.draw(0, 2000, move=moved)).mean
    assert skewed == pytest.approx(plain, rel=0.1)
    assert other > 1.3 * plain
    assert setting.usual.likeness(setting.misfit(setting.draw(0, 200, shares))) > LEVEL
    assert setting.usual.likeness(setting.misfit(setting.draw(0, 200, move=moved))) < LEVEL


def test_the_best_of_the_likeliest_clusters_counts() -> None:
    setting = Setting(2)
    images = setting.draw(1, 50)
    away = setting.mixtures.misfit(images, np.array([0, 1])).mean(axis=1)
    assert misfit_of(setting.mixtures, images, np.array([0.0, -1.0]), 50).mean == pytest.approx(away.min())


def test_copies_leave_the_images_that_they_are_worth() -> None:
    setting = Setting(3)
    images = setting.draw(0, 50)
    likely = setting.mixtures.log_likelihoods(images).mean(axis=0)
    once, thrice = (misfit_of(setting.mixtures, z, likely, 50) for z in (images, np.tile(images, (3, 1))))
    assert thrice.count == 50
    assert thrice.mean == pytest.approx(once.mean, rel=1e-5)


@pytest.mark.parametrize("count", [20, 200])
def test_those_that_belong_are_rarely_called_novel(count: int) -> None:
    flags = []
    for seed in range(25):
        setting = Setting(seed)
        found = [setting.usual.likeness(setting.misfit(setting.draw(k % 2, count))) for k in range(20)]
        flags += [score < LEVEL for score in found]
    assert np.mean(flags) <= LEVEL + 0.02  # 500 draws


@pytest.mark.parametrize(("between", "usual"), [(0.0, 100), (1.0, 100), (1.0, 20)])
def test_the_level_holds_where_clients_really_differ(between: float, usual: int) -> None:
    """Misfits by their model: μ + ω·client + σ/√n, seven members, unseen clients of other sizes."""
    rng, sigma, flags = np.random.default_rng(5), 4.0, []

    def client(count: int) -> Misfit:
        mean = 6 + np.sqrt(between) * rng.normal() + sigma * rng.normal() / np.sqrt(count)
        return Misfit(mean, sigma**2 * rng.chisquare(count - 1) / count, count)

    for _ in range(400):
        usual_misfit = UsualMisfit.of([client(usual) for _ in range(7)])
        flags += [usual_misfit.likeness(client(n)) < LEVEL for n in (10, 100, 1000)]
    assert 0.005 < np.mean(flags) <= 0.075


def test_it_learns_both_variances() -> None:
    rng, sigma, omega = np.random.default_rng(6), 5.0, 2.0
    seen = []
    for count in rng.integers(20, 200, 3000):
        mean = 10 + omega * rng.normal() + sigma * rng.normal() / np.sqrt(count)
        seen.append(Misfit(mean, sigma**2 * rng.chisquare(count - 1) / count, float(count)))
    found = UsualMisfit.of(seen)
    assert found.mean == pytest.approx(10, abs=0.2)
    assert found.within == pytest.approx(sigma**2, rel=0.1)
    assert found.between == pytest.approx(omega**2, rel=0.1)


def test_the_farther_the_less_like_and_more_images_say_it_clearer() -> None:
    usual = UsualMisfit(10.0, 25.0, 0.1, 8.0, 100.0)
    by_mean = [usual.likeness(Misfit(mean, 25.0, 50)) for mean in (5.0, 10.0, 11.0, 13.0)]
    assert all(np.diff(by_mean) < 0)
    assert by_mean[1] == pytest.approx(0.5)
    by_count = [usual.likeness(Misfit(12.0, 25.0, count)) for count in (5, 50, 500)]
    assert all(np.diff(by_count) < 0)


def test_too_few_members_say_nothing() -> None:
    seen = [Misfit(10.0, 4.0, 50)] * (LEAST - 1)
    few = UsualMisfit.of([*seen, Misfit(10.0, 0.0, 1.0)])  # one image tells no variance
    assert not few.calibrated
    assert few.likeness(Misfit(1e6, 1.0, 1000)) == 1
    assert UsualMisfit.of([*seen, seen[0]]).calibrated


def test_members_of_clusters_of_one_do_not_say_what_is_usual() -> None:
    seen = [replace(Misfit(10.0, 4.0, 50), mean=mean) for mean in (10.0, 10.5, 9.5, 50.0)]
    own = np.array([0, 0, 0, 1])
    found = usual_among(np.array([False, True]), own, seen)
    assert found.members == 3
    assert found.mean == pytest.approx(10)
