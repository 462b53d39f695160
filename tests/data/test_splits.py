"""Cutting a test part off: shares, classes and clients."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedflux.data.dataset import Examples
from fedflux.data.splits import hold_out, stratified_test_rows


def test_only_a_client_of_one_example_goes_without_test_part() -> None:
    client = np.array([0] + [1] * 2 + [2] * 10)
    y = np.array([0, 0, 1, *range(10)])
    train, test = hold_out(Examples(np.zeros((13, 1, 1, 1)), y, client))
    assert train.client is not None
    assert test.client is not None
    assert np.bincount(train.client).tolist() == [1, 1, 8]
    assert np.bincount(test.client, minlength=3).tolist() == [0, 1, 2]
