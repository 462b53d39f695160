"""Calibrated clustering: one cluster where there is one, the right ones where there are several."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from tests.clustering.making import Population, describe_samples

from fedflux.clustering import CalibratedClustering, Clusterer, find_clusters
from fedflux.clustering import calibrated as module
from fedflux.clustering.evidence.comparison import Evidence, Pool, compare
from fedflux.clustering.why import explain
from fedflux.descriptors.descriptor import Descriptors


def federation(seed: int, truth: NDArray[np.int64], size: int, reach: float = 1.0, classes: int = 10) -> Descriptors:
    """Clients whose class means move by cluster, by about `reach` deviations in two classes."""
    rng, world = np.random.default_rng(seed), Population(seed, classes)
    moves = np.zeros((truth.max() + 1, *world.mean.shape))
    for m in range(1, len(moves)):
        for u in rng.choice(classes, 2, replace=False):
            direction = rng.normal(size=10)
            moves[m, u] = reach * world.mix[u].T @ direction / np.linalg.norm(direction)
    return describe_samples([world.draw(rng, size, move=moves[m]) for m in truth], classes)


@pytest.mark.parametrize(("clients", "size", "repeats"), [(10, 300, 40), (50, 120, 10)])
def test_identical_distributions_stay_together(clients: int, size: int, repeats: int) -> None:
    found = [
        CalibratedClustering().fit(federation(seed, np.zeros(clients, np.int64), size)).labels_.max() + 1
        for seed in range(repeats)
    ]
    assert np.mean(np.array(found) == 1) >= 0.95


def test_labels_that_refuse_a_pair_by_themselves_spare_a_test_and_change_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, world = np.random.default_rng(0), Population(0)
    shares = [np.ones(10), np.arange(10) < 5, np.arange(1, 11), np.arange(10) > 6]
    clients = [world.draw(rng, 60, shares[k % 4] / np.sum(shares[k % 4])) for k in range(24)]
    pool = Pool.of(describe_samples(clients, 10))
    first, second = (ends.astype(np.int64) for ends in np.triu_indices(24, 1))
    spared = CalibratedClustering()._test(pool, first, second, 24)
    asked: list[int] = []

    def counting(pool: Pool, i: NDArray[np.int64], j: NDArray[np.int64], *null: Any) -> Evidence:
        asked.append(len(i))
        return compare(pool, i, j, *null)

    monkeypatch.setattr(module, "compare", counting)
    np.testing.assert_array_equal(spared.likeness, CalibratedClustering()._test(pool, first, second, 24).likeness)
    assert 0 < asked[0] < len(first)
    monkeypatch.setattr(module, "label_evidence", lambda pool, i, j, *null: np.zeros(len(i)))
    np.testing.assert_array_equal(spared.likeness, CalibratedClustering()._test(pool, first, second, 24).likeness)
    assert asked[1] == len(first)


@pytest.mark.parametrize("truth", [[0, 0, 0, 1, 1, 1, 2, 2, 2, 2], list(range(8)), [0, 0, 0, 0, 0, 0, 0, 1]])
def test_clusters_are_found_without_their_number(truth: list[int]) -> None:
    for seed in range(3):
        labels = CalibratedClustering().fit(federation(seed, np.array(truth), 2000)).labels_
        assert adjusted_rand_score(truth, labels) == 1


def test_pooling_finds_what_no_pair_of_clients_shows() -> None:
    """Two clusters so close that single clients are rarely told apart: groups of ten are."""
    truth = np.repeat([0, 1], 10)
    right = []
    for seed in range(5):
        descriptors = federation(seed, truth, 400, reach=1.2)
        right.append(adjusted_rand_score(truth, CalibratedClustering().fit(descriptors).labels_))
    assert np.mean(right) > 0.9


def test_a_stricter_level_never_splits_more() -> None:
    descriptors = federation(1, np.array([0, 0, 0, 1, 1, 1]), 200, reach=0.8)
    loose = CalibratedClustering(alpha=0.5).fit(descriptors).labels_.max()
    strict = CalibratedClustering(alpha=1e-12).fit(descriptors).labels_.max()
    assert strict <= loose


def test_order_of_clients_does_not_matter() -> None:
    truth = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 3])
    descriptors = federation(2, truth, 1500)
    order = np.random.default_rng(0).permutation(10)
    there = CalibratedClustering().fit(descriptors.take(order)).labels_
    here = CalibratedClustering().fit(descriptors).labels_[order]
    assert adjusted_rand_score(here, there) == 1


def test_the_neighbour_graph_agrees_with_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = np.repeat(np.arange(8), 5)
    descriptors = federation(3, truth, 600)
    exact = CalibratedClustering().fit(descriptors).labels_
    monkeypatch.setattr(module, "ALL_PAIRS", 2)
    sparse = CalibratedClustering().fit(descriptors).labels_
    assert adjusted_rand_score(truth, exact) == 1
    assert adjusted_rand_score(exact, sparse) == 1


def test_beyond_all_pairs_a_missing_class_is_no_obstacle() -> None:
    """More clients than are compared pair by pair, one of them without class 0."""
    rng, world = np.random.default_rng(0), Population(0)
    without = np.array([0.0] + [1 / 9] * 9)
    clients = [world.draw(rng, 200, shares=without if k == 3 else None) for k in range(70)]
    labels = CalibratedClustering().fit(describe_samples(clients, 10)).labels_
    assert (labels == labels[0]).sum() >= 69


def test_it_is_an_estimator() -> None:
    estimator = clone(CalibratedClustering(alpha=0.05, floor=0.1))
    assert estimator.get_params() == {"alpha": 0.05, "floor": 0.1}
    descriptors = federation(4, np.array([0, 0, 1, 1]), 1000)
    labels = estimator.fit_predict(descriptors)
    np.testing.assert_array_equal(labels, estimator.labels_)
    assert len(estimator.pool_) == labels.max() + 1


def test_one_client_and_clients_of_one_sample() -> None:
    one = federation(5, np.array([0]), 50)
    assert find_clusters(one, Clusterer()).labels.tolist() == [0]
    rng, world = np.random.default_rng(0), Population(0)
    tiny = describe_samples([world.draw(rng, 1), world.draw(rng, 1), world.draw(rng, 400)], 10)
    assert np.isfinite(find_clusters(tiny, Clusterer()).marginals.mean).all()


def words_of(first, second, classes: int = 10) -> list[str]:
    found = find_clusters(describe_samples([first, second], classes), Clusterer())
    return [pair.shift for pair in explain(found.pool, 0.01)]


def test_why_names_the_shift() -> None:
    rng, world = np.random.default_rng(0), Population(0)
    z, y = world.draw(rng, 3000)
    plain = world.draw(rng, 3000)
    swap = np.arange(10)
    swap[[2, 7]] = [7, 2]
    one_class = np.zeros_like(world.mean)
    one_class[4] = 3.0
    few = np.where(np.arange(10) < 5, 0.2, 0.0)
    assert words_of(plain, (z, swap[y])) == ["P(Y|X)"]
    assert words_of(plain, world.draw(rng, 3000, move=one_class)) == ["P(X|Y)"]
    assert words_of(plain, world.draw(rng, 3000, move=np.full_like(world.mean, 3.0))) == ["P(X)"]
    assert words_of(plain, world.draw(rng, 3000, shares=few)) == ["P(Y)"]
    w, v = world.draw(rng, 3000, shares=few)
    swap = np.arange(10)
    swap[[1, 3]] = [3, 1]
    assert words_of(plain, (w, swap[v])) == ["P(Y) + P(Y|X)"]


def test_why_copes_with_single_examples() -> None:
    rng, world = np.random.default_rng(0), Population(0)
    move = np.full_like(world.mean, 50.0)
    singles = [world.draw(rng, 3, move=move) for _ in range(3)]
    pool = Pool.of(describe_samples([world.draw(rng, 600), *singles], 10)).merge(np.array([0, 1, 1, 1]))
    assert len(explain(pool, 0.01)) == 1


def test_why_says_which_classes_in_words() -> None:
    rng, world = np.random.default_rng(1), Population(1)
    z, y = world.draw(rng, 3000)
    swap = np.arange(10)
    swap[[2, 7]] = [7, 2]
    found = find_clusters(describe_samples([world.draw(rng, 3000), (z, swap[y])], 10), Clusterer())
    (pair,) = explain(found.pool, 0.01)
    assert pair.classes == (2, 7)
    assert "class 2 of cluster 0 is 7 of cluster 1, 7 of cluster 0 is 2 of cluster 1" in pair.words
    assert explain(found.pool.merge(np.array([0, 0])), 0.01) == []
