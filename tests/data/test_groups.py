"""Records of one group stay together: in every split, share and chunk, whatever format they came in."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.export import export_federation
from fedflux.data.holding import ClientHolding
from fedflux.data.partition import Partition, partition
from fedflux.data.shifts.allocation import deal_shares, split_validation
from fedflux.data.sources.folder import load_folder
from fedflux.data.sources.npz import load_npz
from fedflux.data.splits import hold_out
from fedflux.errors import FedfluxError

SEEDS = st.integers(0, 2**16)


def grouped(seed: int, groups: int, clients: int | None = None) -> Examples:
    """Groups of one to twelve records with labels of their own, in mixed order."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), rng.integers(1, 13, groups)))
    client = None if clients is None else (group % clients).astype(np.int64)
    x = np.arange(len(group), dtype=np.uint16).view(np.uint8).reshape(-1, 1, 1, 2)
    return Examples(x, rng.integers(0, 3, len(group)), client, group)


def apart(*parts: NDArray[np.int64]) -> bool:
    """Whether no group is in two parts."""
    distinct = [np.unique(part) for part in parts]
    return len(np.unique(np.concatenate(distinct))) == sum(map(len, distinct))


@given(SEEDS, st.integers(2, 60))
def test_the_test_part_holds_whole_groups_and_about_its_share(seed: int, groups: int) -> None:
    train, test = hold_out(grouped(seed, groups))
    assert train.group is not None
    assert test.group is not None
    assert apart(train.group, test.group)
    assert len(train)
    assert len(test)
    if groups > 30:
        assert 0.1 < len(test) / (len(train) + len(test)) < 0.3


@given(SEEDS, st.integers(1, 60), st.integers(1, 4))
def test_every_client_keeps_its_own_groups_whole(seed: int, groups: int, clients: int) -> None:
    examples = grouped(seed, groups, clients)
    train, test = hold_out(examples)
    assert examples.client is not None
    assert train.group is not None
    assert test.group is not None
    assert len(train) + len(test) == len(examples)
    assert train.client is not None
    assert set(np.unique(examples.client)) == set(np.unique(train.client))  # nobody is left without training
    assert apart(train.group, test.group)


@given(SEEDS, st.integers(1, 60))
def test_validation_parts_hold_whole_groups(seed: int, groups: int) -> None:
    group = grouped(seed, groups).group
    assert group is not None
    train, validation = split_validation(np.arange(len(group)), 0.2, seed, 0, group)
    assert apart(group[train], group[validation])
    assert len(train)
    assert sorted([*train, *validation]) == list(range(len(group)))


@given(SEEDS, st.integers(5, 60), st.integers(1, 5), st.sampled_from([0.0, 0.5]))
def test_a_group_is_dealt_to_one_client(seed: int, groups: int, clients: int, skew: float) -> None:
    group = grouped(seed, groups).group
    assert group is not None
    shares = deal_shares(len(group), clients, seed, "train", skew, group)
    assert apart(*(group[share] for share in shares))
    assert sorted(np.concatenate(shares)) == list(range(len(group)))
    if skew == 0:
        assert min(map(len, shares)) > 0


def windows(recordings: int, length: int, width: int, step: int) -> Examples:
    """Overlapping windows of recordings: records that share most of their values with their neighbours."""
    rng = np.random.default_rng(0)
    signals = rng.random((recordings, length)).astype(np.float32)
    starts = range(0, length - width + 1, step)
    x = np.array([signal[start : start + width] for signal in signals for start in starts])
    group = np.repeat(np.arange(recordings), len(starts))
    return Examples(x[:, None, None], group % 2, group % 3, group)


@given(SEEDS, st.integers(9, 30), st.integers(1, 4), st.sampled_from([1, 2]))
def test_overlapping_windows_of_one_recording_stay_on_one_side_of_every_split(
    seed: int, recordings: int, count: int, duplicate: int
) -> None:
    train, test = hold_out(windows(recordings, 40, 10, 3))
    dataset = Dataset("windows", train, test, 2, ("a", "b", "c"))
    federation = partition(dataset, Partition(seed=seed, duplicate=duplicate))
    for client in range(3):
        parts = [federation.groups(client, split) for split in ("train", "validation", "test")]
        assert apart(*(part for part in parts if part is not None))
        chunks = [federation.chunks(k, k + 1, count).groups(client, "train") for k in range(count)]
        assert apart(*(chunk for chunk in chunks if chunk is not None))
        assert sum(len(chunk) for chunk in chunks if chunk is not None) == federation.stored(client, "train")


