"""What records of groups are worth: never more than records, never less than groups, and right on average."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedflux.descriptors.descriptor import effective_counts
from fedflux.descriptors.groups import alikeness


def records(
    rng: np.random.Generator, groups: int, size: int, rho: float, length: int = 4
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Latents of groups that share a part ρ of their variance, in two classes two deviations apart."""
    group = np.repeat(np.arange(groups), size)
    labels = rng.integers(0, 2, len(group))
    common, own = rng.normal(size=(groups, length))[group], rng.normal(size=(len(group), length))
    return np.sqrt(rho) * common + np.sqrt(1 - rho) * own + 2.0 * labels[:, None], labels, group


@given(st.integers(0, 1000), st.floats(0, 1))
def test_counts_lie_between_those_of_groups_and_of_records(seed: int, rho: float) -> None:
    rng = np.random.default_rng(seed)
    group, labels = rng.integers(0, 6, 40), rng.integers(0, 3, 40)
    rows = rng.integers(0, 30, 40)
    group = group[rows % 40]  # copies of a record are in its group
    some = effective_counts(rows, labels, 3, group, rho, rho)
    single, whole = effective_counts(rows, labels, 3), effective_counts(group, labels, 3)
    assert (some <= single + 1e-9).all()
    assert (some >= whole - 1e-9).all()
    assert np.allclose(effective_counts(rows, labels, 3, group, 0.0, 0.0), single)
    assert np.allclose(effective_counts(rows, labels, 3, group), whole)


def test_groups_of_one_change_nothing() -> None:
    rows, labels = np.arange(50), np.arange(50) % 3
    assert np.array_equal(effective_counts(rows, labels, 3), effective_counts(rows, labels, 3, rows + 7))


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_alikeness_is_found_and_errs_upward(rho: float) -> None:
    found = [alikeness(*records(np.random.default_rng(seed), 60, 8, rho)).within for seed in range(20)]
    assert rho - 0.02 < np.mean(found) < min(rho + 0.25, 1.0)


def test_the_count_says_how_far_means_scatter() -> None:
    rng = np.random.default_rng(0)
    means, worth = [], []
    for _ in range(300):
        z, labels, group = records(rng, 40, 6, 0.4)
        alike = alikeness(z, labels, group)
        rows = np.arange(len(group))
        worth.append(effective_counts(rows, labels, 2, group, alike.within, alike.overall)[1])
        means.append(z[labels == 0].mean(axis=0))
    scatter = np.var(means, axis=0).mean()
    assert 0.6 < (1 / np.mean(worth)) ** -1 * scatter < 1.05  # never fewer than it takes, and not many more


def test_few_groups_count_as_one_record_each() -> None:
    z, labels, group = records(np.random.default_rng(0), 3, 50, 0.1)
    assert alikeness(z, labels, group).within == 1.0


def test_labels_that_go_by_group_count_groups() -> None:
    z, _, group = records(np.random.default_rng(0), 60, 8, 0.0)
    alike = alikeness(z, (group % 2).astype(np.int64), group)
    assert alike.overall == pytest.approx(1.0)
    assert alike.within < 0.4
