"""Every source on small files made here: what it reads, and the one line it says about files it cannot read."""

import gzip
import hashlib
import io
import os
import pickle
import socket
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.sources import cifar, fetch, idx, load
from fedflux.data.sources.npz import hold_out
from fedflux.errors import FedfluxError

FILES = idx.MNIST.layouts[0]
EMNIST_FILES = idx.EMNIST.layouts[0]


def error_of(call: Callable[[], object]) -> str:
    """The message of the FedfluxError the call must raise; it must be one line."""
    with pytest.raises(FedfluxError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# idx


def idx_images(x: np.ndarray) -> bytes:
    return b"".join(int(n).to_bytes(4, "big") for n in (0x803, *x.shape)) + x.tobytes()


def idx_labels(y: np.ndarray) -> bytes:
    return b"".join(int(n).to_bytes(4, "big") for n in (0x801, len(y))) + y.astype(np.uint8).tobytes()


def idx_contents(filenames=FILES, train=6, test=3, seed=0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    parts = [
        encode(values)
        for count in (train, test)
        for encode, values in (
            (idx_images, rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)),
            (idx_labels, rng.integers(0, 10, count)),
        )
    ]
    return dict(zip(filenames, parts, strict=True))


def write_idx(folder: Path, contents: dict[str, bytes], packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for filename, content in contents.items():
        if packed:
            (folder / filename).write_bytes(gzip.compress(content))
        else:
            (folder / filename.removesuffix(".gz")).write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_idx_files_are_read_gzipped_or_plain(tmp_path, packed, subfolder):
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


def test_a_folder_of_the_datasets_name_comes_before_loose_files(tmp_path):
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
def test_emnist_is_turned_upright_from_every_layout(tmp_path, place):
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
def test_damaged_idx_files(tmp_path, file, damage, says, packed):
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
def test_damaged_gzip(tmp_path, damage):
    write_idx(tmp_path, idx_contents())
    file = tmp_path / FILES[0]
    file.write_bytes(damage(file.read_bytes()))
    message = error_of(lambda: load("mnist", tmp_path))
    assert message.startswith(f"{file}: corrupt gzip file")


def test_emnist_zip_errors(tmp_path):
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
def test_real_mnist():
    folder = Path(os.environ["FEDFLUX_DATA"])
    if not any((place / FILES[0]).exists() for place in (folder, folder / "mnist")):
        pytest.skip(f"{folder} holds no MNIST")
    dataset = load("mnist", folder)
    assert dataset.train.x.shape == (60000, 1, 28, 28)
    assert dataset.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(dataset.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


# CIFAR


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
def test_cifar10_from_every_layout(tmp_path, place):
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
def test_cifar100_takes_the_fine_labels(tmp_path, place):
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
def test_pickles_of_every_protocol_are_read(tmp_path, protocol):
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
def test_the_unpickler_refuses_to_run_a_command(tmp_path, packed):
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
def test_the_unpickler_refuses_every_other_name(name):
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
def test_batches_of_the_wrong_form(tmp_path, change, says):
    batches = cifar10_batches()
    change(batches["data_batch_2"])
    write_batches(tmp_path, batches)
    message = error_of(lambda: load("cifar10", tmp_path))
    assert says in message
    assert "data_batch_2" in message


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps(cifar_batch(4, b"labels", 10, 0), 2)[:-300]])
def test_damaged_batches(tmp_path, content):
    write_batches(tmp_path, cifar10_batches())
    (tmp_path / "test_batch").write_bytes(content)
    assert "test_batch: corrupt or truncated batch" in error_of(lambda: load("cifar10", tmp_path))


def test_cifar_tar_errors(tmp_path):
    file = tmp_path / "cifar-10-python.tar.gz"
    batches = cifar10_batches()
    del batches["data_batch_5"]
    write_tar(file, "cifar-10-batches-py", batches)
    assert "holds no data_batch_5" in error_of(lambda: load("cifar10", tmp_path))
    file.write_bytes(file.read_bytes()[:-2000])
    assert "not a readable tar archive" in error_of(lambda: load("cifar10", tmp_path))
    file.write_bytes(b"<html>sorry</html>")
    assert "not a readable tar archive" in error_of(lambda: load("cifar10", tmp_path))


# class and client folders


def save(path: Path, pixels: np.ndarray | Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path)


def grey(value: int, side: int = 6) -> np.ndarray:
    return np.full((side, side), value, np.uint8)


def first_pixels(examples: Examples) -> np.ndarray:
    return examples.x[:, 0, 0, 0].astype(int)


def test_class_folders(tmp_path):
    for label, name in enumerate(("cat", "ant")):
        for number in range(10):
            save(tmp_path / name / f"{number}.png", grey(100 * label + number))
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"no image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README.txt").write_text("notes")
    dataset = load("folder", tmp_path)
    assert dataset.classes == 2
    assert dataset.client_names is None
    assert dataset.image_shape == (1, 6, 6)
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    assert np.bincount(dataset.test.y).tolist() == [2, 2]
    for part in (dataset.train, dataset.test):  # "ant" sorts first, so its images of 100 and more are class 0
        assert np.array_equal(first_pixels(part) >= 100, part.y == 0)
    values = np.concatenate([dataset.train.x, dataset.test.x])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [*range(10), *range(100, 110)]
    assert load("folder", tmp_path).checksum == dataset.checksum


