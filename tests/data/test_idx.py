"""MNIST, Fashion-MNIST and EMNIST from small idx files: what is read, and the one line said about damaged ones."""

import gzip
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.data.making import FILES, error_of, idx_contents, idx_images, idx_labels, write_idx

from fedflux.data.sources import idx, load

EMNIST_FILES = idx.EMNIST.layouts[0]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_idx_files_are_read_gzipped_or_plain(tmp_path, packed, subfolder) -> None:
    contents = idx_contents()
    write_idx(tmp_path / subfolder, contents, packed)
    dataset = load("mnist", tmp_path)
    assert dataset.name == "mnist"
    assert dataset.classes == 10
    assert dataset.train.x.shape == (6, 1, 28, 28)
    assert dataset.test.x.shape == (3, 1, 28, 28)
    assert dataset.train.x.tobytes() == contents[FILES[0]][16:]
    assert dataset.test.y.tolist() == list(contents[FILES[3]][8:])
    assert dataset.train.x.flags.writeable


def test_a_folder_of_the_datasets_name_comes_before_loose_files(tmp_path) -> None:
    write_idx(tmp_path, idx_contents(seed=1))
    contents = idx_contents(seed=2)
    write_idx(tmp_path / "fmnist", contents)
    dataset = load("fmnist", tmp_path)
    assert dataset.name == "fmnist"
    assert dataset.train.x.tobytes() == contents[FILES[0]][16:]


def emnist_zip(folder: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for filename, content in contents.items():
            archive.writestr(f"gzip/{filename}", gzip.compress(content))


@pytest.mark.parametrize("place", ["", "emnist", "gzip", "emnist/gzip", "zip"])
def test_emnist_is_turned_upright_from_every_layout(tmp_path, place) -> None:
    contents = idx_contents(EMNIST_FILES)
    if place == "zip":
        emnist_zip(tmp_path, contents)
    else:
        write_idx(tmp_path / place, contents)
    dataset = load("emnist", tmp_path)
    stored = np.frombuffer(contents[EMNIST_FILES[0]], np.uint8, offset=16).reshape(6, 28, 28)
    assert dataset.classes == 47
    assert np.array_equal(dataset.train.x[:, 0], stored.transpose(0, 2, 1))
    assert not np.array_equal(dataset.train.x[:, 0], stored)


@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        (
            0,
            lambda c: c[:-100],
            f"truncated: header promises 6 images of 28×28 ({6 * 784} bytes), found {6 * 784 - 100}",
        ),
        (0, lambda c: c[:10], "truncated: an idx header of images has 16 bytes, found 10"),
        (1, lambda c: b"", "truncated: an idx header of labels has 8 bytes, found 0"),
        (0, lambda c: c + b"?", "too long: header promises 6 images"),
        (1, lambda c: c + b"\0", "too long: header promises 6 labels (6 bytes), found 7"),
        (0, lambda c: b"<html>" + c, "not an idx file of images: starts with 3c68746d, not 00000803"),
        (3, lambda c: idx_images(np.zeros((3, 28, 28), np.uint8)), "not an idx file of labels"),
        (2, lambda c: idx_images(np.zeros((3, 20, 28), np.uint8)), "images of 20×28; this dataset has 28×28"),
        (3, lambda c: idx_labels(np.zeros(2)), "3 images, but"),
        (1, lambda c: idx_labels(np.full(6, 10)), "label 10 of example 0 is outside 0 to 9"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_idx_files(tmp_path, file, damage, says, packed) -> None:
    contents = idx_contents()
    contents[FILES[file]] = damage(contents[FILES[file]])
    write_idx(tmp_path, contents, packed)
    message = error_of(lambda: load("mnist", tmp_path))
    assert says in message
    if "outside" not in says:
        assert FILES[file].removesuffix(".gz") in message


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-20], lambda c: c[:200] + b"\xff\xff\xff" + c[203:], lambda c: c + b"junk"]
)
def test_damaged_gzip(tmp_path, damage) -> None:
    write_idx(tmp_path, idx_contents())
    file = tmp_path / FILES[0]
    file.write_bytes(damage(file.read_bytes()))
    message = error_of(lambda: load("mnist", tmp_path))
    assert message.startswith(f"{file}: corrupt gzip file")


def test_emnist_zip_errors(tmp_path) -> None:
    contents = idx_contents(EMNIST_FILES)
    del contents[EMNIST_FILES[3]]
    emnist_zip(tmp_path, contents)
    assert f"gzip.zip: holds no {EMNIST_FILES[3]}" in error_of(lambda: load("emnist", tmp_path))
    (tmp_path / "gzip.zip").write_bytes((tmp_path / "gzip.zip").read_bytes()[:-50])
    assert "gzip.zip: not a readable zip archive" in error_of(lambda: load("emnist", tmp_path))
    contents = idx_contents(EMNIST_FILES)
    contents[EMNIST_FILES[2]] = contents[EMNIST_FILES[2]][:-1]
    emnist_zip(tmp_path, contents)
    assert f"gzip.zip: {EMNIST_FILES[2]}: truncated" in error_of(lambda: load("emnist", tmp_path))


@pytest.mark.skipif("FEDFLUX_DATA" not in os.environ, reason="FEDFLUX_DATA names no folder with the real datasets")
def test_real_mnist() -> None:
    folder = Path(os.environ["FEDFLUX_DATA"])
    if not any((place / FILES[0]).exists() for place in (folder, folder / "mnist")):
        pytest.skip(f"{folder} holds no MNIST")
    dataset = load("mnist", folder)
    assert dataset.train.x.shape == (60000, 1, 28, 28)
    assert dataset.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(dataset.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
