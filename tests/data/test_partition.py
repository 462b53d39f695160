"""From a dataset to a federation: the same clients from the same arguments, shifted alike in every split."""

from dataclasses import replace

import numpy as np
import pytest
from tests.data.making import owned, pictures, rebuilt

from fedflux.data import Dataset, Examples, Federation, Labelled, Partition, partition
from fedflux.data.export import SPLITS
from fedflux.data.shifts.patterns import MIXES, SHIFTS

FOUR = ("px", "py", "pygx", "pxgy")
DATA = pictures()


def everything(federation: Federation) -> list[Labelled]:
    return [federation.materialise(k, split) for k in range(len(federation)) for split in SPLITS]


def same(a: Federation, b: Federation) -> bool:
    pairs = list(zip(everything(a), everything(b), strict=True))
    return all(p.x.equal(q.x) and p.y.equal(q.y) and np.array_equal(p.rows, q.rows) for p, q in pairs)


def made(shift: str, level: int = 5, clients: int = 4, data: Dataset = DATA, **more) -> Federation:
    return partition(data, Partition(shift, level, clients, **more))


@pytest.mark.parametrize("shift", [*FOUR, *MIXES, "none", "dirichlet"])
@pytest.mark.parametrize("level", [3, 5, 7])
def test_every_split_carries_the_clients_pattern(shift, level) -> None:
    federation = made(shift, level)
    for k in range(4):
        for split in SPLITS:
            x, y = rebuilt(federation, k, split)
            data = federation.materialise(k, split)
            assert len(y) > 0
            assert np.array_equal(data.x.numpy(), x)
            assert np.array_equal(data.y.numpy(), y)


@pytest.mark.parametrize("shift", FOUR)
def test_the_shift_shows_in_the_test_part(shift) -> None:
    """What distinguishes the clients must be there at test time too: the test part differs from the pooled one."""
    federation, plain = made(shift, 8, seed=1), made("none", 8, seed=1)
    for split in SPLITS:
        changed = [
            not (
                np.array_equal(federation.materialise(k, split).x[:, :1], plain.materialise(k, split).x)
                and np.array_equal(federation.materialise(k, split).y, plain.materialise(k, split).y)
            )
            for k in range(4)
        ]
        assert all(changed)


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_the_same_arguments_make_the_same_tensors(shift) -> None:
    first = made(shift)
    assert same(first, made(shift, data=pictures()))
    assert not same(first, made(shift, seed=43))


@pytest.mark.parametrize("how", [{"strength": 0.6}, {"quantity_skew": 0.4}, {"data_fraction": 0.5}])
def test_options_are_reproducible_too(how) -> None:
    first = made("px", **how)
    assert same(first, made("px", **how))
    assert not same(first, made("px", **how, seed=43))
    plain = made("px")
    assert sum(map(len, everything(plain))) != sum(map(len, everything(first))) or not same(plain, first)


def test_reading_order_does_not_matter() -> None:
    forward, backward = made("px", strength=0.5), made("px", strength=0.5)
    for k in (3, 1, 0, 2):
        for split in reversed(SPLITS):
            backward.materialise(k, split)
    assert same(forward, backward)


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_splits_and_clients_share_no_source_row(shift) -> None:
    federation = made(shift, clients=5)
    for names, size in ((("train", "validation"), len(DATA.train)), (("test",), len(DATA.test))):
        seen: set[int] = set()
        for rows in federation.rows:
            for name in names:
                held = set(getattr(rows, name).tolist())
                assert not held & seen
                assert held <= set(range(size))
                seen |= held
        if "py" not in shift.split("+"):
            assert seen == set(range(size)), "without a label shift every row is dealt"


def test_no_image_of_one_split_appears_in_another() -> None:
    federation = made("py", 8)
    for k in range(4):
        train, validation, test = ({x.numpy().tobytes() for x in federation.materialise(k, s).x} for s in SPLITS)
        assert not train & validation
        assert not train & test
        assert not validation & test


@pytest.mark.parametrize("shift", FOUR)
def test_sizes_are_equal_and_validation_is_a_fifth(shift) -> None:
    federation = made(shift, 6, clients=5)
    for k in range(5):
        assert [federation.size(k, split) for split in SPLITS] == [32, 8, 20]
        assert [len(federation.materialise(k, split)) for split in SPLITS] == [32, 8, 20]


def test_py_keeps_its_classes_in_every_split_and_copies_inside_them() -> None:
    federation = made("py", 8)
    for k, pattern in enumerate(federation.patterns):
        for split in SPLITS:
            data = federation.materialise(k, split)
            assert set(data.y.tolist()) <= set(pattern.kept or ())
            assert len(np.unique(data.rows)) < len(data)


def test_pygx_and_pxgy_leave_the_other_half_alone() -> None:
    plain = made("none")
    for split in SPLITS:
        for k in range(4):
            assert made("pygx").materialise(k, split).x.equal(plain.materialise(k, split).x)
            assert made("pxgy").materialise(k, split).y.equal(plain.materialise(k, split).y)


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
def test_channels_are_three_once_colours_are_about(shift) -> None:
    coloured = "px" in shift.split("+")
    federation = made(shift, level=2)
    assert federation.input_shape[0] == (3 if coloured else 1)
    assert federation.materialise(0, "train").x.shape[1] == federation.input_shape[0]
    assert made(shift, data=pictures(channels=3)).input_shape == (3, 6, 6)


