"""Private descriptors: the sensitivity holds, the budget is kept, and the noise is part of every test."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import kstest, norm

from fedflux.clustering import CalibratedClustering, with_centroids
from fedflux.clustering.evidence.label_counts import log_labels, share_noise
from fedflux.clustering.placement.marginals import Marginals
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.privacy.accounting import Privacy, release_sigma, spent
from fedflux.descriptors.privacy.release import SENSITIVITY, ReleaseStatistic, directions, read_release, shrunk
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.wire import from_arrays, to_arrays
from fedflux.errors import FedfluxError

LENGTH, CLASSES = 4, 3
PLAIN = Projector(np.zeros(LENGTH), np.eye(LENGTH))


def vector(z: NDArray[np.float64], y: NDArray[np.int64], classes: int = CLASSES) -> NDArray[np.float64]:
    """What is released of these records, before noise."""
    projector = Projector(np.zeros(z.shape[1]), np.eye(z.shape[1]))
    return ReleaseStatistic(projector, classes).add(None, torch.tensor(z), torch.tensor(y)).vector(labelled=True)


def private(
    clients: list[tuple[NDArray[np.float64], NDArray[np.int64]]], classes: int, sigma: float, rng: np.random.Generator
) -> Descriptors:
    """Descriptors of labelled clients with noise from a generator that a test can repeat."""
    found = []
    for z, y in clients:
        exact = vector(z, y, classes)
        found.append(read_release(exact + sigma * rng.normal(size=len(exact)), len(y), classes, z.shape[1], sigma))
    length = clients[0][0].shape[1]
    return Descriptors(
        mean=np.stack([one.mean for one in found]),
        spread=np.stack([one.spread for one in found]),
        correlation=np.stack([one.correlation for one in found]),
        count=np.stack([one.count for one in found]).astype(np.int64),
        effective=np.stack([one.effective for one in found]),
        noise=np.stack([one.noise for one in found]),
        validation_mean=np.zeros((len(found), length)),
        validation_count=np.zeros(len(found), dtype=np.int64),
        count_noise=np.array([one.count_noise for one in found]),
        validation_noise=np.zeros(len(found)),
    )


class World:
    """Classes whose latents point to different sides, with correlated coordinates."""

    def __init__(self, seed: int, classes: int = 5, length: int = 6) -> None:
        rng = np.random.default_rng(seed)
        self.centre = 1.5 * rng.normal(size=(classes, length))
        self.mix = rng.normal(size=(length, length)) + np.eye(length)
        self.classes = classes

    def draw(
        self,
        rng: np.random.Generator,
        size: int,
        move: float = 0.0,
        shares: NDArray[np.float64] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        y = rng.choice(self.classes, size=size, p=shares)
        return self.centre[y] + move + rng.normal(size=(size, len(self.mix))) @ self.mix, y


numbers = st.lists(st.floats(-1e6, 1e6), min_size=LENGTH, max_size=LENGTH)


@settings(deadline=None, max_examples=200)
@given(numbers, numbers, st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1))
@example([0.0] * (LENGTH - 1) + [1.0], [0.0] * (LENGTH - 1) + [1.65e-161], 0, 1)  # whose square is hardly a number
@example([1e300] * LENGTH, [-5e-324] * LENGTH, 0, 1)
def test_replacing_one_record_moves_the_sums_by_no_more_than_the_sensitivity(
    a: list[float], b: list[float], u: int, v: int
) -> None:
    moved = vector(np.array([a]), np.array([u])) - vector(np.array([b]), np.array([v]))
    assert np.linalg.norm(moved) <= SENSITIVITY


def test_the_sensitivity_is_reached_both_ways() -> None:
    one = np.array([[0.6, 0.0, 0.8, 0.0]])
    same = vector(one, np.array([1])) - vector(-one, np.array([1]))
    assert np.linalg.norm(same) == pytest.approx(2.0)
    turned = vector(np.array([[1.0, 0, 0, 0]]), np.array([1])) - vector(np.array([[0, 1.0, 0, 0]]), np.array([2]))
    assert np.linalg.norm(turned) == pytest.approx(2.0)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 1e200, 0.0])
def test_a_wild_latent_stays_within_the_norm(wild: float) -> None:
    z = directions(torch.tensor([[wild, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, wild]], dtype=torch.float64))
    assert torch.isfinite(z).all()
    assert (z.norm(dim=1) <= 1 + 1e-6).all()


def test_sums_are_the_same_bits_in_any_order() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(999, LENGTH)), rng.integers(0, CLASSES, 999)
    order = rng.permutation(999)
    assert (vector(z, y) == vector(z[order], y[order])).all()
    statistic = ReleaseStatistic(PLAIN, CLASSES)
    halves = statistic.add(None, torch.tensor(z[:400]), torch.tensor(y[:400]))
    halves = statistic.add(halves, torch.tensor(z[400:]), torch.tensor(y[400:]))
    assert (halves.vector(labelled=True) == vector(z, y)).all()


def analytic_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The least deviation that any accounting can justify (Balle and Wang, 2018)."""

    def excess(sigma: float) -> float:
        half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
        return float(norm.cdf(half - shift) - np.exp(epsilon) * norm.cdf(-half - shift) - delta)

    return float(brentq(excess, 1e-2, 1e5))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_noise_spends_the_budget_and_not_more(epsilon: float) -> None:
    pytest.importorskip("opendp")
    sigma = release_sigma(epsilon, 1e-5, 2.0)
    assert epsilon * (1 - 1e-6) <= spent(sigma, 2.0, 1e-5) <= epsilon
    least = analytic_sigma(epsilon, 1e-5, 2.0)
    assert least <= sigma <= 1.2 * least


