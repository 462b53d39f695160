"""Partitions of small and odd data, and the one line said about what cannot be dealt."""

import numpy as np
import pytest
from tests.data.making import error_of, owned, pictures

from fedflux.data import Dataset, Examples, Federation, Partition, partition
from fedflux.data.export import SPLITS
from fedflux.data.shifts.patterns import MIXES, SHIFTS


def made(shift: str, level: int = 5, clients: int = 4, data: Dataset | None = None, **more) -> Federation:
    return partition(pictures() if data is None else data, Partition(shift, level, clients, **more))


@pytest.mark.parametrize("shift", ["none", "px", "pygx", "pxgy"])
def test_clients_of_one_example(shift) -> None:
    federation = made(shift, clients=6, data=pictures(6, 3, classes=3))
    assert [[federation.size(k, split) for split in SPLITS] for k in range(6)] == [[1, 0, 1]] * 3 + [[1, 0, 0]] * 3
    lengths = [[len(federation.materialise(k, split)) for split in SPLITS] for k in range(6)]
    assert lengths == [[1, 0, 1]] * 3 + [[1, 0, 0]] * 3


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
@pytest.mark.parametrize("level", [1, 8])
def test_one_class_is_enough(shift, level) -> None:
    federation = made(shift, level, 2, data=pictures(40, 20, classes=1))
    labels = [federation.materialise(k, split).y for k in range(2) for split in SPLITS]
    assert {int(label) for part in labels for label in part} == {0}
    assert sum(map(len, labels)) == 60


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_an_empty_test_part_is_empty_for_everyone(shift) -> None:
    federation = made(shift, data=pictures(200, 0))
    for k in range(4):
        data = federation.materialise(k, "test")
        assert data.x.shape == (0, *federation.input_shape)
        assert data.y.shape == (0,)


def vectors() -> Dataset:
    x = np.random.default_rng(0).random((40, 1, 1, 7))
    examples = Examples(x, np.arange(40) % 4)
    return Dataset("vectors", examples, examples, 4)


@pytest.mark.parametrize("shift", ["px", "pxgy", "px+py", "pxgy+py"])
def test_feature_vectors_cannot_be_turned(shift) -> None:
    assert "vectors holds inputs of shape (1, 1, 7)" in error_of(lambda: made(shift, data=vectors()))
    assert "pictures holds inputs of shape (2, 6, 6)" in error_of(lambda: made(shift, data=pictures(channels=2)))


@pytest.mark.parametrize("shift", ["none", "py", "pygx", "dirichlet", "pygx+py"])
def test_feature_vectors_take_every_other_shift(shift) -> None:
    assert made(shift, 2, 2, vectors()).input_shape == (1, 1, 7)


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_more_clients_than_examples(shift) -> None:
    assert "201 clients but only 200 training examples" in error_of(lambda: made(shift, clients=201))
    assert "101 clients but only 100 " in error_of(lambda: made(shift, clients=101, data_fraction=0.5))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda: Partition(clients=0), "0 clients: a federation needs 1 or more"),
        (lambda: Partition(seed=-1), "seed -1"),
        (lambda: Partition(data_fraction=0), "data fraction 0 is outside"),
        (lambda: Partition(data_fraction=1.5), "data fraction 1.5 is outside"),
        (lambda: Partition(data_fraction=float("nan")), "data fraction nan is outside"),
        (lambda: Partition(quantity_skew=-0.1), "quantity skew -0.1 is outside"),
        (lambda: Partition(alpha=0), "alpha 0: Dirichlet needs a finite value above 0"),
        (lambda: Partition(alpha=float("inf")), "alpha inf"),
        (lambda: Partition(patterns="some"), "unknown patterns 'some'"),  # type: ignore[arg-type]
        (lambda: Partition("pxx"), "did you mean 'px'?"),
        (lambda: Partition("dirichlet", quantity_skew=0.5), "leave quantity skew at 0"),
        (lambda: made("px", 9), "level 9 does not exist"),
        (lambda: made("dirichlet", 0), "level 0 does not exist"),
        (lambda: made("pygx", strength=0.5), "soft skews of px and py"),
        (lambda: made("py", 8, clients=200), "keeps no training example under py level 8"),
        (lambda: partition(owned([5, 5]), Partition(clients=3)), "its own 2 clients; 3 were asked for"),
        (lambda: partition(owned([5, 5]), Partition("dirichlet")), "split by client already"),
        (lambda: partition(owned([5, 5]), Partition(quantity_skew=0.5)), "split by client already"),
        (lambda: partition(owned([5, 0]), Partition()), "client 'hospital 1' has no record"),
        (
            lambda: partition(owned([5, 0]), Partition(data_fraction=0.5)),
            "client 'hospital 1' has no record to train with",
        ),
    ],
)
def test_what_is_refused(how, says) -> None:
    assert says in error_of(how)
