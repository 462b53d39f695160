"""The clusterers are scikit-learn estimators, and probabilities of clusters mean what they say."""

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import AgglomerativeClustering
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import estimator_checks, get_tags
from tests.clustering.making import Population, describe_samples

from fedflux import Describer, FluxClustering
from fedflux.clustering import CalibratedClustering
from fedflux.descriptors.descriptor import Descriptors

OF_DESCRIPTORS = (CalibratedClustering, FluxClustering)
"""Clusterers of what clients say: counts and moments of classes, which no row of an array of numbers is. Their tags say
so, and scikit-learn then runs none of its checks but one: those that fit nothing are run here by name, and what the
others ask for is asked for below with descriptors. Clusterers of points pass them all (tests/clustering)."""
FIT_NOTHING = (
    *("check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr"),
    *("check_no_attributes_set_in_init", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order"),
    *("check_parameters_default_constructible", "check_get_params_invariance", "check_set_params"),
)


@pytest.mark.parametrize("check", FIT_NOTHING)
@pytest.mark.parametrize("kind", OF_DESCRIPTORS)
def test_clusterers_of_descriptors_pass_what_applies_of_it(kind: Any, check: str) -> None:
    assert not get_tags(kind()).input_tags.two_d_array
    getattr(estimator_checks, check)(kind.__name__, kind())


@pytest.fixture(scope="module")
def descriptors() -> Descriptors:
    """Nine clients of three looks, one after another."""
    rng, world = np.random.default_rng(3), Population(3, classes=4, length=6)
    moves = rng.normal(size=(3, 4, 6))
    return describe_samples([world.draw(rng, 200, move=moves[k % 3]) for k in range(9)], 4)


@pytest.mark.parametrize("kind", OF_DESCRIPTORS)
def test_fitting_them_is_what_scikit_learn_asks_for(kind: Any, descriptors: Descriptors) -> None:
    estimator = kind()
    before = estimator.get_params()
    assert estimator.fit(descriptors) is estimator
    assert estimator.get_params() == before
    labels = estimator.labels_.copy()
    assert labels.tolist() == [0, 1, 2] * 3
    np.testing.assert_array_equal(estimator.fit(descriptors).labels_, labels)
    np.testing.assert_array_equal(clone(estimator).fit_predict(descriptors), labels)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).labels_, labels)
    order = np.random.default_rng(0).permutation(len(labels))
    assert adjusted_rand_score(kind().fit(descriptors.take(order)).labels_, labels[order]) == 1


def test_predictions_are_each_client_s_own_and_need_a_fit(descriptors: Descriptors) -> None:
    with pytest.raises(NotFittedError):
        FluxClustering().predict(descriptors)
    with pytest.raises(NotFittedError):
        FluxClustering().predict_proba([])
    flux = FluxClustering().fit(descriptors)
    together = flux.predict(descriptors)
    np.testing.assert_array_equal(together, flux.labels_)
    np.testing.assert_array_equal([flux.predict(descriptors.take([k]))[0] for k in range(9)], together)


@pytest.mark.parametrize("clusterer", ["kmeans", "kmeans-silhouette", AgglomerativeClustering(3)])
def test_other_clusterers_can_take_its_place(clusterer: Any, descriptors: Descriptors) -> None:
    flux = FluxClustering(clusterer, n_clusters=3 if clusterer == "kmeans" else None)
    labels = flux.fit(descriptors).labels_
    assert adjusted_rand_score(labels, [0, 1, 2] * 3) == 1
    with pytest.raises(ValueError, match="finds the number by itself"):
        FluxClustering(n_clusters=3).fit(descriptors)


def calibration(seed: int, gap: float, tried: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Confidence and success of unlabelled clients with 2 to 20 records, in a world of four looks that lie close."""
    rng, world = np.random.default_rng(seed), Population(seed, classes=5, length=8)
    moves = gap * rng.normal(size=(4, 5, 8))
    d, flux = Describer(classes=5), FluxClustering(components=8)
    truth = np.arange(24) % 4
    members = [world.draw(rng, 300, move=moves[k]) for k in truth]
    bounds = [d.bounds(z) for z, _ in members]
    extractor = flux.extractor(bounds)
    flux.fit([d.describe(z[:240], y[:240], extractor, validation=z[240:]) for z, y in members])
    assert flux.labels_.tolist() == truth.tolist()
    if tried:
        flux.calibrate([d.tries(z[240:], flux.offer_) for z, _ in members])
    strangers = np.repeat(np.arange(4), 40)
    records = [world.draw(rng, int(rng.integers(2, 20)), move=moves[k])[0] for k in strangers]
    found = flux.predict_proba([d.scores(z, flux.offer_) for z in records])
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    assert (found >= 0).all()
    return found.max(axis=1), (found.argmax(axis=1) == strangers).astype(np.float64)


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.float64], bins: int = 10) -> float:
    """ECE: how far confidence is from the share of right answers, over bins of equal width."""
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == b].mean() - right[place == b].mean()) * (place == b).mean() for b in set(place)]
    return float(np.sum(gaps))


def all_worlds(tried: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    found = [calibration(seed, gap, tried) for seed in range(3) for gap in (0.25, 0.5)]
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def test_probabilities_of_clusters_are_calibrated_once_members_tried() -> None:
    confidence, right = all_worlds(tried=True)
    assert calibration_error(confidence, right) < 0.05
    assert (confidence < 0.9).mean() > 0.4, "a world in which everybody is sure shows nothing"


def test_before_that_they_are_cautious() -> None:
    confidence, right = all_worlds(tried=False)
    assert confidence.mean() < right.mean()
    assert right[confidence > 0.95].mean() > 0.95
