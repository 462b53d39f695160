"""C(r) case by case."""

import pytest

from fedflux.algorithms.flux.trigger import should_cluster


@pytest.mark.parametrize(
    ("accuracies", "rounds", "fires"),
    [
        ([], 10, False),
        ([0.1, 0.1], 10, False),  # r < 3, however flat
        ([0.1, 0.1, 0.5], 10, False),  # the flat step 1 → 2 does not count: r′ ≥ 3
        ([0.1, 0.4, 0.45], 10, True),  # +0.05 < 0.06
        ([0.1, 0.4, 0.47], 10, False),  # +0.07
        ([0.1, 0.3, 0.5, 0.7, 0.9], 10, False),
        ([0.1, 0.3, 0.5, 0.7, 0.71], 10, True),
        ([0.1, 0.5, 0.4, 0.9], 10, True),  # a fall at r′ = 3 stays the minimum
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 10, False),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], 10, True),  # r ≥ 0.8·R
        ([0.1, 0.3, 0.5], 3, True),
    ],
)
def test_trigger_equation(accuracies: list[float], rounds: int, fires: bool) -> None:
    assert should_cluster(accuracies, rounds) is fires


def test_threshold_is_a_parameter() -> None:
    assert should_cluster([0.1, 0.4, 0.47], 10, threshold=0.08)
