"""Clusterers as estimators, the knee, and placing clients at centroids."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.utils.estimator_checks import check_estimator

from fedflux.clustering import (
    CLUSTERERS,
    AdaptiveDBSCAN,
    Clusterer,
    SilhouetteKMeans,
    find_clusters,
)
from fedflux.clustering.adaptive_dbscan import find_knee, noise_to_singletons
from fedflux.clustering.clusterers import in_order_of_appearance
from fedflux.clustering.placement.marginals import cluster_centroids, nearest_centroid
from fedflux.descriptors.descriptor import Descriptors
from fedflux.errors import FedfluxError


def descriptors_of(means: NDArray[np.float64], count: int = 100) -> Descriptors:
    """Clients with given marginal and class means (K, groups, l) and unit deviations."""
    clients, groups, length = means.shape
    counts = np.full((clients, groups), count)
    counts[:, 0] = count * (groups - 1)
    return Descriptors(
        mean=means,
        spread=np.ones(means.shape),
        correlation=np.tile(np.eye(length), (clients, groups - 1, 1, 1)),
        count=counts,
        effective=counts.astype(np.float64),
        noise=np.zeros((clients, groups)),
        validation_mean=means[:, 0],
        validation_count=np.full(clients, count),
        count_noise=np.zeros(clients),
        validation_noise=np.zeros(clients),
    )


def clear_groups(seed: int = 0, noise: float = 0.02) -> tuple[Descriptors, NDArray[np.int64]]:
    """Three clusters of four and two clients alone: the two make the elbow that adaptive DBSCAN needs."""
    rng = np.random.default_rng(seed)
    truth = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4])
    centres = rng.normal(size=(5, 4, 6))
    return descriptors_of(centres[truth] + noise * rng.normal(size=(14, 4, 6))), truth


def test_scikit_learn_contract() -> None:
    """The battery asks for three Gaussian blobs of 50 points each; a radius at the elbow of *nearest* neighbours is too
    small to hold a wide blob together, which is how the paper's method is, not how this class is written."""
    reason = "the paper's radius splits wide blobs"
    check_estimator(AdaptiveDBSCAN(), expected_failed_checks={"check_clustering": reason}, on_skip=None)
    check_estimator(SilhouetteKMeans(), on_skip=None)


def test_knee_of_an_l_shaped_curve() -> None:
    curve = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 6.0, 11.0])
    assert find_knee(curve) == 5


def test_no_knee_on_flat_and_straight_curves() -> None:
    assert find_knee(np.full(8, 3.0)) is None
    assert find_knee(np.zeros(4)) is None
    assert find_knee(np.array([2.0, 2.0])) is None


def test_radius_is_the_scaled_knee_distance_and_noise_becomes_singletons() -> None:
    points = np.array([[0.0], [0.1], [0.22], [5.0], [5.13], [9.0], [14.0]])
    found = AdaptiveDBSCAN().fit(points)
    curve = np.sort([0.1, 0.1, 0.12, 0.13, 0.13, 3.87, 5.0])
    assert found.eps_ == pytest.approx(curve[found.knee_])
    assert found.labels_.tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert AdaptiveDBSCAN(scale=0.5).fit(points).eps_ == pytest.approx(0.5 * curve[found.knee_])


def test_safe_where_the_knee_is_undefined() -> None:
    assert AdaptiveDBSCAN().fit_predict([[1.0, 2.0]]).tolist() == [0]
    assert AdaptiveDBSCAN().fit_predict([[0.0], [3.0]]).tolist() == [0, 0]
    assert AdaptiveDBSCAN().fit_predict(np.zeros((5, 2))).tolist() == [0] * 5


def test_noise_to_singletons() -> None:
    assert noise_to_singletons(np.array([-1, 0, 0, -1, 1])).tolist() == [2, 0, 0, 3, 1]
    assert noise_to_singletons(np.array([-1, -1])).tolist() == [0, 1]


def test_order_of_appearance() -> None:
    assert in_order_of_appearance(np.array([5, 2, 5, 9, 2])).tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("name", CLUSTERERS)
def test_every_clusterer_finds_clear_groups(name: str) -> None:
    descriptors, truth = clear_groups()
    found = find_clusters(descriptors, Clusterer(name, clusters=5))
    assert found.labels.tolist() == truth.tolist()
    assert len(found.centroids) == 5


@pytest.mark.parametrize("name", CLUSTERERS)
@pytest.mark.filterwarnings("error")
def test_every_clusterer_survives_few_and_identical_clients(name: str) -> None:
    one = descriptors_of(np.ones((1, 3, 4)))
    assert find_clusters(one, Clusterer(name, clusters=1)).labels.tolist() == [0]
    same = descriptors_of(np.ones((4, 3, 4)))
    assert find_clusters(same, Clusterer(name, clusters=1)).labels.tolist() == [0] * 4
    two = descriptors_of(np.random.default_rng(0).normal(size=(2, 3, 4)))
    assert set(find_clusters(two, Clusterer(name, clusters=2)).labels.tolist()) <= {0, 1}


def test_silhouette_finds_k() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(c, 0.05, size=(5, 2)) for c in (0, 1, 2, 3)])
    assert len(set(SilhouetteKMeans().fit_predict(points))) == 4


def test_kmeans_needs_a_possible_number() -> None:
    descriptors, _ = clear_groups()
    with pytest.raises(FedfluxError, match="--clusters"):
        find_clusters(descriptors, Clusterer("kmeans"))
    with pytest.raises(FedfluxError, match="99 clusters of 14"):
        find_clusters(descriptors, Clusterer("kmeans", clusters=99))
    with pytest.raises(FedfluxError, match="did you mean 'kmeans'"):
        find_clusters(descriptors, Clusterer("kmean"))


def test_centroids_are_means_and_the_nearest_wins() -> None:
    vectors = np.array([[0.0, 0], [2, 0], [10, 10]])
    centroids = cluster_centroids(vectors, np.array([0, 0, 1]))
    np.testing.assert_allclose(centroids, [[1, 0], [10, 10]])
    chosen, distances = nearest_centroid(np.array([[1.0, 1.0], [9, 9]]), centroids)
    assert chosen.tolist() == [0, 1]
    np.testing.assert_allclose(distances[0], [1.0, np.hypot(9, 9)])
