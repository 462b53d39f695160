"""A run's own model is found again by where it is written, or handed in again; one that is another is noticed."""

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs.making import make_client, save_clients
from torch import nn

import fedflux
from fedflux.errors import FedfluxError

SOURCE = """
from torch import nn

class Net(nn.Module):
    encoder = "hidden"

    def __init__(self, input_shape, classes):
        super().__init__()
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(36, {width}), nn.{activation}())
        self.last = nn.Linear({width}, classes)

    def forward(self, x):
        return self.last(self.hidden(x))
"""
NEW, _ = make_client(50, 12)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model's source, in which the user is."""
    write(tmp_path)
    save_clients(tmp_path / "data.npz", [make_client(k, 30) for k in range(3)])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets_of_mine", None)


def write(folder: Path, width: int = 8, activation: str = "ReLU") -> None:
    """The source of the model, which nobody has imported yet."""
    (folder / "nets_of_mine.py").write_text(SOURCE.format(width=width, activation=activation))
    sys.modules.pop("nets_of_mine", None)
    importlib.invalidate_caches()


def run(model: Any, **options: Any) -> fedflux.Result:
    settings = {"rounds": 1, "algorithm": "fedavg", "device": "cpu", "shift": "none", "store": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fedflux.run(dataset="npz", data_dir="data.npz", model=model, out="run", **{**settings, **options})


def test_a_model_named_by_its_path_is_found_again(here: Path, recwarn: pytest.WarningsRecorder) -> None:
    run("nets_of_mine:Net")
    sys.modules.pop("nets_of_mine")
    trained = fedflux.load("run")
    assert np.asarray(trained.predict(NEW)).shape == (12, 3)
    assert "Net(" in repr(trained.model(0))
    assert not recwarn.list


def test_a_class_that_was_handed_in_is_found_where_it_is_written(here: Path, recwarn: pytest.WarningsRecorder) -> None:
    sys.path.insert(0, str(here))
    try:
        run(importlib.import_module("nets_of_mine").Net)
    finally:
        sys.path.remove(str(here))
    sys.modules.pop("nets_of_mine")
    assert np.asarray(fedflux.load("run").predict(NEW)).shape == (12, 3)
    assert not recwarn.list


@pytest.mark.parametrize("handed_in", [False, True])
def test_a_changed_source_is_warned_of(handed_in: bool, here: Path) -> None:
    run("nets_of_mine:Net")
    write(here, activation="Tanh")
    with pytest.warns(UserWarning, match="run: model nets_of_mine:Net is written otherwise than when the run was made"):
        fedflux.load("run", model="nets_of_mine:Net" if handed_in else None).predict(NEW)


def test_other_layers_are_refused(here: Path) -> None:
    run("nets_of_mine:Net")
    write(here, width=9)
    words = r"model nets_of_mine:Net is not the one that was trained \(module.hidden.1.bias: \(9,\), not \(8,\)\)"
    with pytest.warns(UserWarning, match="written otherwise"), pytest.raises(FedfluxError, match=words):
        fedflux.load("run")


def test_a_source_that_is_gone_is_said(here: Path) -> None:
    run("nets_of_mine:Net")
    (here / "nets_of_mine.py").unlink()
    sys.modules.pop("nets_of_mine")
    importlib.invalidate_caches()
    with (
        pytest.warns(UserWarning, match="written otherwise"),
        pytest.raises(FedfluxError, match="cannot import 'nets_of_mine' for --model"),
    ):
        fedflux.load("run")


def test_a_model_without_a_path_is_handed_in_again(here: Path) -> None:
    class Local(nn.Module):
        encoder = "0"

        def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
            super().__init__()
            self.add_module("0", nn.Flatten())
            self.last = nn.Linear(36, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.last(self.get_submodule("0")(x))
            return logits

    result = run(Local)
    words = r"run was trained with model .*Local, which has no import path: load\(…, model=.*Local\)"
    with pytest.raises(FedfluxError, match=words):
        fedflux.load("run")
    before = np.asarray(fedflux.load("run", model=Local).predict(NEW))
    given = Local((1, 6, 6), 3)
    np.testing.assert_array_equal(before, fedflux.load("run", model=given).predict(NEW))
    assert result["known"] is not None


def test_a_model_that_is_none_is_refused(here: Path) -> None:
    run("mlp")
    with pytest.raises(FedfluxError, match="model: int is no model"):
        fedflux.load("run", model=3)
    with pytest.raises(FedfluxError, match=r"model lenet5|lenet5 needs images"):
        fedflux.load("run", model="lenet5")
