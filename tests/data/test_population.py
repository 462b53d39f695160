"""Populations made on demand: the same clients as those made at once, at the cost of those that are asked for."""

import pickle
import tracemalloc
from collections.abc import Sequence
from importlib import import_module

import numpy as np
import pytest
from tests.data.making import error_of, owned, pictures

from fedflux.data import Dataset, Examples, Federation, Partition, partition
from fedflux.data import cohort as cohort_module
from fedflux.data.export import SPLITS
from fedflux.data.lazy import Lazy
from fedflux.data.shifts.patterns import MIXES, SHIFTS
from fedflux.descriptors.descriptor import effective_counts

module = import_module("fedflux.data.partition")


def same(a: Federation, b: Federation, clients: Sequence[int]) -> None:
    for k in clients:
        assert a.patterns[k] == b.patterns[k]
        for split in SPLITS:
            one, other = a.materialise(k, split), b.materialise(k, split)
            assert one.x.equal(other.x)
            assert one.y.equal(other.y)
            assert np.array_equal(one.rows, other.rows)
            assert a.size(k, split) == len(one)


@pytest.mark.parametrize(
    ("shift", "samples"),
    [
        (shift, samples)
        for shift in (*SHIFTS, *MIXES)
        for samples in (None, 30)
        if (shift, samples) != ("dirichlet", 30)
    ],
)
def test_made_on_demand_or_at_once(shift, samples, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Partition(shift, 4, 5, samples_per_client=samples)
    at_once = partition(pictures(), how)
    monkeypatch.setattr(module, "EAGER", 0)
    on_demand = partition(pictures(), how)
    assert isinstance(at_once.rows, tuple)
    assert isinstance(on_demand.rows, Lazy)
    assert isinstance(on_demand.patterns, Lazy)
    same(at_once, on_demand, range(5))
    same(at_once, pickle.loads(pickle.dumps(on_demand)), range(5))
    if at_once.truth is None:
        assert on_demand.truth is None
    else:
        assert on_demand.truth is not None
        assert at_once.truth.tolist() == on_demand.truth.tolist()


def test_a_client_without_examples_is_found_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EAGER", 0)
    assert "client 'hospital 1' has no record to train with" in error_of(lambda: partition(owned([5, 0]), Partition()))
    federation = partition(pictures(), Partition("py", 8, 200))  # one example each, three classes kept of ten
    shares = partition(pictures(), Partition("none", 8, 200))
    y = pictures().train.y
    left = [y[shares.rows[k].train[0]] in (federation.patterns[k].kept or ()) for k in range(200)]
    with_one, without = left.index(True), left.index(False)
    assert federation.size(with_one, "train") == 1
    words = error_of(lambda: federation.materialise(without, "train"))
    assert f"client {without} keeps no training example under py level 8" in words


@pytest.mark.parametrize("shift", ["px", "py", "pygx", "pxgy", "px+py"])
def test_clients_nobody_asks_for_cost_next_to_nothing(shift) -> None:
    tracemalloc.start()
    federation = partition(pictures(1000, 200), Partition(shift, 4, 20_000, samples_per_client=50))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(federation) == len(federation.rows) == len(federation.patterns) == 20_000
    assert federation.truth is not None
    assert federation.truth.shape == (20_000,)
    assert peak < 20e6
    assert len(federation.materialise(19_999, "train")) == 40


@pytest.mark.parametrize("shift", ["none", "py", "px"])
def test_duplicates_repeat_the_training_part_alone(shift) -> None:
    data = pictures()
    once, thrice = (partition(data, Partition(shift, 4, 4, duplicate=n)) for n in (1, 3))
    for k in range(4):
        for split in ("validation", "test"):
            assert once.materialise(k, split).x.equal(thrice.materialise(k, split).x)
        one, stored = once.materialise(k, "train"), thrice.materialise(k, "train")
        assert stored.x.equal(one.x)
        assert thrice.stored(k, "train") == len(stored.x) == len(stored.y) == len(stored.rows) == len(one)
        assert thrice.size(k, "train") == len(stored) == len(stored.features()) == 3 * len(one)
        three = stored.repeated()
        assert three.copies == 1
        assert len(three) == 3 * len(one)
        assert three.x.equal(one.x.repeat(3, 1, 1, 1))
        assert three.y.equal(one.y.repeat(3))
        assert three.rows.tolist() == one.rows.tolist() * 3
        assert not set(three.rows.tolist()) & set(thrice.materialise(k, "validation").rows.tolist())
        alike = effective_counts(one.rows, one.y.numpy(), 10), effective_counts(three.rows, three.y.numpy(), 10)
        assert alike[0] == pytest.approx(alike[1])  # copies are no evidence
    assert thrice.cohort([0, 1]).sizes("train").tolist() == [3 * once.size(k, "train") for k in (0, 1)]


def test_copies_of_a_softly_turned_image_are_copies() -> None:
    data = partition(pictures(), Partition("px", 4, 2, strength=0.3, duplicate=2)).materialise(0, "train")
    half = len(data.x)
    assert len(data) == 2 * half
    whole = data.repeated()
    assert whole.x[:half].equal(whole.x[half:])


def test_data_with_its_own_clients_may_be_repeated() -> None:
    assert partition(owned([5, 10]), Partition(duplicate=4)).size(1, "train") == 32
    assert "duplicate 0" in error_of(lambda: Partition(duplicate=0))


def ids_of(parts) -> list[tuple[int, ...]]:
    return [part.ids for part in parts]


def test_parts_of_a_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = partition(pictures(), Partition("none", 4, 5))  # 32 training, 8 validation, 20 test images of 36 bytes
    cohort = federation.cohort([0, 1, 2, 4], round=3)
    assert ids_of(cohort.parts("train")) == [(0, 1, 2, 4)]
    assert {part.round for part in cohort.parts()} == {3}
    monkeypatch.setattr(cohort_module, "PART_CLIENTS", 3)
    assert ids_of(cohort.parts()) == ids_of(cohort.parts("test")) == [(0, 1, 2), (4,)]
    monkeypatch.setattr(cohort_module, "PART_BYTES", 2 * 36 * 20)
    assert ids_of(cohort.parts("test")) == [(0, 1), (2, 4)]
    assert ids_of(cohort.parts("train", "validation")) == [(0,), (1,), (2,), (4,)]  # each alone is too large already
    assert ids_of(federation.cohort([]).parts("test")) == []


def test_parts_without_a_split_make_no_client() -> None:
    x = np.zeros((10, 1, 2, 2), dtype=np.uint8)
    data = Dataset("tiny", Examples(x, np.zeros(10, np.int64)), Examples(x, np.zeros(10, np.int64)), 1)
    federation = partition(data, Partition("none", 4, 5000, samples_per_client=3))
    assert [len(part) for part in federation.cohort(range(5000)).parts()] == [1000] * 5
