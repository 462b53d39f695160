"""Drift: what a SPEC means, what clients hold at every moment, and chunks of it."""

import pickle
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.data.making import error_of, pictures

from fedflux.data import Federation, Partition, partition
from fedflux.data.cache import ByteCache
from fedflux.data.export import SPLITS
from fedflux.data.federation import DERIVED
from fedflux.data.shifts.drift import Drift, Stage

SHIFTS = ["px", "py", "pygx", "pxgy", "px+py", "pygx+py"]


def made(shift: str = "px", drift: str | None = "after:4,7+test", clients: int = 5, **more: Any) -> Federation:
    return partition(pictures(), Partition(shift, 5, clients, drift=drift, **more))


def truth(federation: Federation) -> NDArray[np.int64]:
    assert federation.truth is not None
    return federation.truth


def stages(spec: str, rounds: int) -> list[Stage]:
    return [Drift.parse(spec).stage(r) for r in range(1, rounds + 1)]


def same_data(one: Federation, other: Federation, client: int = 0) -> bool:
    pairs = [(one.materialise(client, split), other.materialise(client, split)) for split in SPLITS]
    return all(a.x.equal(b.x) and a.y.equal(b.y) for a, b in pairs)


def test_new_patterns_begin_after_the_rounds_that_are_named() -> None:
    assert [stage.new for stage in stages("after:2,4", 6)] == [0, 0, 1, 1, 2, 2]
    assert all(stage.settled for stage in stages("after:2,4", 6))
    assert Drift.parse("after:2,4").epochs == 3


def test_gradual_drift_grows_in_equal_steps_and_ends_whole() -> None:
    assert stages("gradual:3-5", 6) == [
        Stage(0, 0), Stage(0, 0), Stage(0, 1, 1 / 3), Stage(0, 1, 2 / 3), Stage(1, 1), Stage(1, 1),
    ]  # fmt: skip


def test_recurring_drift_alternates_between_two() -> None:
    assert [stage.new for stage in stages("recurring:2", 7)] == [0, 0, 1, 1, 0, 0, 1]
    assert Drift.parse("recurring:2").epochs == 2


@pytest.mark.parametrize(
    ("spec", "changes"),
    [("after:4,7", [5, 8]), ("gradual:3-5", [3, 4, 5]), ("recurring:4", [5, 9]), ("test", []), ("after:4+test", [5])],
)
def test_rounds_with_changes_are_named(spec: str, changes: list[int]) -> None:
    assert Drift.parse(spec).changes(10) == changes


def test_a_test_drift_is_one_more_draw() -> None:
    drift = Drift.parse("after:4,7+test")
    assert drift.at_test(10) == Stage(3, 3)
    assert drift.epochs == 4
    assert Drift.parse("test").at_test(10) == Stage(1, 1)
    assert Drift.parse("recurring:3").at_test(10) == Drift.parse("recurring:3").stage(10)


@pytest.mark.parametrize(
    "spec",
    ["", "soon", "after",
     "after:", "after:0", "after:7,4", "after:4,4", "after:4.5", "gradual:4", "gradual:5-5", "test:3",
     "test:", "after:2+test:", "recurring:0", "after:2+gradual:3-4", "after:2+after:3", "after:2++test"],
)  # fmt: skip
def test_a_wrong_spec_is_refused_in_one_line(spec: str) -> None:
    assert f"--drift '{spec}'" in error_of(lambda: Partition("px", drift=spec))


@pytest.mark.parametrize(
    ("spec", "same"),
    [("after:02,4", "after:2,4"), ("test+after:2", "after:2+test"), ("gradual:03-5", "gradual:3-5"),
     ("test + recurring:03", "recurring:3+test"), ("test", "test")],
)  # fmt: skip
def test_a_spec_has_one_way_of_writing(spec: str, same: str) -> None:
    assert Drift.parse(spec).spec == same
    assert Drift.parse(same) == Drift.parse(spec)


def test_a_drift_needs_patterns_and_enough_rounds() -> None:
    assert "none has none" in error_of(lambda: Partition("none", drift="test"))
    assert "dirichlet has none" in error_of(lambda: Partition("dirichlet", drift="test"))
    for spec in ("after:1", "gradual:1-2", "recurring:1", "after:1+test"):
        assert "give --rounds 2 or more" in error_of(partial(Drift.parse(spec).check_rounds, 1))
    Drift.parse("test").check_rounds(1)
    assert "give 9 or less" in error_of(lambda: Drift.parse("after:4,10").check_rounds(10))
    Drift.parse("after:4,9+test").check_rounds(10)
    Drift.parse("gradual:4-10").check_rounds(10)


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_first_epoch_is_the_federation_without_drift(shift: str) -> None:
    plain, drifting = made(shift, None), made(shift)
    np.testing.assert_array_equal(drifting.at(4).truth, drifting.truth)
    for k in range(5):
        assert same_data(plain, drifting.at(4), k)
        assert plain.patterns[k] == drifting.patterns[k] == drifting.at(1).patterns[k]


