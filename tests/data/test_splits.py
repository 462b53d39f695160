"""Cutting a test part off: shares, classes and clients."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflux.data.dataset import Examples
from fedflux.data.splits import hold_out, stratified_test_rows


@given(st.lists(st.integers(0, 4), min_size=1, max_size=100), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_share_of_every_class_is_test(labels, seed) -> None:
    y = np.array(labels)
    train, test = stratified_test_rows(y, 0.2, seed)
    assert sorted([*train, *test]) == list(range(len(y)))
    for label in np.unique(y):
        count = int((y == label).sum())
        assert (y[test] == label).sum() == round(0.2 * count)
        assert (y[train] == label).sum() >= 1


def test_a_class_of_one_example_stays_in_training() -> None:
    _, test = stratified_test_rows(np.array([0, 1, 1]), 1.0)
    assert sorted(test.tolist()) in ([1], [2])


def test_only_a_client_of_one_example_goes_without_test_part() -> None:
    client = np.array([0] + [1] * 2 + [2] * 10)
    y = np.array([0, 0, 1, *range(10)])
    train, test = hold_out(Examples(np.zeros((13, 1, 1, 1)), y, client))
    assert train.client is not None
    assert test.client is not None
    assert np.bincount(train.client).tolist() == [1, 1, 8]
    assert np.bincount(test.client, minlength=3).tolist() == [0, 1, 2]


def test_held_out_examples_keep_label_and_owner() -> None:
    rows = np.arange(60)
    train, test = hold_out(Examples(rows.reshape(60, 1, 1, 1).astype(np.uint8), rows % 4, rows % 3))
    assert (len(train), len(test)) == (48, 12)
    for part in (train, test):
        row = part.x.ravel().astype(int)
        assert part.client is not None
        assert np.array_equal(part.y, row % 4)
        assert np.array_equal(part.client, row % 3)
    assert sorted([*train.x.ravel(), *test.x.ravel()]) == rows.tolist()
