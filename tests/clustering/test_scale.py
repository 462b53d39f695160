"""Clustering at scale: what the paths beyond 20,000 clients find is what the paths below it find."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors
from tests.clustering.making import many_clients

from fedflux.clustering import AdaptiveDBSCAN, CalibratedClustering, Clusterer, find_clusters, with_centroids
from fedflux.clustering import adaptive_dbscan as dbscan_module
from fedflux.clustering import calibrated as calibrated_module
from fedflux.clustering import clusterers as clusterers_module
from fedflux.clustering.calibrated import candidate_pairs
from fedflux.clustering.evidence.comparison import Pool
from fedflux.clustering.neighbours import approximate_neighbours
from fedflux.clustering.placement.marginals import Marginals, cluster_centroids
from fedflux.clustering.strips import Strips
from fedflux.clustering.why import MAX_PAIRS, explain
from fedflux.descriptors import sums
from fedflux.descriptors.wire import from_arrays, to_arrays
from fedflux.errors import FedfluxError


@pytest.fixture
def at_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every federation of more than 200 clients takes the paths of more than 20,000."""
    for module in (sums, calibrated_module, dbscan_module, clusterers_module):
        monkeypatch.setattr(module, "EXACT", 200)


def points(seed: int, count: int, centres: int, noise: float) -> NDArray[np.float64]:
    """Clusters in 30 dimensions and a few points far from everything."""
    rng = np.random.default_rng(seed)
    chosen = rng.normal(size=(centres, 30))[rng.integers(0, centres, count)]
    found = chosen + noise * rng.normal(size=(count, 30))
    found[:5] *= 20
    return found


@pytest.mark.parametrize("clients", [300, 2000])
@pytest.mark.parametrize(("clusters", "reach", "changed"), [(40, 3.0, 2), (5, 2.0, 2), (3, 1.5, 4)])
def test_scale_agrees_with_the_exact_path(
    request: pytest.FixtureRequest, clients: int, clusters: int, reach: float, changed: int
) -> None:
    truth = np.random.default_rng(clients).integers(0, clusters, clients)
    descriptors = many_clients(clients, truth, reach, changed)
    exact = CalibratedClustering().fit(descriptors).labels_
    request.getfixturevalue("at_scale")
    scaled = CalibratedClustering().fit(descriptors).labels_
    assert adjusted_rand_score(exact, scaled) > 0.9
    assert adjusted_rand_score(truth, scaled) > adjusted_rand_score(truth, exact) - 0.05


def test_the_neighbour_graph_agrees_with_all_pairs_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, (clusters, reach) in enumerate([(12, 3.0), (5, 2.5)]):
        truth = np.random.default_rng(seed).integers(0, clusters, 300)
        descriptors = many_clients(seed, truth, reach)
        sparse = CalibratedClustering().fit(descriptors).labels_
        with monkeypatch.context() as patch:
            patch.setattr(calibrated_module, "ALL_PAIRS", 300)
            exact = CalibratedClustering().fit(descriptors).labels_
        assert adjusted_rand_score(exact, sparse) > 0.9


@pytest.mark.usefixtures("at_scale")
@pytest.mark.parametrize(("clients", "repeats"), [(300, 10), (3000, 2)])
def test_one_distribution_stays_one_cluster_at_scale(clients: int, repeats: int) -> None:
    for seed in range(repeats):
        descriptors = many_clients(seed, np.zeros(clients, np.int64), 0.0)
        assert CalibratedClustering().fit(descriptors).labels_.max() == 0


@pytest.mark.usefixtures("at_scale")
def test_different_clients_stay_apart_at_scale() -> None:
    labels = CalibratedClustering().fit(many_clients(0, np.arange(600), 4.0, changed=10)).labels_
    assert labels.max() + 1 > 570


