"""People's own images in class and client folders: formats, depth, and what is said about the wrong shape."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.making import error_of

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.sources import load


def save(path: Path, pixels: np.ndarray | Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path)


def grey(value: int, side: int = 6) -> np.ndarray:
    return np.full((side, side), value, np.uint8)


def first_pixels(examples: Examples) -> np.ndarray:
    return examples.x[:, 0, 0, 0].astype(int)


def test_class_folders(tmp_path) -> None:
    for label, name in enumerate(("cat", "ant")):
        for number in range(10):
            save(tmp_path / name / f"{number}.png", grey(100 * label + number))
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"no image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README.txt").write_text("notes")
    dataset = load("folder", tmp_path)
    assert dataset.classes == 2
    assert dataset.client_names is None
    assert dataset.input_shape == (1, 6, 6)
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    assert np.bincount(dataset.test.y).tolist() == [2, 2]
    for part in (dataset.train, dataset.test):  # "ant" sorts first, so its images of 100 and more are class 0
        assert np.array_equal(first_pixels(part) >= 100, part.y == 0)
    values = np.concatenate([dataset.train.x, dataset.test.x])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [*range(10), *range(100, 110)]
    assert load("folder", tmp_path).checksum == dataset.checksum


def test_train_and_test_folders_are_kept_apart(tmp_path) -> None:
    save(tmp_path / "train" / "a" / "1.png", grey(1))
    save(tmp_path / "train" / "b" / "2.png", grey(2))
    save(tmp_path / "test" / "c" / "3.png", grey(3))
    dataset = load("folder", tmp_path)
    assert dataset.classes == 3
    assert dataset.train.y.tolist() == [0, 1]
    assert dataset.test.y.tolist() == [2]
    assert dataset.test.x.max() == 3


def test_a_class_may_be_called_train(tmp_path) -> None:
    for name in ("car", "train"):
        for number in range(5):
            save(tmp_path / name / f"{number}.png", grey(number))
    assert np.bincount(load("folder", tmp_path).train.y).tolist() == [4, 4]


def test_client_folders_split_within_each_client(tmp_path) -> None:
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


def test_client_folders_under_train_and_test(tmp_path) -> None:
    save(tmp_path / "train" / "p" / "a" / "1.png", grey(1))
    save(tmp_path / "train" / "q" / "a" / "1.png", grey(2))
    save(tmp_path / "test" / "q" / "b" / "1.png", grey(3))
    dataset = load("folder", tmp_path)
    assert dataset.client_names == ("p", "q")
    assert dataset.test.client is not None
    assert dataset.test.client.tolist() == [1]
    save(tmp_path / "test" / "o" / "b" / "1.png", grey(4))
    save(tmp_path / "test" / "r" / "b" / "1.png", grey(5))
    dataset = load("folder", tmp_path)
    assert dataset.client_names == ("p", "q", "o", "r")  # those with test images alone come last
    assert dataset.test.client is not None
    assert dict(zip(dataset.test.client.tolist(), dataset.test.x[:, 0, 0, 0].tolist(), strict=True)) == {
        1: 3,
        2: 4,
        3: 5,
    }


def one_each(folder: Path, *images: np.ndarray | Image.Image, suffix: str = ".png") -> Dataset:
    """The images as the training part of one class, in their order, with a test part that is not looked at."""
    for number, image in enumerate(images):
        save(folder / "train" / "a" / f"{number}{suffix}", image)
    save(folder / "test" / "a" / f"0{suffix}", images[0])
    return load("folder", folder)


def test_one_colour_image_makes_all_rgb(tmp_path) -> None:
    colour = np.zeros((6, 6, 3), np.uint8)
    colour[...] = (10, 20, 30)
    dataset = one_each(tmp_path, grey(7), colour)
    assert dataset.train.x[:, :, 0, 0].tolist() == [[7, 7, 7], [10, 20, 30]]


def test_palette_and_alpha_become_rgb(tmp_path) -> None:
    palette = Image.new("RGB", (6, 6), (200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE)
    alpha = Image.new("RGBA", (6, 6), (1, 2, 3, 128))
    dataset = one_each(tmp_path, palette, alpha)
    assert dataset.train.x[:, :, 0, 0].tolist() == [[200, 100, 50], [1, 2, 3]]


@pytest.mark.filterwarnings("error")
def test_a_transparent_palette_is_read_without_a_warning(tmp_path) -> None:
    palette = Image.new("RGB", (6, 6), (200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE)
    palette.info["transparency"] = bytes([128])
    dataset = one_each(tmp_path, palette)
    assert dataset.train.x[0, :, 0, 0].tolist() == [200, 100, 50]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path) -> None:
    dataset = one_each(tmp_path, np.full((6, 6), 0x4321, np.uint16))
    assert dataset.input_shape == (1, 6, 6)
    assert dataset.train.x.max() == 0x43


def test_thirty_two_bits_are_refused(tmp_path) -> None:
    message = error_of(lambda: one_each(tmp_path, np.zeros((6, 6), np.float32), suffix=".tif"))
    assert "0.tif: pixels of 32 bits" in message


def test_images_of_mixed_size_become_64_by_64(tmp_path) -> None:
    dataset = one_each(tmp_path, grey(5, side=10), grey(9, side=200))
    assert dataset.input_shape == (1, 64, 64)
    assert np.unique(dataset.train.x[0]).tolist() == [5]
    assert np.unique(dataset.train.x[1]).tolist() == [9]


def test_height_and_width_are_not_swapped(tmp_path) -> None:
    assert one_each(tmp_path, np.zeros((4, 9), np.uint8)).input_shape == (1, 4, 9)


@pytest.mark.parametrize("suffix", [".png", ".JPG", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"])
def test_every_format(tmp_path, suffix) -> None:
    if suffix == ".webp":
        pytest.importorskip("PIL._webp")
    dataset = one_each(tmp_path, grey(50), grey(60), suffix=suffix)
    assert np.abs(dataset.train.x[:, 0, 0, 0].astype(int) - [50, 60]).max() <= 2


def test_unreadable_images_are_named(tmp_path) -> None:
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
def test_folders_of_the_wrong_shape(tmp_path, images, folders, says) -> None:
    for name in images:
        save(tmp_path / name, grey(1))
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    assert says in error_of(lambda: load("folder", tmp_path))