@pytest.mark.parametrize("shift", SHIFTS)
def test_later_epochs_are_new_draws_of_the_same_deal(shift: str) -> None:
    federation = made(shift, clients=8)
    epochs = [federation.at(1), federation.at(5), federation.at(8), federation.at_test(10)]
    for before, after in pairwise(epochs):
        changed = [k for k in range(8) if before.patterns[k].content() != after.patterns[k].content()]
        assert changed
        assert [k for k in range(8) if truth(before)[k] != truth(after)[k]] == changed
        assert not same_data(before, after, changed[0])
        for k in range(8):  # nobody gets another's examples
            others = np.concatenate([before.rows[j].train for j in range(8) if j != k])
            assert not np.isin(after.rows[k].train, others).any()
            assert len(after.rows[k].train) == len(before.rows[k].train)


def test_equal_patterns_have_equal_numbers_in_all_epochs() -> None:
    federation = made("px", clients=30)
    number: dict[Any, int] = {}
    for stage in (federation.at(1), federation.at(5), federation.at(8), federation.at_test(10)):
        for k in range(30):
            assert number.setdefault(stage.patterns[k], truth(stage)[k]) == truth(stage)[k]
    assert len(set(number.values())) == len(number)


def test_recurring_patterns_come_back() -> None:
    federation = made("pxgy", "recurring:2")
    assert federation.at(1) is federation.at(2) is federation.at(5)
    assert federation.at(3) is federation.at(4)
    assert not same_data(federation.at(1), federation.at(3))


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_gradual_drift_shows_more_and_more_of_the_new_pattern(shift: str) -> None:
    federation = made(shift, "gradual:2-6")
    old, new = federation.at(1), federation.at(6)
    client = next(k for k in range(5) if truth(old)[k] != truth(new)[k])
    last = 0
    for r in (2, 3, 4, 5):
        now = federation.at(r).materialise(client, "train")
        assert len(now) == federation.at(r).size(client, "train") == old.size(client, "train")
        kept, taken = federation.at(r)._turns(client, "train")
        assert len(taken) > last
        last = len(taken)
        a, b = old.materialise(client, "train"), new.materialise(client, "train")
        assert now.x[: len(kept)].equal(a.x[kept])
        assert now.y[len(kept) :].equal(b.y[taken])
        rows, labels = federation.at(r).source_rows(client, "train"), federation.at(r).labels(client, "train")
        np.testing.assert_array_equal(rows, now.rows)
        np.testing.assert_array_equal(labels, now.y.numpy())
        assert truth(federation.at(r))[client] not in (truth(old)[client], truth(new)[client])


def test_a_cohort_is_of_its_round_and_stays_there() -> None:
    federation = made()
    cohort = federation.cohort([1, 3], 5)
    assert cohort.federation is federation.at(5) is federation.at(7)
    assert cohort.federation.cohort([0]).federation is cohort.federation
    assert cohort.federation.at(9) is cohort.federation
    assert made(drift=None).cohort([0], 5).federation.at(3).truth is not None


def test_a_blind_federation_drifts_blindly() -> None:
    blind = made().blind()
    for stage in (blind.at(1), blind.at(5), blind.at_test(10), made(drift="gradual:2-6").blind().at(3)):
        assert "may not read the true clusters" in error_of(partial(getattr, stage, "truth"))
        assert "may not read the clients' patterns" in error_of(partial(list, stage.patterns))
    assert same_data(blind.at(5), made().at(5))
    for one in (blind, blind.at(5).origin, pickle.loads(pickle.dumps(blind))):
        assert one._epochs is not None
        for epoch in one._epochs.drawn:
            assert epoch.truth is None
            assert "may not read the clients' patterns" in error_of(partial(list, epoch.patterns))
    halfway = made(drift="gradual:2-6").at(3).blind()._newer
    assert halfway is not None
    assert "may not read the true clusters" in error_of(partial(getattr, halfway[0], "truth"))