@pytest.mark.usefixtures("at_scale")
def test_looking_at_everyone_ends_when_it_gains_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells drawn anew show every time a few neighbours that nobody had seen; that must not go on for ever."""
    looks: list[bool] = []

    def counting(pool: Pool, neighbours: int, asking: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        looks.append(bool(asking.all()))
        return candidate_pairs(pool, neighbours, asking)

    monkeypatch.setattr(calibrated_module, "candidate_pairs", counting)
    CalibratedClustering(floor=0.02).fit(many_clients(0, np.arange(3000), 2.5, changed=10))  # nothing else looks
    assert 2 <= sum(looks) <= 4


@pytest.mark.parametrize(("centres", "noise"), [(10, 0.1), (40, 0.02), (3, 1.0), (1, 1.0)])
def test_strips_are_exact(centres: int, noise: float) -> None:
    for seed in range(3):
        data = points(seed, 900, centres, noise)
        strips = Strips(data)
        nearest, partner = strips.nearest()
        distances = cdist(data, data)
        np.fill_diagonal(distances, np.inf)
        np.testing.assert_allclose(nearest, distances.min(axis=1), rtol=1e-12)
        np.testing.assert_array_equal(partner, distances.argmin(axis=1))
        for radius in np.quantile(nearest, [0.1, 0.5, 0.9, 0.99]):
            expected = DBSCAN(eps=radius, min_samples=2, metric="precomputed").fit(cdist(data, data)).labels_
            np.testing.assert_array_equal(strips.components(radius, nearest, partner), expected)


def test_strips_survive_duplicates_and_tiny_distances() -> None:
    rng = np.random.default_rng(0)
    data = np.repeat(1000 + rng.normal(size=(40, 12)), 15, axis=0)
    data[300:] += 1e-6 * rng.normal(size=(300, 12))
    strips = Strips(data)
    nearest, partner = strips.nearest()
    distances = cdist(data, data)
    np.fill_diagonal(distances, np.inf)
    np.testing.assert_allclose(nearest, distances.min(axis=1), rtol=1e-9)
    found = strips.components(1e-5, nearest, partner)
    np.testing.assert_array_equal(found, np.repeat(np.arange(40), 15))


def test_adaptive_dbscan_is_the_same_at_scale(request: pytest.FixtureRequest) -> None:
    data = [points(seed, 700, 15, 0.05 * (1 + seed)) for seed in range(3)]
    below = [AdaptiveDBSCAN().fit(one) for one in data]
    request.getfixturevalue("at_scale")
    for one, expected in zip(data, below, strict=True):
        found = AdaptiveDBSCAN().fit(one)
        np.testing.assert_array_equal(found.labels_, expected.labels_)
        assert found.eps_ == pytest.approx(expected.eps_, rel=1e-9)
    with pytest.raises(FedfluxError, match="min_samples=3 takes up to 200 points"):
        AdaptiveDBSCAN(min_samples=3).fit(data[0])


def test_approximate_neighbours_find_most_of_the_nearest() -> None:
    data = points(0, 3000, 50, 0.1)
    found = approximate_neighbours(data, 8, np.ones(3000, dtype=bool))
    exact = NearestNeighbors(n_neighbors=8).fit(data).kneighbors(return_distance=False)
    assert (found != np.arange(3000)[:, None]).all()
    assert np.mean([len(set(a) & set(b)) for a, b in zip(found, exact, strict=True)]) > 7
    asking = np.arange(3000) == 7
    assert (approximate_neighbours(data, 8, asking)[~asking] == -1).all()


@pytest.mark.usefixtures("at_scale")
@pytest.mark.parametrize("name", ["kmeans-silhouette", "hdbscan", "agglomerative"])
def test_clusterers_of_every_pair_refuse_in_one_line(name: str) -> None:
    descriptors = many_clients(0, np.zeros(201, np.int64), 0.0)
    with pytest.raises(FedfluxError, match=f"{name} takes up to 200 clients, not 201"):
        find_clusters(descriptors, Clusterer(name))


def test_single_precision_beyond_the_limit_changes_nothing_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = to_arrays(many_clients(1, np.arange(300) % 3, 2.0))
    double = Pool.of(from_arrays(arrays))
    monkeypatch.setattr(sums, "EXACT", 200)
    arrived = from_arrays(arrays)
    single = Pool.of(arrived)
    assert [array.dtype.name for array in (arrived.correlation, single.covariance)] == ["float32", "float32"]
    np.testing.assert_allclose(single.covariance, double.covariance, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(single.merge(np.arange(300) % 2).mean, double.merge(np.arange(300) % 2).mean, rtol=1e-9)


def test_group_sums_and_what_rests_on_them() -> None:
    descriptors, labels = many_clients(2, np.zeros(90, np.int64), 0.0), np.arange(90) % 7
    vectors = descriptors.vectors()
    expected = np.stack([vectors[labels == m].mean(axis=0) for m in range(7)])
    np.testing.assert_allclose(cluster_centroids(vectors, labels), expected, rtol=1e-12)
    marginals = Marginals.of(descriptors, labels)
    for m in range(7):
        weight = descriptors.effective[labels == m, 0]
        mean = np.average(descriptors.mean[labels == m, 0], axis=0, weights=weight)
        np.testing.assert_allclose(marginals.mean[m], mean, rtol=1e-12)
    distances = marginals.distances(descriptors.validation_mean, descriptors.validation_count)
    own = distances[np.arange(90), labels]
    plain = Marginals(marginals.mean, marginals.covariance, marginals.weight, 1.0)
    unscaled = plain.distances(descriptors.validation_mean, descriptors.validation_count)[np.arange(90), labels]
    np.testing.assert_allclose(own * marginals.inflation, unscaled, rtol=1e-9)


def test_thousands_of_clusters_are_placed_in_and_explained() -> None:
    descriptors = many_clients(3, np.arange(1200), 4.0, changed=10)
    clusters = with_centroids(descriptors, np.arange(1200))
    assert len(explain(clusters.pool, 0.01)) == MAX_PAIRS
    newcomers = descriptors.take(np.arange(0, 1200, 60))
    assert clusters.place(newcomers).tolist() == list(range(0, 1200, 60))
