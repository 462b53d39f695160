"""CIFAR from small batches: every layout, and pickles that are damaged or hostile."""

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.making import error_of

from fedflux.data.sources import cifar, load


def cifar_batch(count: int, labels: bytes, classes: int, seed: int) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    return {
        b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
        labels: rng.integers(0, classes, count).tolist(),
        b"filenames": [b"picture.png"] * count,
    }


def cifar10_batches() -> dict[str, dict[bytes, Any]]:
    return {name: cifar_batch(4, b"labels", 10, seed) for seed, name in enumerate(cifar.CIFAR10.layouts[0])}


def cifar100_batches() -> dict[str, dict[bytes, Any]]:
    batches = {name: cifar_batch(5, b"fine_labels", 100, seed) for seed, name in enumerate(("train", "test"))}
    for batch in batches.values():
        batch[b"coarse_labels"] = [0] * 5
    return batches


def write_batches(folder: Path, batches: dict[str, dict[bytes, Any]], protocol: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in batches.items():
        (folder / name).write_bytes(pickle.dumps(batch, protocol))


def write_tar(file: Path, folder: str, batches: dict[str, dict[bytes, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for name, batch in batches.items():
            content = pickle.dumps(batch, 2)
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    "place", ["", "cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py", "tar", "cifar10/tar"]
)
def test_cifar10_from_every_layout(tmp_path, place) -> None:
    batches = cifar10_batches()
    if place.endswith("tar"):
        write_tar(tmp_path / place[:-3] / "cifar-10-python.tar.gz", "cifar-10-batches-py", batches)
    else:
        write_batches(tmp_path / place, batches)
    dataset = load("cifar10", tmp_path)
    assert dataset.classes == 10
    assert dataset.train.x.shape == (20, 3, 32, 32)
    assert np.array_equal(dataset.train.x[4:8].reshape(4, -1), batches["data_batch_2"][b"data"])
    assert dataset.train.y[8:12].tolist() == batches["data_batch_3"][b"labels"]
    assert np.array_equal(dataset.test.x.reshape(4, -1), batches["test_batch"][b"data"])
    assert [path.name for path in tmp_path.rglob("data_batch_1")] == ([] if place.endswith("tar") else ["data_batch_1"])


@pytest.mark.parametrize("place", ["cifar100", "cifar-100-python", "tar"])
def test_cifar100_takes_the_fine_labels(tmp_path, place) -> None:
    batches = cifar100_batches()
    if place == "tar":
        write_tar(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", batches)
    else:
        write_batches(tmp_path / place, batches)
    dataset = load("cifar100", tmp_path)
    assert dataset.classes == 100
    assert dataset.train.y.tolist() == batches["train"][b"fine_labels"]
    assert dataset.test.y.tolist() == batches["test"][b"fine_labels"]


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol_are_read(tmp_path, protocol) -> None:
    write_batches(tmp_path, cifar100_batches(), protocol)
    if protocol == 5:  # numpy then pickles through _frombuffer, which the official files never use
        assert "_frombuffer" in error_of(lambda: load("cifar100", tmp_path))
    else:
        assert len(load("cifar100", tmp_path).train) == 5


class Command:
    """Pickles to a call that creates a file, as a hostile batch would."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("packed", [True, False])
def test_the_unpickler_refuses_to_run_a_command(tmp_path, packed) -> None:
    marker = tmp_path / "ran"
    batches = cifar10_batches()
    batches["data_batch_3"][b"data"] = Command(marker)
    pickle.loads(pickle.dumps(Command(marker)))
    assert marker.exists(), "the bait must work with the plain unpickler"
    marker.unlink()
    if packed:
        write_tar(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", batches)
    else:
        write_batches(tmp_path, batches)
    message = error_of(lambda: load("cifar10", tmp_path))
    assert f"{os.system.__module__}.system" in message
    assert "data_batch_3" in message
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", [b"builtins\neval", b"numpy\nsave", b"numpy.core.multiarray\nfromfile", b"_codecs\ndecode"]
)
def test_the_unpickler_refuses_every_other_name(name) -> None:
    module, attribute = name.decode().split("\n")
    assert f"{module}.{attribute}" in error_of(lambda: cifar.unpickle("here", b"c" + name + b"\n."))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda batch: batch.pop(b"data"), "must be a dictionary with 'data' and 'labels'"),
        (lambda batch: batch.pop(b"labels"), "must be a dictionary with 'data' and 'labels'"),
        (lambda batch: batch.update({b"data": np.zeros((4, 3072))}), "not float64 of shape (4, 3072)"),
        (lambda batch: batch.update({b"data": np.zeros((4, 3000), np.uint8)}), "not uint8 of shape (4, 3000)"),
        (lambda batch: batch.update({b"data": [1]}), "not list"),
        (lambda batch: batch.update({b"labels": [0, 1, 2]}), "4 images but 3 labels"),
        (lambda batch: batch.update({b"labels": [0, 1, 2, 0.5]}), "'labels' must be a list of class numbers"),
        (lambda batch: batch.update({b"labels": 3}), "'labels' must be a list of class numbers"),
    ],
)
def test_batches_of_the_wrong_form(tmp_path, change, says) -> None:
    batches = cifar10_batches()
    change(batches["data_batch_2"])
    write_batches(tmp_path, batches)
    message = error_of(lambda: load("cifar10", tmp_path))
    assert says in message
    assert "data_batch_2" in message


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps(cifar_batch(4, b"labels", 10, 0), 2)[:-300]])
def test_damaged_batches(tmp_path, content) -> None:
    write_batches(tmp_path, cifar10_batches())
    (tmp_path / "test_batch").write_bytes(content)
    assert "test_batch: corrupt or truncated batch" in error_of(lambda: load("cifar10", tmp_path))


def test_cifar_tar_errors(tmp_path) -> None:
    file = tmp_path / "cifar-10-python.tar.gz"
    batches = cifar10_batches()
    del batches["data_batch_5"]
    write_tar(file, "cifar-10-batches-py", batches)
    assert "holds no data_batch_5" in error_of(lambda: load("cifar10", tmp_path))
    file.write_bytes(file.read_bytes()[:-2000])
    assert "not a readable tar archive" in error_of(lambda: load("cifar10", tmp_path))
    file.write_bytes(b"<html>sorry</html>")
    assert "not a readable tar archive" in error_of(lambda: load("cifar10", tmp_path))
