"""Which rows each client gets: every row once, sizes as asked, and copies only inside their split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.making import error_of

from fedflux.data.shifts.allocation import deal_dirichlet, deal_existing, deal_shares, select_labels, split_validation
from fedflux.data.shifts.patterns import Pattern
from fedflux.descriptors.descriptor import effective_counts

seeds = st.integers(0, 2**32)


def every_row_once(shares: list[np.ndarray], count: int) -> bool:
    return sorted(np.concatenate(shares).tolist()) == list(range(count))


@given(seeds, st.integers(0, 300), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_shares_are_equal_and_hold_every_row_once(seed, count, clients) -> None:
    shares = deal_shares(count, clients, seed, "train")
    assert len(shares) == clients
    assert every_row_once(shares, count)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert all(share.dtype == np.int64 for share in shares)


def test_rows_are_shuffled_by_seed_and_purpose() -> None:
    first = np.concatenate(deal_shares(100, 4, 1, "train"))
    assert not np.array_equal(first, np.arange(100))
    assert np.array_equal(first, np.concatenate(deal_shares(100, 4, 1, "train")))
    assert not np.array_equal(first, np.concatenate(deal_shares(100, 4, 2, "train")))
    assert not np.array_equal(first, np.concatenate(deal_shares(100, 4, 1, "test")))


@given(seeds, st.integers(1, 300), st.integers(1, 40), st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_skewed_sizes_still_hold_every_row_once(seed, count, clients, skew) -> None:
    shares = deal_shares(count, clients, seed, "train", skew)
    assert len(shares) == clients
    assert every_row_once(shares, count)
    if count >= clients:
        assert min(map(len, shares)) >= 1


def test_skew_grows_with_its_strength() -> None:
    spreads = [np.std([len(s) for s in deal_shares(10_000, 10, 3, "train", skew)]) for skew in (0, 0.1, 0.3, 0.6, 1)]
    assert (np.diff(spreads) > 0).all()
    assert max(len(s) for s in deal_shares(10_000, 10, 3, "train", 1.0)) > 9_000


@given(seeds, st.integers(1, 8), st.integers(1, 6), st.floats(0.5, 20))
@settings(max_examples=40, deadline=None)
def test_dirichlet_deals_every_row_once_in_equal_proportions(seed, clients, classes, alpha) -> None:
    rng = np.random.default_rng(seed)
    train_y, test_y = rng.integers(0, classes, 400), rng.integers(0, classes, 150)
    train, test = deal_dirichlet((train_y, test_y), classes, clients, seed, alpha)
    assert every_row_once(train, 400)
    assert every_row_once(test, 150)
    assert min(map(len, train)) >= 2
    for label in range(classes):
        totals = (train_y == label).sum(), (test_y == label).sum()
        if min(totals) == 0:
            continue
        for mine, held in zip(train, test, strict=True):
            shares = (train_y[mine] == label).sum() / totals[0], (test_y[held] == label).sum() / totals[1]
            assert abs(shares[0] - shares[1]) <= 1 / totals[0] + 1 / totals[1] + 1e-9  # each count is rounded by ≤ 1


def test_alpha_decides_how_unequal_classes_are_dealt() -> None:
    y = np.repeat(np.arange(10), 1000)

    def largest_share(alpha: float) -> float:
        train, _ = deal_dirichlet((y, y), 10, 10, 7, alpha)
        return float(np.mean([np.bincount(y[rows], minlength=10).max() / len(rows) for rows in train]))

    assert largest_share(1e6) < 0.12
    assert largest_share(1.0) < largest_share(0.1)
    assert largest_share(0.1) > 0.5


def test_dirichlet_moments() -> None:
    """A share of Dirichlet(α,…,α) over K clients has mean 1/K and variance (K−1) / (K²(Kα+1))."""
    y = np.repeat(np.arange(2000), 60)
    train, _ = deal_dirichlet((y, y[:0]), 2000, 3, 0, 2.0)
    shares = np.array([np.bincount(y[rows], minlength=2000) / 60 for rows in train])
    assert np.allclose(shares.mean(axis=1), 1 / 3, atol=0.02)
    assert np.allclose(shares.var(axis=1), 2 / (9 * 7), rtol=0.15)


def test_dirichlet_that_cannot_be_dealt_says_so() -> None:
    y = np.zeros(9, int)
    message = error_of(lambda: deal_dirichlet((y, y), 1, 5, 0, 1.0))
    assert "9 examples at 5 clients" in message


@given(st.lists(st.integers(0, 6), min_size=0, max_size=60))
@settings(max_examples=60, deadline=None)
def test_existing_clients_keep_their_rows_in_order(client) -> None:
    ids = np.array(client, np.int64)
    shares = deal_existing(ids, 7)
    assert [share.tolist() for share in shares] == [np.flatnonzero(ids == k).tolist() for k in range(7)]


@given(seeds, st.integers(0, 120), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_validation_is_a_fifth_and_the_rest_trains(seed, count, client) -> None:
    rows = np.arange(1000, 1000 + count)
    train, validation = split_validation(rows, 0.2, seed, client)
    assert sorted([*train, *validation]) == rows.tolist()
    assert len(validation) == count // 5


def test_validation_is_drawn_not_cut_off() -> None:
    rows = np.arange(100)
    _, first = split_validation(rows, 0.2, 0, 0)
    _, second = split_validation(rows, 0.2, 0, 1)
    assert sorted(first) != sorted(second)
    assert sorted(first) != list(range(20))


@st.composite
def labelled_rows(draw):
    y = np.array(draw(st.lists(st.integers(0, 5), min_size=1, max_size=80)))
    rows = np.array(draw(st.permutations(range(len(y)))), np.int64)[: draw(st.integers(0, len(y)))]
    kept = tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=1))))
    return y, rows, kept


@given(labelled_rows(), seeds)
@settings(max_examples=150, deadline=None)
def test_kept_classes_stay_once_and_are_topped_up(case, seed) -> None:
    y, rows, kept = case
    chosen = select_labels(rows, y, Pattern(kept=kept), np.random.default_rng(seed))
    originals = [row for row in rows.tolist() if y[row] in kept]
    assert set(chosen.tolist()) == set(originals), "every original stays, and nothing comes from outside the split"
    assert chosen[: len(originals)].tolist() == originals
    assert len(chosen) == (len(rows) if originals else 0)


def test_the_top_up_is_drawn_at_random_from_all_that_is_kept() -> None:
    y = np.repeat([0, 1], 500)
    chosen = select_labels(np.arange(1000), y, Pattern(kept=(0,)), np.random.default_rng(0))
    copies = np.bincount(chosen, minlength=1000)
    assert copies[500:].sum() == 0
    assert copies[:500].min() == 1
    extra = copies[:500] - 1  # 500 draws over 500 rows: Poisson(1), so about e^−1 are not drawn again
    assert abs((extra == 0).mean() - np.exp(-1)) < 0.07
    assert extra.max() >= 3


def test_without_a_label_shift_rows_are_left_alone() -> None:
    rows = np.array([4, 2, 9])
    assert select_labels(rows, np.zeros(10, int), Pattern(), np.random.default_rng(0)) is rows


def test_copies_lower_the_effective_count() -> None:
    """Kish: n²/Σc², computed here from the copies of each row."""
    y = np.arange(100) % 10
    rows = np.arange(100)
    chosen = select_labels(rows, y, Pattern(kept=(0, 1, 2)), np.random.default_rng(0))
    copies = np.bincount(chosen)
    expected = 100**2 / (copies**2).sum()
    assert len(np.unique(chosen)) == 30
    effective = effective_counts(chosen, y[chosen], 10)
    assert effective[0] == pytest.approx(expected, rel=1e-5)
    assert effective[0] < 31
    plain = effective_counts(rows, y[rows], 10)
    assert plain[0] == pytest.approx(100)


@given(labelled_rows(), seeds)
@settings(max_examples=100, deadline=None)
def test_weighted_labels_keep_the_size_and_the_split(case, seed) -> None:
    y, rows, kept = case
    weights = tuple(1.0 if label in kept else 0.0 for label in range(6))
    chosen = select_labels(rows, y, Pattern(label_weights=weights), np.random.default_rng(seed))
    originals = [row for row in rows.tolist() if y[row] in kept]
    assert set(chosen.tolist()) <= set(originals)
    assert len(chosen) == (len(rows) if originals else 0)


def test_weighted_labels_follow_their_weights_and_copy_only_when_they_must() -> None:
    y = np.repeat([0, 1, 2], 2000)
    weights = (0.6, 0.3, 0.1)
    chosen = select_labels(np.arange(6000), y, Pattern(label_weights=weights), np.random.default_rng(0))
    counts = np.bincount(y[chosen], minlength=3)
    assert np.allclose(counts / 6000, weights, atol=0.03)
    copies = np.bincount(chosen, minlength=6000)
    assert copies[:2000].min() == 1, "a class that needs more than it has uses every original first"
    assert copies[2000:].max() == 1, "a class that has enough gives no copy"
