"""Federations and cohorts: what algorithms see, and what stays locked away."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from tests.data.making import error_of, pictures

from fedflux.data import Features, Federation, Labelled, Partition, partition
from fedflux.data.export import SPLITS


def made(shift: str = "px", clients: int = 5, **more) -> Federation:
    return partition(pictures(), Partition(shift, 5, clients, **more))


@pytest.mark.parametrize("shift", ["px", "py", "pygx", "pxgy", "px+py"])
def test_a_blind_federation_hides_truth_and_patterns_but_makes_the_same_data(shift) -> None:
    seeing, blind = made(shift), made(shift).blind()
    assert seeing.truth is not None
    assert "may not read the true clusters" in error_of(lambda: blind.truth)
    assert "may not read the clients' patterns" in error_of(lambda: blind.patterns[0])
    assert "may not read the clients' patterns" in error_of(lambda: list(blind.patterns))
    assert "may not read the clients' patterns" in error_of(lambda: seeing.patterns[0] in blind.patterns)
    assert len(blind.patterns) == len(blind) == 5
    for k in range(5):
        for split in SPLITS:
            a, b = seeing.materialise(k, split), blind.materialise(k, split)
            assert a.x.equal(b.x)
            assert a.y.equal(b.y)


def test_blinding_leaves_the_original_seeing_and_can_be_repeated() -> None:
    federation = made()
    twice = federation.blind().blind()
    assert federation.truth is not None
    assert federation.patterns[0] is not None
    assert "may not read" in error_of(lambda: twice.truth)
    assert twice.materialise(0, "train").x.equal(federation.materialise(0, "train").x)


def test_a_blind_federation_does_not_print_its_secrets() -> None:
    assert "rotation" in repr(made().patterns)
    assert "rotation" not in repr(made().blind().patterns)


def test_features_carry_no_labels() -> None:
    cohort = made().cohort([0, 1])
    for features, k in zip(cohort.features("test"), cohort, strict=True):
        assert type(features) is Features
        assert not isinstance(features, Labelled)
        assert list(vars(features)) == ["x", "copies"]
        assert features.x.equal(cohort.data(k, "test").x)
        assert len(features) == 20


def test_a_cohort_is_in_id_order() -> None:
    federation = made()
    cohort = federation.cohort(np.array([4, 0, 3]), round=7)
    assert cohort.ids == (0, 3, 4)
    assert list(cohort) == [0, 3, 4]
    assert len(cohort) == 3
    assert cohort.round == 7
    assert all(type(k) is int for k in cohort)
    assert cohort.data(3, "train").x.equal(federation.materialise(3, "train").x)


def test_sizes_follow_the_cohort() -> None:
    federation = made("none", quantity_skew=0.5)
    sizes = federation.cohort([4, 2]).sizes("train")
    assert sizes.tolist() == [len(federation.rows[2].train), len(federation.rows[4].train)]
    assert sizes.dtype == np.float64


def test_shape_and_classes() -> None:
    federation = made()
    assert (len(federation), federation.classes, federation.input_shape) == (5, 10, (3, 6, 6))
    assert federation.materialise(1, "validation").x.shape == (8, 3, 6, 6)


def test_rows_tell_which_examples_are_copies() -> None:
    data = made("py").materialise(0, "train")
    assert len(data.rows) == len(data)
    by_row: dict[int, bytes] = {}
    for row, x in zip(data.rows.tolist(), data.x, strict=True):
        assert by_row.setdefault(row, x.numpy().tobytes()) == x.numpy().tobytes()
    assert len(set(by_row.values())) == len(by_row) < len(data)


def test_tensors_are_kept_until_they_are_too_many() -> None:
    federation = made()
    first = federation.materialise(0, "train")
    assert federation.materialise(0, "train") is first
    assert federation.blind().materialise(0, "train") is first
    one = first.x.nbytes + first.y.nbytes + first.rows.nbytes
    federation = replace(federation, cache_bytes=2 * one)
    for k in range(5):
        federation.materialise(k, "train")
        assert len(federation._cache) <= 2
    again = federation.materialise(0, "train")
    assert again is not first
    assert again.x.equal(first.x)


def test_clients_may_change_their_tensors_without_touching_the_dataset() -> None:
    data = pictures()
    before = data.checksum
    federation = partition(data, Partition("none", 1, 2))
    for split in SPLITS:
        federation.materialise(0, split).x.zero_()
        federation.materialise(0, split).y.zero_()
    assert pictures().checksum == before
    assert np.array_equal(data.train.x, pictures().train.x)
    assert np.array_equal(data.train.y, pictures().train.y)


@pytest.mark.parametrize("more", [{}, {"strength": 0.5}, {"duplicate": 3}])
def test_a_limited_federation_holds_a_fixed_sample_of_the_same_examples(more) -> None:
    federation = made(**more)
    limited = federation.limited(7)
    assert limited is federation.limited(7)
    assert limited is not federation.limited(8)
    for k in range(5):
        whole, some = federation.materialise(k, "train"), limited.materialise(k, "train")
        assert len(some) == limited.size(k, "train") == 7
        positions = [whole.rows.tolist().index(row) for row in some.rows]
        assert some.x.equal(whole.x[positions])
        assert some.y.equal(whole.y[positions])
        assert len(set(some.rows)) == 7
        assert limited.materialise(k, "test").x.equal(federation.materialise(k, "test").x)
    again = made(**more).limited(7)
    np.testing.assert_array_equal(again.materialise(2, "train").rows, limited.materialise(2, "train").rows)


def test_a_cohort_is_limited_only_where_somebody_holds_more() -> None:
    federation = made()
    cohort = federation.cohort([1, 3], round=2)
    held = federation.size(1, "train")
    assert cohort.limited(held) is cohort
    few = cohort.limited(5)
    assert few.federation is federation.limited(5)
    assert (few.ids, few.round) == ((1, 3), 2)
    assert few.sizes("train").tolist() == [5, 5]
    assert federation.limited(10**6).size(1, "train") == held


def test_a_blind_federation_is_limited_blindly_and_samples_do_not_travel() -> None:
    federation = made()
    federation.limited(5)
    assert "may not read" in error_of(lambda: federation.blind().limited(5).truth)
    assert pickle.loads(pickle.dumps(federation))._derived == {}