def test_clients_know_the_groups_of_what_they_hold() -> None:
    train, test = hold_out(grouped(1, 40, 2))
    federation = partition(Dataset("grouped", train, test, 3, ("a", "b")), Partition())
    held = ClientHolding(federation.cohort([0, 1]), 1)
    assert train.group is not None
    assert np.array_equal(held.groups("train"), train.group[held.rows("train")])  # type: ignore[arg-type]
    assert len(federation.limited(5).groups(1, "train")) == 5  # type: ignore[arg-type]


def test_dirichlet_refuses_to_cut_groups() -> None:
    train, test = hold_out(grouped(1, 40))
    with pytest.raises(FedfluxError, match="groups, which stay whole"):
        partition(Dataset("grouped", train, test, 3), Partition(shift="dirichlet", clients=3))


def test_only_groups_change_the_checksum() -> None:
    plain, test = (Examples(one.x, one.y) for one in hold_out(grouped(1, 40)))
    known = Examples(plain.x, plain.y, group=np.arange(len(plain)))
    known_test = Examples(test.x, test.y, group=np.arange(len(test)))
    assert Dataset("x", plain, test, 3).checksum != Dataset("x", known, known_test, 3).checksum
    with pytest.raises(FedfluxError, match="the training part has groups, but the test part has none"):
        Dataset("x", known, test, 3)
    with pytest.raises(FedfluxError, match="group ids of shape"):
        Dataset("x", Examples(plain.x, plain.y, group=np.arange(3)), known_test, 3)


def test_npz_groups_may_be_words_and_are_one_numbering(tmp_path: Path) -> None:
    x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1])
    words = np.array(["eve", "ann", "eve", "bob", "ann", "bob"])
    np.savez(tmp_path / "d.npz", x=x, y=y, group=words, x_test=x[:2], y_test=y[:2], group_test=np.array(["ann", "zoe"]))
    dataset = load_npz(tmp_path / "d.npz")
    assert dataset.train.group is not None
    assert dataset.test.group is not None
    assert dataset.train.group.tolist() == [2, 0, 2, 1, 0, 1]
    assert dataset.test.group.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"group": np.arange(3)}, "6 examples in 'x' but 3 in 'group'"),
        ({"group": np.zeros(6)}, "give one integer or string"),
        ({"group_test": np.arange(6)}, "'x_test' is missing"),
        ({"group": np.arange(6), "x_test": np.zeros((2, 4)), "y_test": np.arange(2)}, "'group_test' is missing"),
    ],
)
def test_npz_groups_that_do_not_fit(tmp_path: Path, keys: dict[str, NDArray[np.generic]], said: str) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((6, 4)), y=np.array([0, 1] * 3), **keys)  # type: ignore[arg-type]
    with pytest.raises(FedfluxError, match=said):
        load_npz(tmp_path / "d.npz")


def pictures(root: Path) -> None:
    for label in ("cats", "dogs"):
        (root / label).mkdir()
        for number in range(4):
            Image.fromarray(np.full((4, 4), number, np.uint8)).save(root / label / f"{number}.png")


def test_a_csv_beside_a_folder_names_groups(tmp_path: Path) -> None:
    pictures(tmp_path)
    lines = [f"{label}/{number}.png,{'ab'[number % 2]}" for label in ("cats", "dogs") for number in range(4)]
    (tmp_path / "groups.csv").write_text("\n".join(["file,group", *lines]))
    dataset = load_folder(tmp_path)
    assert dataset.train.group is not None
    assert dataset.test.group is not None
    assert apart(dataset.train.group, dataset.test.group)
    assert np.array_equal(dataset.train.group, dataset.train.x[:, 0, 0, 0] % 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image,patient\n", "the first line must be file,group"),
        ("file,group\ncats/0.png,\n", "line 2: give a file and its group"),
        ("file,group\ncats/0.png,a\ncats/0.png,b\n", "line 3: cats/0.png is in a second group"),
        ("file,group\ncats/0.png,a\n", "says nothing of cats/1.png"),
    ],
)
def test_a_csv_that_does_not_fit(tmp_path: Path, text: str, said: str) -> None:
    pictures(tmp_path)
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(FedfluxError, match=said):
        load_folder(tmp_path)


def test_exports_carry_groups(tmp_path: Path) -> None:
    train, test = hold_out(grouped(1, 40, 2))
    how = Partition(duplicate=2)
    federation = partition(Dataset("grouped", train, test, 3, ("a", "b")), how)
    export_federation(federation, how, tmp_path)
    with np.load(tmp_path / "client_00000.npz") as arrays:
        assert len(arrays["group_train"]) == len(arrays["y_train"])
        assert apart(arrays["group_train"], arrays["group_validation"], arrays["group_test"])
