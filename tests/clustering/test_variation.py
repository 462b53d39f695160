"""Natural variation between clients: estimated, granted, and not mistaken for clusters."""

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from tests.clustering.making import Population, describe_samples, many_descriptors

from fedflux.clustering import CalibratedClustering
from fedflux.clustering.evidence.comparison import Pool
from fedflux.clustering.variation import MOST, UNKNOWN
from fedflux.clustering.variation.clumps import in_clumps
from fedflux.clustering.variation.spreads import relative_spreads
from fedflux.clustering.why import explain
from fedflux.descriptors.descriptor import Descriptors


def varying(seed: int, truth: NDArray[np.int64], variation: float, reach: float = 0.0, size: int = 5000) -> Descriptors:
    """Clients that vary in every class; groups lie `reach` deviations from the first in three of them."""
    rng, world = np.random.default_rng(seed), Population(seed)
    white = variation * rng.normal(size=(len(truth), *world.mean.shape))
    direction = rng.normal(size=(int(truth.max()) + 1, 3, 10))
    direction *= reach / np.linalg.norm(direction, axis=2, keepdims=True)
    direction[0] = 0
    white[:, :3] += direction[truth]
    moves = np.einsum("kuj,uji->kui", white, world.mix)
    return many_descriptors(rng, world, moves, np.arange(len(truth)), np.full(len(truth), size))


@pytest.mark.parametrize("variation", [0.05, 0.1, 0.2])
def test_variation_is_estimated_and_splits_nobody(variation: float) -> None:
    found = CalibratedClustering().fit(varying(0, np.zeros(20, np.int64), variation))
    assert found.labels_.max() == 0
    assert found.variation_.estimated
    assert found.variation_.means == pytest.approx(variation, rel=0.15)
    assert CalibratedClustering(floor=0.02).fit(varying(0, np.zeros(20, np.int64), variation)).labels_.max() > 0


def test_real_groups_do_not_inflate_it() -> None:
    truth = np.arange(20) % 4
    found = CalibratedClustering().fit(varying(1, truth, 0.05, reach=1.0))
    assert adjusted_rand_score(truth, found.labels_) == 1
    assert found.variation_.means == pytest.approx(0.05, rel=0.2)


def test_clients_that_are_all_different_stay_apart() -> None:
    found = CalibratedClustering().fit(varying(2, np.arange(10), 0.0, reach=3.0))
    assert found.labels_.max() == 9
    assert found.variation_.means <= MOST


def test_fewer_than_five_clients_are_tested_as_before() -> None:
    assert CalibratedClustering().fit(varying(3, np.zeros(4, np.int64), 0.0)).variation_ is UNKNOWN


def together(seed: int, truth: NDArray[np.int64], size: int = 2000) -> Descriptors:
    """Groups that lie one deviation apart, in one direction that all classes have in common."""
    rng, world = np.random.default_rng(seed), Population(seed)
    direction = rng.normal(size=10)
    white = np.where(truth[:, None], direction / np.linalg.norm(direction), 0.0)[:, None].repeat(10, axis=1)
    moves = np.einsum("kuj,uji->kui", white, world.mix)
    return many_descriptors(rng, world, moves, np.arange(len(truth)), np.full(len(truth), size))


@pytest.mark.parametrize("seed", range(5))
def test_two_clumps_of_five_clients_are_found(seed: int) -> None:
    truth = np.array([0, 1, 0, 1, 0])
    assert adjusted_rand_score(truth, CalibratedClustering().fit(together(seed, truth)).labels_) == 1


def test_a_cloud_has_no_clumps() -> None:
    truth = np.array([0, 0, 1, 1, 1])
    cloud, clumps = Pool.of(varying(4, np.zeros(5, np.int64), 0.1)), Pool.of(together(4, truth))
    assert not in_clumps(cloud, truth)
    assert in_clumps(clumps, truth)
    assert not in_clumps(clumps, np.arange(5))
    assert not in_clumps(clumps, np.zeros(5, np.int64))


def wide(seed: int, factor: float) -> Descriptors:
    """Twenty clients with the same class means; classes of the second half are wider by a factor."""
    rng, world = np.random.default_rng(seed), Population(seed)
    clients = []
    for k in range(20):
        z, y = world.draw(rng, 500)
        clients.append((world.mean[y] + (factor if k >= 10 else 1.0) * (z - world.mean[y]), y))
    return describe_samples(clients, 10)


@pytest.mark.parametrize("factor", [2.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_clients_of_other_spreads_are_parted_and_told_why(seed: int, factor: float) -> None:
    descriptors = wide(seed, factor)
    found = CalibratedClustering().fit(descriptors)
    assert found.labels_.tolist() == [0] * 10 + [1] * 10
    why = explain(found.pool_, 0.01, variation=found.variation_)[0]
    assert why.shift == "P(X)"
    assert f"classes scatter {factor:.1f} times as widely in cluster 1" in why.words


def test_relative_spreads_are_those_of_the_draw() -> None:
    found = relative_spreads(Pool.of(wide(0, 2.0)))
    assert found[10:].mean() / found[:10].mean() == pytest.approx(4, rel=0.05)
    assert found.mean() == pytest.approx(1, rel=0.05)


def test_clients_that_are_worth_more_than_they_say_split_nobody() -> None:
    for seed in range(5):
        rng, world = np.random.default_rng(seed), Population(seed)
        told = describe_samples([world.draw(rng, 600) for _ in range(12)], 10)
        effective = told.effective.copy()
        effective[:7] *= 0.2
        assert CalibratedClustering().fit(replace(told, effective=effective)).labels_.max() == 0


def test_classes_that_one_cluster_lacks_say_nothing_of_its_spread() -> None:
    rng, world = np.random.default_rng(0), Population(0, classes=5)
    clients = []
    for k in range(12):
        z, y = world.draw(rng, 300, None if k < 6 else np.array([0.25, 0.25, 0.25, 0.25, 0.0]))
        clients.append((world.mean[y] + (1.0 if k < 6 else 3.0) * (z - world.mean[y]), y))
    found = CalibratedClustering().fit(describe_samples(clients, 5))
    words = explain(found.pool_, 0.01, variation=found.variation_)[0].words
    found_times = re.search(r"classes scatter (.*) times as widely in cluster 1", words)
    assert found_times is not None
    assert float(found_times[1]) == pytest.approx(3, abs=0.15)
