"""Why two clusters differ where labels are not simply exchanged."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.clustering.making import Sample, describe_samples

from fedflux.clustering import with_centroids
from fedflux.clustering.why import explain

Array = NDArray[np.float64]


def why(draw: Callable[[np.random.Generator, int], Sample], classes: int, seed: int) -> tuple[str, str]:
    """What is said of two clusters of four clients each."""
    rng = np.random.default_rng(seed)
    descriptors = describe_samples([draw(rng, client // 4) for client in range(8)], classes)
    (pair,) = explain(with_centroids(descriptors, np.repeat([0, 1], 4)).pool, 0.01)
    return pair.shift, pair.words


def turned(rng: np.random.Generator, kind: int) -> Sample:
    """One of three features counts the other way round; all records together look the same."""
    x = rng.normal(size=(300, 5))
    score = (1.5 - 3 * kind) * x[:, 0] + 1.2 * x[:, 1] + x[:, 2] + rng.normal(size=300) * 0.3
    return x, (score > 0.3).astype(np.int64)


def moved(rng: np.random.Generator, kind: int) -> Sample:
    """The same rule for records that lie elsewhere."""
    x, y = turned(rng, 0)
    return x + kind * np.array([0.8, -0.5, 0.0, 0.0, 0.4]), y


def some_classes(rng: np.random.Generator, kind: int) -> Sample:
    """Two of six classes look different, each in its own way."""
    centres = np.random.default_rng(7).normal(size=(8, 5))
    y = rng.integers(6, size=300)
    look = np.where((kind == 1) & (y < 2), y + 6, y)
    return centres[look] + 0.5 * rng.normal(size=(300, 5)), y


@pytest.mark.parametrize("seed", [50, 51, 52])
@pytest.mark.parametrize(
    ("draw", "classes", "shift"), [(turned, 2, "P(Y|X)"), (moved, 2, "P(X)"), (some_classes, 6, "P(X|Y)")]
)
def test_other_labels_for_records_that_are_alike_are_told_from_other_records(
    draw: Callable[[np.random.Generator, int], Sample], classes: int, shift: str, seed: int
) -> None:
    named, words = why(draw, classes, seed)
    assert named == shift
    assert ("all records together are alike" in words) == (shift == "P(Y|X)")
