"""The proposition: c₋Δ ≤ W2 ≤ c₊Δ for commuting covariances."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflux.flux.wasserstein import descriptor_distance, gaussian_w2, lipschitz_constants


def test_w2_in_one_dimension_is_the_known_formula() -> None:
    found = gaussian_w2(np.array([1.0]), np.array([[4.0]]), np.array([3.0]), np.array([[9.0]]))
    assert np.isclose(found, np.sqrt((1 - 3) ** 2 + (2 - 3) ** 2))


def test_w2_matches_optimal_transport_of_samples() -> None:
    rng = np.random.default_rng(0)
    first, second = np.sort(rng.normal(0, 1, 200_000)), np.sort(rng.normal(2, 3, 200_000))
    sampled = np.sqrt(np.mean((first - second) ** 2))
    exact = gaussian_w2(np.array([0.0]), np.array([[1.0]]), np.array([2.0]), np.array([[9.0]]))
    assert np.isclose(sampled, exact, rtol=0.02)


@given(seed=st.integers(0, 10_000), length=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_bounds_hold_for_commuting_covariances(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(length, length)))[0]
    means = rng.normal(size=(2, length)) * rng.choice([0.01, 1.0, 10.0])
    first, second = (basis @ np.diag(rng.uniform(0.05, 20, length)) @ basis.T for _ in range(2))
    w2 = gaussian_w2(means[0], first, means[1], second)
    delta = descriptor_distance(means[0], first, means[1], second)
    low, high = lipschitz_constants(first, second)
    assert low * delta <= w2 * (1 + 1e-6) + 1e-9
    assert w2 <= high * delta * (1 + 1e-6) + 1e-9
