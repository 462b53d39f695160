"""The proposition: c₋Δ ≤ W2 ≤ c₊Δ, for covariances that commute and for those that do not."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflux.studies.fidelity.wasserstein import (
    Gaussians,
    constants,
    descriptor_distance,
    gaussian_w2,
    lipschitz_constants,
    pair_blocks,
    pair_constants,
)


def covariance(rng: np.random.Generator, length: int, low: float, high: float) -> np.ndarray:
    """Eigenvalues from a range, in a basis of its own."""
    basis = np.linalg.qr(rng.normal(size=(length, length)))[0]
    return (basis * np.exp(rng.uniform(np.log(low), np.log(high), length))) @ basis.T


def some(rng: np.random.Generator, clients: int, groups: int, length: int) -> Gaussians:
    mean = rng.normal(size=(clients, groups, length)) * rng.choice([0.01, 1.0, 10.0])
    scale = rng.choice([0.01, 1.0, 100.0])
    made = [[scale * covariance(rng, length, 0.01, 10) for _ in range(groups)] for _ in range(clients)]
    return Gaussians.of(mean, np.array(made))


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


@given(seed=st.integers(0, 10_000), length=st.integers(1, 6), groups=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_bounds_hold_for_any_covariances_over_all_blocks(seed: int, length: int, groups: int) -> None:
    these = some(np.random.default_rng(seed), 4, groups, length)
    first, second = np.triu_indices(4, k=1)
    found = pair_blocks(these, first, second)
    low, high = pair_constants(these, first, second, np.ones((6, groups), dtype=bool))
    w2, delta, slack = (part.sum(axis=1) for part in (found.gaussian, found.covariances, found.slack))
    assert (low**2 * delta <= w2 + slack).all()
    assert (w2 <= high**2 * delta + slack).all()


def test_the_constants_cannot_be_better() -> None:
    top, step = 4.0, 1e-4
    near, far = np.array([[top]]), np.array([[top - step]])
    low, high = lipschitz_constants(near, far)
    still = np.zeros(1)
    ratio = gaussian_w2(still, near, still, far) / descriptor_distance(still, near, still, far)
    assert np.isclose(low, 0.25)
    assert np.isclose(ratio, low, rtol=1e-3)
    small, less = np.array([[0.01]]), np.array([[0.01 + 1e-7]])
    low, high = lipschitz_constants(small, less)
    ratio = gaussian_w2(still, small, still, less) / descriptor_distance(still, small, still, less)
    assert np.isclose(high, 5.0)
    assert np.isclose(ratio, high, rtol=1e-3)


@given(seed=st.integers(0, 10_000), length=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_pairs_at_once_are_the_formulas_pair_by_pair(seed: int, length: int) -> None:
    these = some(np.random.default_rng(seed), 3, 2, length)
    first, second = np.triu_indices(3, k=1)
    found = pair_blocks(these, first, second)
    for pair, (i, j) in enumerate(zip(first, second, strict=True)):
        for group in range(2):
            both = (these.mean[i, group], these.covariance[i, group], these.mean[j, group], these.covariance[j, group])
            assert np.isclose(found.gaussian[pair, group], gaussian_w2(*both) ** 2, atol=found.slack[pair, group])
            assert np.isclose(found.covariances[pair, group], descriptor_distance(*both) ** 2)


@given(seed=st.integers(0, 10_000), length=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_deviations_are_the_w2_of_diagonal_gaussians_and_below_that_of_others(seed: int, length: int) -> None:
    these = some(np.random.default_rng(seed), 4, 2, length)
    first, second = np.triu_indices(4, k=1)
    flat, whole = (pair_blocks(one, first, second) for one in (these.diagonal(), these))
    assert (np.abs(flat.deviations - flat.gaussian) <= flat.slack).all()
    assert np.allclose(flat.deviations, whole.deviations)
    assert (whole.deviations <= whole.gaussian + whole.slack).all()


def test_deviations_alone_do_not_see_correlations() -> None:
    covariances = np.array([[[[1.0, 0.9], [0.9, 1.0]]], [[[1.0, -0.9], [-0.9, 1.0]]]])
    found = pair_blocks(Gaussians.of(np.zeros((2, 1, 2)), covariances), np.array([0]), np.array([1]))
    assert found.deviations[0, 0] == 0
    assert found.gaussian[0, 0] > 0.5


def test_singular_covariances_have_no_upper_bound_and_unused_groups_do_not_count() -> None:
    low, high = constants(np.array(0.0), np.array(4.0))
    assert (float(low), float(high)) == (0.25, np.inf)
    covariances = np.stack([np.stack([np.eye(2), np.zeros((2, 2))])] * 2)
    these = Gaussians.of(np.zeros((2, 2, 2)), covariances)
    pair = (these, np.array([0]), np.array([1]))
    assert pair_constants(*pair, np.array([[True, True]]))[1] == np.inf
    assert pair_constants(*pair, np.array([[True, False]]))[1] == 1.0