def test_cifar100_gets_its_own_rule_by_name() -> None:
    data = replace(pictures(400, 200, classes=100, channels=3), name="cifar100")
    looks = {look for p in made("pxgy", 2, data=data).patterns for _, look in p.class_looks}
    assert {look.rotation for look in looks} == {0, 120, 240}
    assert {look.colour for look in looks} == {"red", "green", "blue"}
    moved = [np.array(p.relabel) != np.arange(100) for p in made("pygx", 2, clients=20, data=data).patterns]
    assert np.any(moved, axis=0).sum() == 40


def test_float_images_arrive_as_float32() -> None:
    scaled = [Examples(part.x.astype(np.float64) / 255, part.y) for part in (DATA.train, DATA.test)]
    grey = replace(DATA, train=scaled[0], test=scaled[1])
    data = made("px", data=grey).materialise(0, "train")
    assert str(data.x.dtype) == "torch.float32"
    assert data.x.max() == 1.0
    assert np.allclose(data.x * 255, made("px").materialise(0, "train").x, atol=1e-3)


def test_labels_of_any_integer_type_arrive_as_int64() -> None:
    small = replace(DATA, train=Examples(DATA.train.x, DATA.train.y.astype(np.uint8)))
    assert str(made("none", data=small).materialise(0, "train").y.dtype) == "torch.int64"


def test_data_fraction_thins_training_and_leaves_test_whole() -> None:
    whole, half = made("none"), made("none", data_fraction=0.5)
    assert [whole.size(0, split) for split in SPLITS] == [40, 10, 25]
    assert [half.size(0, split) for split in SPLITS] == [20, 5, 25]
    rows = np.concatenate([np.concatenate([r.train, r.validation]) for r in half.rows])
    assert len(np.unique(rows)) == 100
    assert rows.max() >= 150, "the fraction is drawn from all rows, not cut off the front"


def test_quantity_skew_makes_training_sizes_unequal() -> None:
    federation = made("none", quantity_skew=0.5)
    sizes = [len(rows.train) + len(rows.validation) for rows in federation.rows]
    assert sum(sizes) == 200
    assert max(sizes) > 2 * min(sizes)


def test_dirichlet_takes_its_alpha_from_the_level_or_from_you() -> None:
    assert same(made("dirichlet", 5), made("dirichlet", 1, alpha=0.5))
    assert not same(made("dirichlet", 5), made("dirichlet", 5, alpha=5.0))


def test_ten_clients_unless_told() -> None:
    assert len(partition(DATA, Partition())) == 10


def test_truth_is_the_pattern_and_none_where_there_are_no_clusters() -> None:
    federation = made("pygx", clients=12, level=3)
    assert federation.truth is not None
    for a in range(12):
        for b in range(12):
            assert (federation.truth[a] == federation.truth[b]) == (federation.patterns[a] == federation.patterns[b])
    one = made("pygx", level=1).truth
    assert one is not None
    assert one.tolist() == [0, 0, 0, 0]
    assert made("none").truth is not None
    assert made("dirichlet").truth is None
    assert made("px", strength=0.5).truth is None
    shared = made("px", clients=20, strength=0.5, patterns="shared", bank=3).truth
    assert shared is not None
    assert set(shared.tolist()) == {0, 1, 2}


def test_own_clients_are_kept() -> None:
    data = owned([7, 30, 12])
    federation = partition(data, Partition("none"))
    assert federation.names == ("hospital 0", "hospital 1", "hospital 2")
    assert data.train.client is not None
    assert data.test.client is not None
    for k, rows in enumerate(federation.rows):
        own = np.concatenate([rows.train, rows.validation])
        assert sorted(own) == np.flatnonzero(data.train.client == k).tolist()
        assert sorted(rows.test) == np.flatnonzero(data.test.client == k).tolist()
    thinned = partition(data, Partition("none", data_fraction=0.5))
    assert [len(r.train) + len(r.validation) for r in thinned.rows] == [4, 15, 6]
    assert [len(r.test) for r in thinned.rows] == [7, 30, 12]


def test_truth_joins_own_clusters_with_patterns() -> None:
    assert partition(owned([9] * 4), Partition("none")).truth is None, "own clients without clusters: nobody knows"
    clusters = [2, 0] * 10
    data = owned([9] * 20, clusters)
    plain = partition(data, Partition("none")).truth
    assert plain is not None
    assert plain.tolist() == [1, 0] * 10
    federation = partition(data, Partition("px", 1))
    pairs = list(zip(clusters, federation.patterns, strict=True))
    assert len(set(pairs)) == 4
    assert federation.truth is not None
    for a in range(20):
        for b in range(20):
            assert (federation.truth[a] == federation.truth[b]) == (pairs[a] == pairs[b])