def test_releases_of_the_same_records_compose_and_of_others_do_not() -> None:
    pytest.importorskip("opendp")
    once = release_sigma(1.0, 1e-5, 2.0)
    assert release_sigma(1.0, 1e-5, 2.0, releases=4) == pytest.approx(2 * once, rel=1e-6)
    assert release_sigma(1.0, 1e-5, 2.0, releases=4, disjoint=True) == once
    assert spent(once, 2.0, 1e-5, releases=4) > 2
    assert spent(once, 2.0, 1e-5, releases=4, disjoint=True) == spent(once, 2.0, 1e-5)


@pytest.mark.parametrize("told", [{"epsilon": 0.0}, {"epsilon": float("inf")}, {"delta": 0.0}, {"releases": 0}])
def test_a_promise_that_cannot_be_kept_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(FedfluxError, match=r"give|outside"):
        Privacy(**{"mechanism": "gaussian", "epsilon": 1.0, **told})


def test_without_noise_the_release_gives_the_moments_of_the_directions() -> None:
    world, rng = World(1), np.random.default_rng(1)
    z, y = world.draw(rng, 20_000)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    told = private([(z, y)], world.classes, 1e-6, rng)
    for u in range(world.classes):
        np.testing.assert_allclose(told.mean[0, 1 + u], unit[y == u].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(told.deviations()[0, 1 + u], unit[y == u].std(axis=0), rtol=0.01)
        np.testing.assert_allclose(told.correlation[0, u], np.corrcoef(unit[y == u].T), atol=0.02)
    np.testing.assert_allclose(told.mean[0, 0], unit.mean(axis=0), atol=1e-6)
    assert told.count[0].tolist() == [20_000, *np.bincount(y).tolist()]


def test_means_scatter_as_their_noise_says() -> None:
    world, rng = World(2), np.random.default_rng(2)
    client = world.draw(rng, 2000)
    told = [private([client], world.classes, 8.0, rng) for _ in range(300)]
    exact = private([client], world.classes, 1e-6, rng)
    gaps = np.stack([one.mean[0] - exact.mean[0] for one in told])
    counts = np.stack([one.count[0, 1:] - exact.count[0, 1:] for one in told])
    noise = np.stack([one.noise[0] for one in told]).mean(axis=0)
    assert (gaps[:, 0] ** 2).mean() == pytest.approx(noise[0], rel=0.1)
    along = told[0].count_noise[0] / exact.count[0, 1:] ** 2 * (exact.mean[0, 1:] ** 2).mean(axis=1)
    assert (gaps[:, 1:] ** 2).mean(axis=(0, 2)) == pytest.approx(noise[1:] + along, rel=0.2)
    assert (counts**2).mean() == pytest.approx(told[0].count_noise[0], rel=0.1)


def test_classes_lost_in_the_noise_are_missing_and_shapes_stay_possible() -> None:
    world, rng = World(3), np.random.default_rng(3)
    shares = np.array([0.5, 0.5, 0, 0, 0])
    told = private([world.draw(rng, 1000, shares=shares) for _ in range(20)], world.classes, 8.0, rng)
    assert (told.effective[:, 1:3] > 0).all()
    assert (told.effective[:, 3:] == 0).mean() > 0.99
    assert (told.count[:, 3:] < 0).any()
    hopeless = private([world.draw(rng, 100) for _ in range(20)], world.classes, 800.0, rng)
    for one in (told, hopeless):
        arrived = from_arrays(to_arrays(one))
        np.testing.assert_array_equal(arrived.count, one.count)
        np.testing.assert_allclose(arrived.mean, one.mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(arrived.noise, one.noise, rtol=1e-6)
        assert np.linalg.eigvalsh(arrived.marginal_covariances()).min() > 0
        assert np.isfinite(arrived.vectors()).all()
    assert (CalibratedClustering().fit(hopeless).labels_ == 0).all()


def test_a_shape_that_noise_explains_is_forgotten() -> None:
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(6, 6))
    round_one = shrunk(np.eye(6) / 6 + 0.01 * (noise + noise.T), np.eye(6) / 6, np.array([4e-4, 2e-4]))
    np.testing.assert_allclose(round_one, np.eye(6) / 6, atol=0.02)
    long_one = np.diag([0.5, 0.3, 0.1, 0.05, 0.03, 0.02])
    np.testing.assert_allclose(shrunk(long_one, np.eye(6) / 6, np.zeros(2)), long_one, atol=0.01)


@pytest.mark.parametrize("sigma", [0.8, 8.0, 80.0])
def test_a_federation_without_shift_is_split_no_more_often_than_the_level(sigma: float) -> None:
    rng = np.random.default_rng(5)
    split = 0
    for trial in range(40):
        world = World(trial)
        told = private([world.draw(rng, 600) for _ in range(5)], world.classes, sigma, rng)
        split += CalibratedClustering(alpha=0.05).fit(told).labels_.max() > 0
    assert split <= 6  # 2 expected at most; more than 6 of 40 has a chance of half a percent


def test_power_fades_as_the_noise_grows() -> None:
    rng, right = np.random.default_rng(6), []
    for sigma in (0.8, 8.0, 800.0):
        found = []
        for trial in range(10):
            world = World(trial)
            told = private([world.draw(rng, 600, move=0.4 * (k % 2)) for k in range(6)], world.classes, sigma, rng)
            labels = CalibratedClustering().fit(told).labels_
            same = np.arange(6) % 2
            pairs = np.triu_indices(6, 1)
            found.append(((labels[:, None] == labels) == (same[:, None] == same))[pairs].mean())
        right.append(float(np.mean(found)))
    assert right[0] > 0.95
    assert right[0] >= right[1] >= right[2]
    assert right[2] == pytest.approx(0.4)  # all in one: the 6 pairs of 15 that belong together


@pytest.mark.parametrize("shares", [[0.4, 0.3, 0.2, 0.1], [0.7, 0.3]])
def test_noisy_label_counts_keep_their_level_and_see_a_skew(shares: list[float]) -> None:
    rng = np.random.default_rng(7)
    sigma, classes = 10.0, len(shares)
    empty = np.zeros_like(vector(np.ones((1, 2)), np.zeros(1, dtype=np.int64), classes))
    left = read_release(empty, 500, classes, 2, sigma).count_noise

    def noisy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = rng.multinomial(500, probabilities, size=400) + sqrt(2) * sigma * rng.normal(size=(400, classes))
        return np.asarray(counts - (counts.sum(axis=1, keepdims=True) - 500) / classes)

    usual = np.array(shares)
    blur = 2 * share_noise(noisy(usual), np.full(400, left))
    null = np.exp(log_labels(noisy(usual), noisy(usual), blur, 0.0))
    assert kstest(null, "uniform").pvalue > 0.01
    skewed = log_labels(noisy(usual), noisy(usual[::-1]), blur, 0.0)
    assert (skewed < np.log(1e-4)).all()


def test_an_unlabelled_client_is_as_far_as_its_noise_allows() -> None:
    world, rng = World(8), np.random.default_rng(8)
    sigma = 8.0
    told = private([world.draw(rng, 2000) for _ in range(4)], world.classes, sigma, rng)
    marginals = Marginals.of(told, np.zeros(4, dtype=np.int64))
    distances = []
    for _ in range(200):
        z = world.draw(rng, 300)[0]
        mean = (z / np.linalg.norm(z, axis=1, keepdims=True)).mean(axis=0) + sigma / 300 * rng.normal(size=6)
        distances.append(marginals.distances(mean[None], np.array([300]), np.array([(sigma / 300) ** 2]))[0, 0])
    assert np.mean(distances) == pytest.approx(6, rel=0.15)
    blind = marginals.distances(mean[None], np.array([300]))[0, 0]
    assert blind > distances[-1]


def test_centroids_and_reasons_of_private_clusters_are_finite() -> None:
    world, rng = World(9), np.random.default_rng(9)
    told = private([world.draw(rng, 600, move=k % 2) for k in range(4)], world.classes, 8.0, rng)
    clusters = with_centroids(told, np.array([0, 1, 0, 1]))
    assert np.isfinite(clusters.centroids).all()
    assert (clusters.place(told) == [0, 1, 0, 1]).all()


@pytest.mark.parametrize("epsilon", [700.0, 1e3, 1e4, 1e6])
def test_budgets_that_hide_hardly_anything_are_accounted_for(epsilon: float) -> None:
    """OpenDP's arithmetic ends near ε = 70,000: no more is spent than that."""
    cost = spent(release_sigma(epsilon, 1e-5, 2.0), 2.0, 1e-5)
    assert min(epsilon, 5e4) * (1 - 1e-6) <= cost <= epsilon
