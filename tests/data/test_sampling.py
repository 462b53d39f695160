"""Rows drawn with reuse: which, how many, with which labels, and where copies may be."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare
from tests.data.making import error_of, owned, pictures

from fedflux.data import Dataset, Examples, Federation, Partition, partition
from fedflux.data.shifts.patterns import MIXES, SHIFTS, Pattern
from fedflux.data.shifts.sampling import RowPool
from fedflux.descriptors.descriptor import effective_counts

rng = partial(np.random.default_rng, 0)
DRAWN = [shift for shift in (*SHIFTS, *MIXES) if shift != "dirichlet"]


def made(shift: str = "none", clients: int = 6, samples: int = 20, data: Dataset | None = None, **more) -> Federation:
    return partition(data or pictures(), Partition(shift, 5, clients, samples_per_client=samples, **more))


@st.composite
def pools(draw) -> tuple[RowPool, NDArray[np.int64], NDArray[np.int64]]:
    y = np.array(draw(st.lists(st.integers(0, 4), min_size=1, max_size=40)))
    rows = np.array(sorted(draw(st.sets(st.integers(0, len(y) - 1), min_size=1))))
    return RowPool.of(rows, y, 5), y, rows


@given(pools(), st.integers(1, 50), st.sets(st.integers(0, 4), min_size=1))
def test_a_draw_has_different_rows_of_the_kept_classes(case, count, kept) -> None:
    pool, y, rows = case
    drawn = pool.draw(count, Pattern(kept=tuple(sorted(kept))), rng())
    fitting = {row for row in rows.tolist() if y[row] in kept}
    assert len(drawn) == len(set(drawn.tolist())) == min(count, len(fitting))
    assert set(drawn.tolist()) <= fitting
    assert set(pool.draw(count, Pattern(), rng()).tolist()) <= set(rows.tolist())


@given(pools(), st.integers(1, 50), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_a_weighted_draw_keeps_to_the_classes_that_weigh(case, count, weights) -> None:
    pool, y, rows = case
    drawn = pool.draw(count, Pattern(label_weights=tuple(weights)), rng()).tolist()
    assert len(drawn) == len(set(drawn)) <= count
    assert set(drawn) <= {row for row in rows.tolist() if weights[y[row]] > 0}


def test_every_fitting_row_is_equally_likely() -> None:
    y = np.array([0] * 5 + [1] * 20 + [2] * 10)
    pool, source = RowPool.of(np.arange(35), y, 3), rng()
    for pattern, fitting in ((Pattern(), range(35)), (Pattern(kept=(0, 2)), [*range(5), *range(25, 35)])):
        times = Counter(int(row) for _ in range(3000) for row in pool.draw(4, pattern, source))
        assert set(times) == set(fitting)
        assert chisquare(list(times.values())).pvalue > 1e-4


def test_weights_are_the_share_of_each_class() -> None:
    pool = RowPool.of(np.arange(3000), np.arange(3000) % 3, 3)
    drawn = pool.draw(1000, Pattern(label_weights=(0.1, 0.6, 0.3)), rng())
    assert np.bincount(drawn % 3) / 1000 == pytest.approx([0.1, 0.6, 0.3], abs=0.06)


@pytest.mark.parametrize("shift", DRAWN)
def test_every_client_has_its_sample_cut_in_three(shift) -> None:
    federation = made(shift, samples=20)
    for rows in federation.rows:
        assert (len(rows.train), len(rows.validation), len(rows.test)) == (16, 4, 10)  # 200 and 100 in the dataset
        both = np.concatenate([rows.train, rows.validation])
        assert len(set(both.tolist())) == 20
        assert len(set(rows.test.tolist())) == 10


@pytest.mark.parametrize(("samples", "tests"), [(1, 1), (2, 1), (3, 2), (40, 20), (1000, 100)])
def test_test_parts_keep_the_datasets_proportion(samples, tests) -> None:
    assert {len(rows.test) for rows in made(samples=samples).rows} == {tests}


def test_labels_follow_the_pattern_without_copies() -> None:
    federation = made("py", samples=30)
    for k in range(6):
        kept = federation.patterns[k].kept
        assert kept is not None
        for split in ("train", "validation", "test"):
            assert set(federation.materialise(k, split).y.tolist()) <= set(kept)
        data = federation.materialise(k, "train")
        assert effective_counts(data.rows, None, None)[0] == len(data) == 24


def test_clients_reuse_examples_and_differ() -> None:
    federation = made(clients=100, samples=50)
    times = Counter(row for rows in federation.rows for row in [*rows.train, *rows.validation])
    assert len(times) == 200
    assert min(times.values()) > 5
    assert len({tuple(rows.train.tolist()) for rows in federation.rows}) == 100


def test_a_client_does_not_depend_on_how_many_there_are() -> None:
    few, many = made("px+py", clients=3), made("px+py", clients=5000)
    for k in range(3):
        for split in ("train", "validation", "test"):
            assert few.materialise(k, split).x.equal(many.materialise(k, split).x)
    assert many.truth is not None
    assert few.truth is not None
    assert many.truth[:3].tolist() == few.truth.tolist()


def test_a_small_pool_is_copied_inside_its_part() -> None:
    federation = made(samples=1000, data=pictures(30, 10))
    for rows in federation.rows:
        assert (len(rows.train), len(rows.validation), len(rows.test)) == (800, 200, 10)
        assert len(set(rows.train.tolist())) == 24
        assert len(set(rows.validation.tolist())) == 6
        assert not set(rows.train.tolist()) & set(rows.validation.tolist())


def test_a_pool_of_one_and_a_client_of_one() -> None:
    one = made(samples=5, clients=3, data=pictures(1, 0, classes=1))
    assert [(len(r.train), len(r.validation), len(r.test)) for r in one.rows] == [(4, 0, 0)] * 3
    assert [(len(r.train), len(r.validation)) for r in made(samples=1).rows] == [(1, 0)] * 6


def test_the_pool_is_the_fraction_of_the_data_asked_for() -> None:
    federation = made(clients=50, data_fraction=0.1)
    assert len({row for rows in federation.rows for row in rows.train.tolist()}) <= 20


def one_class_of_ten() -> Dataset:
    examples = Examples(np.zeros((40, 1, 2, 2), dtype=np.uint8), np.zeros(40, dtype=np.int64))
    return Dataset("lacking", examples, examples, 10)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda: made(samples=0), "0 samples per client"),
        (lambda: made("dirichlet"), "dirichlet and quantity skew"),
        (lambda: made(quantity_skew=0.5), "dirichlet and quantity skew"),
        (lambda: partition(owned([5, 5]), Partition(samples_per_client=3)), "split by client already"),
        (lambda: partition(pictures(), Partition(clients=201)), "samples per client (drawn with reuse) allow more"),
        (lambda: made("py", clients=50, data=one_class_of_ten()), "keeps no training example under py"),
    ],
)
def test_what_is_refused(how, says) -> None:
    assert says in error_of(how)
