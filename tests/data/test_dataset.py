"""What a dataset refuses before any client holds it."""

from dataclasses import replace

import numpy as np
import pytest
from tests.data.making import error_of, owned, pictures

from fedflux.data import Dataset, Examples

X, Y = np.zeros((4, 1, 3, 3), np.uint8), np.array([0, 1, 0, 1])
GOOD = Examples(X, Y)


def broken(**changes) -> Dataset:
    return Dataset("mine", Examples(**{"x": X, "y": Y, **changes}), GOOD, 2)


def test_a_good_dataset_tells_its_shape() -> None:
    assert Dataset("mine", GOOD, GOOD, 2).input_shape == (1, 3, 3)
    assert len(Dataset("mine", GOOD, Examples(X[:0], Y[:0]), 2).test) == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: broken(x=X[:, 0, 0, 0]), "training part: inputs must have shape (N, …) with at least one feature"),
        (lambda: broken(x=X[:3]), "training part: 3 records but 4 labels"),
        (
            lambda: broken(y=Y[:, None]),
            "training part: labels must have shape (N,), or (N, 2) for several a record, not (4, 1)",
        ),
        (
            lambda: Dataset("mine", GOOD, Examples(X, np.eye(2)[Y]), 2),
            "test part: labels must have shape (N,), not (4, 2)",
        ),
        (lambda: broken(x=X.astype(str)), "inputs of type <U3; give numbers"),
        (lambda: broken(x=X + np.inf), "record 0 holds NaN or infinite values"),
        (lambda: broken(y=Y / 2), "labels of type float64"),
        (lambda: broken(y=Y + 1), "label 2 of example 1 is outside 0 to 1"),
        (lambda: broken(y=Y - 1), "label -1 of example 0 is outside 0 to 1"),
        (lambda: Dataset("mine", Examples(X[:0], Y[:0]), GOOD, 2), "the training part holds no example"),
        (lambda: Dataset("mine", GOOD, Examples(X[..., :2], Y), 2), "test part: inputs of shape (1, 3, 2)"),
        (lambda: Dataset("mine", GOOD, Examples(X / 255, Y), 2), "test part: inputs of type float64, but training"),
        (lambda: broken(client=Y), "client ids or clusters without client names"),
        (lambda: replace(owned([2, 2]), client_names=None), "client ids or clusters without client names"),
        (lambda: replace(owned([2, 2]), client_names=("a",)), "training part: client ids must be integers 0 to 0"),
        (lambda: replace(owned([2, 2]), client_clusters=np.array([1])), "2 client names but 1 client clusters"),
        (lambda: replace(pictures(), client_names=("a",)), "training part: 1 client names but no client ids"),
        (lambda: replace(owned([2, 2]), test=Examples(X[:, :, :1], Y)), "test part: inputs of shape (1, 1, 3)"),
        (lambda: broken(client=Y[:3]), "4 labels but 3 client ids"),
        (lambda: Dataset("mine", GOOD, GOOD, 2, class_names=("cat",)), "2 classes but 1 class names"),
    ],
)
def test_what_is_refused(make, says) -> None:
    assert says in error_of(make)


def test_the_checksum_follows_every_array() -> None:
    first = owned([2, 2])
    assert owned([2, 2]).checksum == first.checksum
    train, test = first.train, first.test
    assert train.client is not None
    x, y, client = train.x.copy(), train.y.copy(), train.client[::-1].copy()
    x[0, 0, 0, 0] ^= 1
    y[0] = (y[0] + 1) % 3
    others = [
        replace(first, train=Examples(x, train.y, train.client)),
        replace(first, train=Examples(train.x, y, train.client)),
        replace(first, train=Examples(train.x, train.y, client)),
        replace(first, train=test, test=train),
    ]
    assert len({first.checksum, *(other.checksum for other in others)}) == 5