def test_train_and_test_folders_are_kept_apart(tmp_path):
    save(tmp_path / "train" / "a" / "1.png", grey(1))
    save(tmp_path / "train" / "b" / "2.png", grey(2))
    save(tmp_path / "test" / "c" / "3.png", grey(3))
    dataset = load("folder", tmp_path)
    assert dataset.classes == 3
    assert dataset.train.y.tolist() == [0, 1]
    assert dataset.test.y.tolist() == [2]
    assert dataset.test.x.max() == 3


def test_a_class_may_be_called_train(tmp_path):
    for name in ("car", "train"):
        for number in range(5):
            save(tmp_path / name / f"{number}.png", grey(number))
    assert np.bincount(load("folder", tmp_path).train.y).tolist() == [4, 4]


def test_client_folders_split_within_each_client(tmp_path):
    for client, name in enumerate(("zoe", "adam")):
        for label in ("x", "y"):
            for number in range(5):
                save(tmp_path / name / label / f"{number}.png", grey(10 * client + number))
    dataset = load("folder", tmp_path)
    assert dataset.client_names == ("adam", "zoe")
    assert dataset.train.client is not None
    assert dataset.test.client is not None
    assert np.bincount(dataset.train.client).tolist() == [8, 8]
    assert np.bincount(dataset.test.client).tolist() == [2, 2]
    assert np.array_equal(first_pixels(dataset.train) >= 10, dataset.train.client == 0)


def test_client_folders_under_train_and_test(tmp_path):
    save(tmp_path / "train" / "p" / "a" / "1.png", grey(1))
    save(tmp_path / "train" / "q" / "a" / "1.png", grey(2))
    save(tmp_path / "test" / "q" / "b" / "1.png", grey(3))
    dataset = load("folder", tmp_path)
    assert dataset.client_names == ("p", "q")
    assert dataset.test.client is not None
    assert dataset.test.client.tolist() == [1]
    save(tmp_path / "test" / "r" / "b" / "1.png", grey(3))
    assert "client 'r' has no images under train/" in error_of(lambda: load("folder", tmp_path))


def one_each(folder: Path, *images: np.ndarray | Image.Image, suffix: str = ".png") -> Dataset:
    """The images as the training part of one class, in their order, with a test part that is not looked at."""
    for number, image in enumerate(images):
        save(folder / "train" / "a" / f"{number}{suffix}", image)
    save(folder / "test" / "a" / f"0{suffix}", images[0])
    return load("folder", folder)


def test_one_colour_image_makes_all_rgb(tmp_path):
    colour = np.zeros((6, 6, 3), np.uint8)
    colour[...] = (10, 20, 30)
    dataset = one_each(tmp_path, grey(7), colour)
    assert dataset.train.x[:, :, 0, 0].tolist() == [[7, 7, 7], [10, 20, 30]]


