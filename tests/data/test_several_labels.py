"""Several labels a record, from files to clients."""

from pathlib import Path

import numpy as np
import pytest
from tests.data.several import LABELS, findings

from fedflux.data import Dataset, Examples, Federation, Partition, partition
from fedflux.data.sources.npz import load_npz
from fedflux.data.tasks import SEVERAL_LABELS
from fedflux.data.tasks.kinds import strata
from fedflux.errors import FedfluxError

X = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
Y = (np.random.default_rng(2).random((40, 4)) < 0.4).astype(np.int64)


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "own.npz", **{"x": X, "y": Y, **arrays})  # type: ignore[arg-type]
    return folder / "own.npz"


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_])
def test_targets_with_an_axis_for_labels_are_several_labels(tmp_path: Path, kind: type) -> None:
    names = np.array(["a", "b", "c", "d"])
    dataset = load_npz(saved(tmp_path, y=Y.astype(kind), class_names=names, client=np.arange(40) % 2))
    assert dataset.task is SEVERAL_LABELS
    assert dataset.classes == 4
    assert dataset.class_names == ("a", "b", "c", "d")
    rows = np.concatenate([dataset.train.y, dataset.test.y])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, Y.tolist()))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.where(Y, 2, 0)}, "labels must be 0 or 1"),
        ({"y": np.where(Y, np.nan, 0)}, "labels must be 0 or 1"),
        ({"y": Y.astype(str)}, "must be 0 or 1"),
        ({"y": Y[:, :0]}, r"give \(N,\), or \(N, L\) of 0 and 1"),
        ({"y": Y[:, :, None]}, r"give \(N,\), or \(N, L\) of 0 and 1"),
        ({"x_test": X, "y_test": Y[:, :3]}, "3 labels in 'y_test' but 4 in 'y'"),
        ({"x_test": X, "y_test": Y[:, 0]}, r"give \(N,\), or \(N, L\) of 0 and 1"),
        ({"class_names": np.array(["a", "b"])}, "4 labels in 'y' but 2 class_names"),
        ({"class_names": np.array(["a", "b", "c", "a"])}, "twice"),
    ],
)
def test_targets_that_are_no_labels_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(FedfluxError, match=words):
        load_npz(saved(tmp_path, **arrays))


def test_the_test_part_holds_every_finding_in_proportion() -> None:
    dataset = findings(clients=1, records=1000)
    shares = [part.y.mean(axis=0) for part in (dataset.train, dataset.test)]
    np.testing.assert_allclose(shares[0][:2], shares[1][:2], atol=0.01)
    np.testing.assert_allclose(shares[0], shares[1], atol=0.07)
    kinds = np.bincount(strata(np.concatenate([dataset.train.y, dataset.test.y])))
    assert len(kinds) == LABELS + 1
    assert len(dataset.test.y) == pytest.approx(200, abs=LABELS)


def test_pygx_gives_findings_other_names() -> None:
    dataset = findings(names=[range(LABELS)])
    train, test = (Examples(part.x, part.y) for part in (dataset.train, dataset.test))
    whole = Dataset("findings", train, test, LABELS)
    federation = partition(whole, Partition("pygx", level=8, clients=4, seed=3))
    pattern = federation.patterns[0].relabel
    assert pattern is not None
    assert pattern != tuple(range(LABELS))
    plain = whole.train.y[federation.source_rows(0, "train")]
    for finding, name in enumerate(pattern):
        np.testing.assert_array_equal(federation.labels(0, "train")[:, name], plain[:, finding])
    np.testing.assert_array_equal(federation.materialise(0, "train").y.numpy(), federation.labels(0, "train"))


@pytest.mark.parametrize("shift", ["py", "pxgy", "dirichlet"])
def test_shifts_of_single_classes_are_refused(shift: str) -> None:
    x = np.zeros((60, 1, 12, 12), np.uint8)
    part = Examples(x, (np.arange(60)[:, None] % np.array([2, 3]) == 0).astype(np.int64))
    with pytest.raises(FedfluxError, match="choose --shift none, px or pygx"):
        partition(Dataset("pictures", part, part, 2), Partition(shift, clients=2))


def test_copies_keep_their_labels() -> None:
    federation = partition(findings(), Partition("none", duplicate=2))
    data = federation.materialise(0, "train").repeated()
    assert data.y.shape == (federation.size(0, "train"), LABELS)


def test_clients_without_labels_are_placed_and_not_scored() -> None:
    federation = Federation.from_clients({"north": (X, Y), "south": (X, Y), "new": (X, None)})
    assert federation.names == ("north", "south")
    assert federation.task is SEVERAL_LABELS
    everyone = federation.dataset.test
    assert everyone.client is not None
    assert (everyone.y[everyone.client == 2] == -1).all()
