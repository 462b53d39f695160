"""What clients say of their data is checked before it is used."""

from typing import Any

import numpy as np
import pytest

from fedflux.data.holding import About
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.checks import bounds_fault, outside_fault, projected_box, wide_faults
from fedflux.descriptors.inputs import AskSpread
from fedflux.descriptors.projector import fit_projector


def test_the_projected_box_holds_every_projected_latent() -> None:
    bounds = Bounds(np.zeros(5, dtype=np.float32), np.arange(1, 6, dtype=np.float32))
    projector = fit_projector(bounds, 3)
    low, high = projected_box(bounds, projector)
    corners = np.random.default_rng(0).integers(0, 2, (500, 5)) * bounds.high
    points = (corners - projector.mean) @ projector.components.T
    assert (points >= low - 1e-9).all()
    assert (points <= high + 1e-9).all()
    assert np.allclose(points.max(axis=0), high)
    assert outside_fault(points, low, high, "mean") is None
    assert outside_fault(high[None] + 1.5 * (high - low), low, high, "mean") is not None


def test_bounds_are_compared_with_the_other_nodes() -> None:
    usual = [Bounds(np.zeros(2, np.float32), np.full(2, top, np.float32)) for top in (1.0, 2.0, 3.0)]
    huge = Bounds(np.zeros(2, np.float32), np.array([1.0, 1e4], np.float32))
    assert wide_faults(usual) == [None] * 3
    assert [fault is None for fault in wide_faults([*usual, huge])] == [True, True, True, False]
    assert wide_faults([usual[0], huge]) == [None, None]  # nobody can say which of two is odd


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"low": np.zeros(2)}, "lack low or high"),
        ({"low": np.zeros(3), "high": np.ones(3)}, "wrong shape"),
        ({"low": np.ones(2), "high": np.zeros(2)}, "upside down"),
        ({"low": np.zeros(2), "high": np.array([1, np.inf])}, "NaN or infinite"),
    ],
)
def test_bad_bounds_are_named(arrays: dict[str, Any], words: str) -> None:
    assert words in (bounds_fault(arrays, 2) or "")


def test_bounds_that_single_precision_cannot_hold_are_refused() -> None:
    huge = {"low": np.array([-1e300, 0.0]), "high": np.array([1e300, 1.0])}
    assert bounds_fault(huge, 2) == "its bounds holds NaN or infinite numbers in low"
    assert bounds_fault({name: array.clip(-1, 1) for name, array in huge.items()}, 2) is None


@pytest.mark.parametrize(
    ("count", "mean", "squares", "words"),
    [
        (40.0, 1.0, 2.0, None),
        (40.0, 3e38, 1e78, None),
        (41.0, 1.0, 2.0, "more inputs than it holds"),
        (1e300, 1.0, 2.0, "more inputs than it holds"),
        (0.0, 1.0, 2.0, "cannot be"),
        (40.0, 1.0, -2.0, "cannot be"),
        (40.0, -1e39, 2.0, "cannot be"),
        (40.0, 1.0, 1e80, "cannot be"),
        (40.0, np.nan, 2.0, "not finite"),
    ],
)
def test_nobody_weighs_more_in_the_scaling_than_what_it_holds(
    count: float, mean: float, squares: float, words: str | None
) -> None:
    """Ten inputs of four positions."""
    answer = {name: np.full(3, one) for name, one in (("count", count), ("mean", mean), ("squares", squares))}
    fault = AskSpread(3, 4).fault(answer, About({"train": 10, "validation": 0, "test": 0}, 2))
    assert fault is None if words is None else words in str(fault)