def test_palette_and_alpha_become_rgb(tmp_path):
    palette = Image.new("RGB", (6, 6), (200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE)
    alpha = Image.new("RGBA", (6, 6), (1, 2, 3, 128))
    dataset = one_each(tmp_path, palette, alpha)
    assert dataset.train.x[:, :, 0, 0].tolist() == [[200, 100, 50], [1, 2, 3]]


@pytest.mark.filterwarnings("error")
def test_a_transparent_palette_is_read_without_a_warning(tmp_path):
    palette = Image.new("RGB", (6, 6), (200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE)
    palette.info["transparency"] = bytes([128])
    dataset = one_each(tmp_path, palette)
    assert dataset.train.x[0, :, 0, 0].tolist() == [200, 100, 50]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    dataset = one_each(tmp_path, np.full((6, 6), 0x4321, np.uint16))
    assert dataset.image_shape == (1, 6, 6)
    assert dataset.train.x.max() == 0x43


def test_thirty_two_bits_are_refused(tmp_path):
    message = error_of(lambda: one_each(tmp_path, np.zeros((6, 6), np.float32), suffix=".tif"))
    assert "0.tif: pixels of 32 bits" in message


def test_images_of_mixed_size_become_64_by_64(tmp_path):
    dataset = one_each(tmp_path, grey(5, side=10), grey(9, side=200))
    assert dataset.image_shape == (1, 64, 64)
    assert np.unique(dataset.train.x[0]).tolist() == [5]
    assert np.unique(dataset.train.x[1]).tolist() == [9]


def test_height_and_width_are_not_swapped(tmp_path):
    assert one_each(tmp_path, np.zeros((4, 9), np.uint8)).image_shape == (1, 4, 9)


@pytest.mark.parametrize("suffix", [".png", ".JPG", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"])
def test_every_format(tmp_path, suffix):
    if suffix == ".webp":
        pytest.importorskip("PIL._webp")
    dataset = one_each(tmp_path, grey(50), grey(60), suffix=suffix)
    assert np.abs(dataset.train.x[:, 0, 0, 0].astype(int) - [50, 60]).max() <= 2


def test_unreadable_images_are_named(tmp_path):
    save(tmp_path / "a" / "1.png", np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8))
    whole = (tmp_path / "a" / "1.png").read_bytes()
    for content in (b"not an image", b"", whole[: len(whole) // 2]):
        (tmp_path / "a" / "2.png").write_bytes(content)
        message = error_of(lambda: load("folder", tmp_path))
        assert message.startswith(f"{tmp_path / 'a' / '2.png'}: not a readable image")


@pytest.mark.parametrize(
    ("images", "folders", "says"),
    [
        ([], [], "holds no class folder"),
        ([], ["a"], "a: holds no image"),
        (["a/1.png"], ["b"], "b: holds no image"),
        (["1.png"], [], "1.png: an image outside a class folder"),
        (["a/1.png", "1.png"], [], "1.png: an image outside a class folder"),
        (["p/a/1.png", "p/1.png"], [], "1.png: an image outside a class folder"),
        (["p/a/1.png", "b/1.png"], [], "b: holds no class folder, but"),
        (["p/a/1.png"], ["q"], "q: holds no class folder, but"),
        (["p/a/1.png"], ["p/b"], "b: holds no image"),
        (["p/a/x/1.png"], [], "x: too deep"),
        (["test/a/1.png"], [], "holds test/ but no train/"),
        (["train/a/1.png", "test/a/1.png", "val/a/1.png"], [], "val: beside train/ or test/"),
        (["train/a/1.png", "test/p/a/1.png"], [], "train/ and test/ differ in depth"),
        (["train/a/1.png"], ["test"], "test: holds no class folder"),
        (["train/a/1.png", "1.png"], [], "1.png: an image outside a class folder"),
    ],
)
def test_folders_of_the_wrong_shape(tmp_path, images, folders, says):
    for name in images:
        save(tmp_path / name, grey(1))
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    assert says in error_of(lambda: load("folder", tmp_path))


# npz


def write_npz(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "data.npz", **{key: np.asarray(value) for key, value in arrays.items()})  # type: ignore[arg-type]
    return folder / "data.npz"


def test_npz_by_its_path_or_its_folder(tmp_path):
    x = np.arange(20 * 4, dtype=np.uint8).reshape(20, 2, 2)
    file = write_npz(tmp_path, x=x, y=np.arange(20) % 2)
    dataset = load("npz", file)
    assert dataset.classes == 2
    assert dataset.image_shape == (1, 2, 2)
    assert np.bincount(dataset.train.y).tolist() == [8, 8]
    assert np.bincount(dataset.test.y).tolist() == [2, 2]
    joined = np.concatenate([dataset.train.x, dataset.test.x])
    assert sorted(map(bytes, joined)) == sorted(map(bytes, x))
    assert load("npz", tmp_path).checksum == dataset.checksum


@pytest.mark.parametrize(
    ("shape", "image_shape"),
    [
        ((10, 7), (1, 1, 7)),
        ((10, 4, 5), (1, 4, 5)),
        ((10, 3, 4, 5), (3, 4, 5)),
        ((10, 4, 5, 3), (3, 4, 5)),
        ((10, 4, 5, 1), (1, 4, 5)),
        ((10, 1, 4, 3), (1, 4, 3)),
        ((10, 2, 4, 5), (2, 4, 5)),
    ],
)
def test_npz_shapes(tmp_path, shape, image_shape):
    x = np.random.default_rng(0).random(shape)
    dataset = load("npz", write_npz(tmp_path, x=x, y=np.zeros(10, int), x_test=x, y_test=np.zeros(10, int)))
    assert dataset.image_shape == image_shape
    expected = x.transpose(0, 3, 1, 2) if shape[1:] in ((4, 5, 3), (4, 5, 1)) else x.reshape(10, *image_shape)
    assert dataset.train.x.dtype == np.float32
    assert np.allclose(dataset.train.x, expected)


@pytest.mark.parametrize(
    ("given", "kept"), [("int64", "uint8"), ("uint8", "uint8"), ("float16", "float32"), ("bool", "float32")]
)
def test_npz_types(tmp_path, given, kept):
    dataset = load("npz", write_npz(tmp_path, x=np.ones((5, 2, 2), given), y=np.zeros(5, int)))
    assert dataset.train.x.dtype == kept
    assert dataset.train.x.max() == 1


@pytest.mark.parametrize("ids", [[20, 3], ["zoe", "adam"], [b"zoe", b"adam"]])
def test_npz_clients_and_clusters(tmp_path, ids):
    client = np.repeat(np.array(ids), 10)
    cluster = np.repeat([7, 4], 10)
    x = np.repeat([1, 2], 10)[:, None, None] * np.ones((20, 2, 2), np.uint8)
    dataset = load("npz", write_npz(tmp_path, x=x, y=np.arange(20) % 2, client=client, cluster=cluster))
    assert dataset.client_names == (("3", "20") if 3 in ids else ("adam", "zoe"))
    assert dataset.client_clusters is not None
    assert dataset.client_clusters.tolist() == [0, 1]
    for part, size in ((dataset.train, 8), (dataset.test, 2)):
        assert part.client is not None
        assert np.bincount(part.client).tolist() == [size, size]
        assert np.array_equal(part.x[:, 0, 0, 0] == 2, part.client == 0)


def test_npz_test_part_is_taken_as_given(tmp_path):
    dataset = load(
        "npz",
        write_npz(
            tmp_path,
            x=np.zeros((3, 2, 2)),
            y=[0, 1, 0],
            client=["b", "a", "b"],
            x_test=np.ones((2, 2, 2)),
            y_test=[4, 0],
            client_test=["b", "a"],
        ),
    )
    assert dataset.classes == 5
    assert dataset.train.client is not None
    assert dataset.test.client is not None
    assert dataset.train.client.tolist() == [1, 0, 1]
    assert dataset.test.client.tolist() == [1, 0]


def test_only_a_client_of_one_example_goes_without_test_part():
    client = np.array([0] + [1] * 2 + [2] * 10)
    y = np.array([0, 0, 1, *range(10)])
    train, test = hold_out(Examples(np.zeros((13, 1, 1, 1)), y, client))
    assert train.client is not None
    assert test.client is not None
    assert np.bincount(train.client).tolist() == [1, 1, 8]
    assert np.bincount(test.client, minlength=3).tolist() == [0, 1, 2]


X, Y = np.zeros((4, 2, 2), np.uint8), [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X}, "'y' is missing; found x"),
        ({"y": Y}, "'x' is missing"),
        ({"x": X, "y": Y, "clients": Y}, "unknown key 'clients': did you mean 'client'?"),
        ({"x": X, "y": Y, "x_test": X}, "'y_test' is missing, which 'x_test' needs"),
        ({"x": X, "y": Y, "y_test": Y}, "'x_test' is missing, which 'y_test' needs"),
        ({"x": X, "y": Y, "cluster": Y}, "'client' is missing, which 'cluster' needs"),
        ({"x": X, "y": Y, "client": Y, "x_test": X, "y_test": Y}, "'client_test' is missing"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y, "client_test": Y}, "'client' is missing"),
        ({"x": X, "y": Y[:3]}, "4 examples in 'x' but 3 in 'y'"),
        ({"x": X, "y": Y, "client": Y[:2]}, "4 examples in 'x' but 2 in 'client'"),
        ({"x": X[:0], "y": np.zeros(0, int)}, "'x' holds no example"),
        ({"x": np.zeros(4), "y": Y}, "'x' has shape (4,)"),
        ({"x": np.zeros((4, 0)), "y": Y}, "images without a pixel"),
        ({"x": X.astype(int) - 1, "y": Y}, "integers in 'x' run from -1 to -1"),
        ({"x": X.astype(int) + 256, "y": Y}, "integers in 'x' run from 256 to 256"),
        ({"x": X.astype(str), "y": Y}, "'x' holds <U"),
        ({"x": X + np.nan, "y": Y, "x_test": X + 0.0, "y_test": Y}, "image 0 holds NaN"),
        ({"x": X + 1e300, "y": Y}, "infinite pixels"),
        ({"x": X, "y": [0, 1, -2, 1]}, "label -2 of example 2 in 'y'"),
        ({"x": X, "y": [0, 1, 0.5, 1]}, "labels in 'y' are float64; give integers from 0"),
        ({"x": X, "y": [Y]}, "'y' has shape (1, 4)"),
        ({"x": X, "y": Y, "x_test": X, "y_test": [0, 1, -1, 1]}, "label -1 of example 2 in 'y_test'"),
        ({"x": X, "y": Y, "x_test": X + 0.5, "y_test": Y}, "x is uint8 but x_test is float32"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "images of shape (1, 1, 2)"),
        ({"x": X, "y": Y, "client": [0.5, 1, 2, 3]}, "'client' is float64"),
        ({"x": X, "y": Y, "client": ["é".encode()] * 4}, "'client' holds bytes beyond ASCII"),
        ({"x": X, "y": Y, "client": Y, "x_test": X, "y_test": Y, "client_test": [0, 1, 5, 0]}, "client '5'"),
        ({"x": X, "y": Y, "client": list("aabb"), "cluster": [0, 0, 0, 1]}, "client 'b' lies in clusters 0 and 1"),
        ({"x": X, "y": np.array(Y, object)}, "cannot read 'y'"),
    ],
)
def test_npz_of_the_wrong_form(tmp_path, arrays, says):
    file = write_npz(tmp_path, **arrays)
    message = error_of(lambda: load("npz", file))
    assert says in message
    if "pixels" not in says and "NaN" not in says and "shape (1, 1, 2)" not in says:  # those the dataset reports
        assert message.startswith(f"{file}: ")


def test_npz_that_cannot_be_read(tmp_path):
    file = write_npz(tmp_path, x=np.random.default_rng(0).random((50, 8, 8)), y=np.zeros(50, int))
    whole = file.read_bytes()
    for content in (b"", b"PK\x03\x04 no zip", b"text", whole[:-200], whole[:5000]):
        file.write_bytes(content)
        assert error_of(lambda: load("npz", file)).startswith(f"{file}: not a readable .npz file")
    file.write_bytes(whole[:3000] + b"\xff" * 8 + whole[3008:])
    assert error_of(lambda: load("npz", file)).startswith(f"{file}: cannot read 'x'")
    np.save(tmp_path / "x.npy", X)
    assert "a single array" in error_of(lambda: load("npz", tmp_path / "x.npy"))


def test_npz_folder_must_hold_exactly_one(tmp_path):
    assert "exactly one .npz file, found none" in error_of(lambda: load("npz", tmp_path))
    write_npz(tmp_path, x=X, y=Y)
    (tmp_path / "other.npz").write_bytes((tmp_path / "data.npz").read_bytes())
    assert "found data.npz, other.npz" in error_of(lambda: load("npz", tmp_path))


# finding and downloading


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """An HTTP server on this machine: its address and the folder it serves."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/", served
        running.shutdown()
        thread.join()


def offered(url: str, served: Path) -> fetch.Originals:
    """MNIST's files as a small download from `url`, with the checksums of what lies in `served`."""
    write_idx(served, idx_contents())
    md5s = {filename: hashlib.md5((served / filename).read_bytes()).hexdigest() for filename in FILES}
    return replace(idx.MNIST, remotes=tuple(fetch.Remote(url + filename, md5s[filename]) for filename in FILES))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_absent_files_are_downloaded_once(server, data_dir, monkeypatch, capfd):
    url, served = server
    monkeypatch.setattr(idx, "MNIST", offered(url, served))
    first = load("mnist", data_dir)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "B/s" in captured.err, "the progress bar goes to stderr"
    assert sorted(path.name for path in data_dir.iterdir()) == ["mnist"]
    assert sorted(path.name for path in (data_dir / "mnist").iterdir()) == sorted(FILES)
    for file in served.iterdir():
        file.unlink()
    assert load("mnist", data_dir).checksum == first.checksum
    assert capfd.readouterr().err == ""


def test_only_missing_files_are_downloaded(server, data_dir):
    url, served = server
    originals = offered(url, served)
    (data_dir / "mnist").mkdir()
    (served / FILES[0]).rename(data_dir / "mnist" / FILES[0])
    assert [file.name for file in fetch.find_files(originals, data_dir)] == list(FILES)


def test_without_a_data_folder_the_user_cache_is_used(server, tmp_path, monkeypatch):
    import pooch

    url, served = server
    monkeypatch.setattr(idx, "MNIST", offered(url, served))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "caches" / project)
    assert len(load("mnist").train) == 6
    assert sorted(path.name for path in (tmp_path / "caches" / "fedflux" / "mnist").iterdir()) == sorted(FILES)


