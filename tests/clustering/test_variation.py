"""Natural variation between clients: estimated, granted, and not mistaken for clusters."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from tests.clustering.making import Population, many_descriptors

from fedflux.clustering import CalibratedClustering
from fedflux.clustering.variation import MOST, UNKNOWN
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
