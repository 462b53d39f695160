"""Datasets by name: what every source says about folders it cannot use, and the digits that need none."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tests.data.making import error_of

from fedflux.data.sources import load


@pytest.mark.parametrize("name", ["mnist", "fmnist", "emnist", "cifar10", "cifar100", "folder", "npz"])
def test_a_data_folder_that_does_not_exist(tmp_path, name) -> None:
    assert f"{tmp_path / 'nowhere'} does not exist" in error_of(lambda: load(name, tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "folder"])
def test_a_data_folder_that_is_a_file(tmp_path, name) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is not a folder" in error_of(lambda: load(name, tmp_path / "file"))


@pytest.mark.parametrize("name", ["folder", "npz"])
def test_own_data_needs_a_folder(name) -> None:
    assert f"{name}: no data folder given" in error_of(lambda: load(name))


def test_an_unknown_dataset_gets_a_hint() -> None:
    assert "did you mean 'mnist'?" in error_of(lambda: load("mnits"))


def test_digits_come_with_the_installation() -> None:
    dataset = load("digits")
    assert dataset.input_shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (1438, 359, 10)
    assert dataset.train.x.dtype == np.uint8
    assert dataset.train.x.max() == 255
    everything = np.concatenate([dataset.train.x, dataset.test.x]).reshape(-1, 64)
    original = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, everything)) == sorted(map(bytes, original))
    shares = np.bincount(dataset.test.y) / np.bincount(np.concatenate([dataset.train.y, dataset.test.y]))
    assert np.allclose(shares, 0.2, atol=0.005)


def test_the_pixel_constants_of_the_digits_are_those_of_their_training_part() -> None:
    dataset = load("digits")
    pixels = dataset.train.x.astype(np.float64) / 255
    assert np.allclose((*dataset.scaling.mean, *dataset.scaling.deviation), (pixels.mean(), pixels.std()), atol=5e-4)
