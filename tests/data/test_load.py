"""Datasets by name: what every source says about folders it cannot use, and the digits that need none."""

import numpy as np
import pytest

from fedflux.data.sources import PIXELS, load
from tests.data.making import error_of


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