@pytest.mark.parametrize("shift", ["px", "py"])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_chunks_are_disjoint_and_whole(shift: str, count: int) -> None:
    federation = made(shift, None)
    rows = federation.rows[0]
    again = replace(rows, train=np.concatenate([rows.train, rows.train[::2], rows.train[::3]]))
    federation = replace(federation, rows=(again, *federation.rows[1:]))
    whole = federation.materialise(0, "train")
    assert len(set(whole.rows.tolist())) < len(whole)
    parts = [federation.chunks(i, i + 1, count).materialise(0, "train") for i in range(count)]
    assert sorted(np.concatenate([part.rows for part in parts]).tolist()) == sorted(whole.rows.tolist())
    for i, part in enumerate(parts):
        assert len(part) == federation.chunks(i, i + 1, count).stored(0, "train")
        for other in parts[i + 1 :]:
            assert not np.isin(part.rows, other.rows).any()  # copies too
    several = federation.chunks(0, 2, count).materialise(0, "train")
    assert sorted(several.rows.tolist()) == sorted(np.concatenate([parts[0].rows, parts[1].rows]).tolist())
    assert federation.chunks(1, 2, count).materialise(0, "test").x.equal(federation.materialise(0, "test").x)


def test_a_chunk_shows_what_its_rows_show_in_the_whole() -> None:
    federation = made("pygx", None, duplicate=3).at(1)
    whole, part = federation.materialise(2, "train"), federation.chunks(1, 2, 4).materialise(2, "train")
    for row, x, y in zip(part.rows, part.x, part.y, strict=True):
        place = int(np.flatnonzero(whole.rows == row)[0])
        assert x.equal(whole.x[place])
        assert y == whole.y[place]
    assert part.copies == 3


def test_clients_with_fewer_examples_than_chunks_are_left_out_where_they_have_none() -> None:
    federation = made("px", None, clients=20)
    cohorts = [federation.cohort(range(20)).chunks(i, i + 1, 50) for i in range(50)]
    assert len(cohorts[0]) == 20  # everyone has a first chunk
    assert min(map(len, cohorts)) == 0
    held = sum(cohort.sizes("train").sum() for cohort in cohorts)
    assert held == federation.cohort(range(20)).sizes("train").sum()


def test_asked_again_a_stage_or_chunk_is_the_same_object_and_old_ones_are_forgotten() -> None:
    federation = made("px", "after:1,2,3,4,5,6,7")
    first = federation.at(1)
    first.materialise(0, "train")
    first.chunks(0, 1, 3).materialise(0, "train")
    assert federation.at(1) is first
    assert first.chunks(0, 1, 3) is first.chunks(0, 1, 3)
    chunk = first.chunks(0, 1, 3)
    for r in range(2, DERIVED + 2):
        federation.at(r)
    assert len(first._cache) == len(chunk._cache) == 0
    assert federation.at(1) is not first
    assert same_data(federation.at(1), first)


def test_all_stages_and_chunks_together_keep_no_more_than_is_allowed() -> None:
    federation = made("px", "after:1,2,3")
    one = federation.materialise(0, "train")
    federation = replace(
        federation, cache_bytes=3 * (one.x.nbytes + one.y.nbytes + one.rows.nbytes), _cache=ByteCache()
    )
    views = [
        federation,
        *(federation.at(r) for r in (1, 2, 3)),
        *(federation.at(3).chunks(i, i + 1, 2) for i in (0, 1)),
    ]
    for view in (*views, *reversed(views)):
        for client in range(5):
            view.materialise(client, "train")
            held = {id(v._cache): v._cache.nbytes for v in views}
            assert 0 < sum(held.values()) <= federation.cache_bytes
    fresh = made("px", "after:1,2,3")
    assert all(same_data(federation.at(r), fresh.at(r)) for r in (1, 2, 3))
    first = federation.at(1)
    first.materialise(0, "test")
    federation.at(2).materialise(0, "test")
    first._forget()
    assert federation._cache.get((first._path, 0, "test")) is None
    assert federation._cache.get((federation.at(2)._path, 0, "test")) is not None


def test_what_is_derived_travels_as_a_recipe() -> None:
    federation = made().blind()
    cohort = federation.cohort([0, 1], 5).chunks(1, 2, 3)
    assert cohort.federation.origin is federation
    shared, arrived = pickle.loads(pickle.dumps((federation, cohort)))
    assert arrived.federation is shared.at(5).chunks(1, 2, 3)
    assert same_data(arrived.federation, cohort.federation)
    changed = replace(cohort.federation, duplicate=2)
    assert changed.origin is changed
    assert pickle.loads(pickle.dumps(changed)).duplicate == 2


def test_large_federations_drift_too() -> None:
    how = Partition("py", 3, 3000, samples_per_client=12, drift="after:1+test")
    federation = partition(pictures(), how)
    assert federation.at(2).truth is not None
    changed = np.flatnonzero(federation.at(1).truth != federation.at(2).truth)
    assert 1000 < len(changed) < 3000
    kept = federation.at(2).patterns[int(changed[0])].kept
    assert kept is not None
    assert set(federation.at(2).materialise(int(changed[0]), "train").y.tolist()) <= set(kept)