def test_a_wrong_checksum_leaves_nothing(server, data_dir):
    url, served = server
    originals = offered(url, served)
    (served / FILES[2]).write_bytes(b"something else")
    message = error_of(lambda: fetch.find_files(originals, data_dir))
    assert message.endswith(f"could not be downloaded from {url}{FILES[2]}: the downloaded file has the wrong checksum")
    assert list(data_dir.iterdir()) == []


def test_a_missing_page_leaves_nothing(server, data_dir):
    url, served = server
    originals = offered(url, served)
    (served / FILES[3]).unlink()
    message = error_of(lambda: fetch.find_files(originals, data_dir))
    assert message.endswith(f"{url}{FILES[3]}: the server answered 404")
    assert list(data_dir.iterdir()) == []


def test_a_refused_connection_names_files_places_and_address(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    originals = offered(f"http://127.0.0.1:{port}/", tmp_path / "unserved")
    message = error_of(lambda: fetch.find_files(originals, data_dir))
    assert all(filename in message for filename in FILES)
    assert f"not found in {data_dir} and its sub-folders mnist" in message
    assert message.endswith(f"could not be downloaded from http://127.0.0.1:{port}/{FILES[0]}: no connection")
    assert list(data_dir.iterdir()) == []


def test_a_target_that_cannot_be_written(server, data_dir):
    url, served = server
    originals = offered(url, served)
    (data_dir / "mnist").write_text("a file where the folder should be")
    assert "could not be downloaded" in error_of(lambda: fetch.find_files(originals, data_dir))
    assert [path.name for path in data_dir.iterdir()] == ["mnist"]


def test_missing_pooch_is_named(data_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert "pip install pooch" in error_of(lambda: load("mnist", data_dir))
    assert "pip install pooch" in error_of(lambda: load("mnist"))


@pytest.mark.parametrize("name", ["mnist", "fmnist", "emnist", "cifar10", "cifar100", "folder", "npz"])
def test_a_data_folder_that_does_not_exist(tmp_path, name):
    assert f"{tmp_path / 'nowhere'} does not exist" in error_of(lambda: load(name, tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "folder"])
def test_a_data_folder_that_is_a_file(tmp_path, name):
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is not a folder" in error_of(lambda: load(name, tmp_path / "file"))


@pytest.mark.parametrize("name", ["folder", "npz"])
def test_own_data_needs_a_folder(name):
    assert f"{name}: no data folder given" in error_of(lambda: load(name))


def test_an_unknown_dataset_gets_a_hint():
    assert "did you mean 'mnist'?" in error_of(lambda: load("mnits"))
