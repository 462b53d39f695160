"""One small trained run for all tests of the room, and its bundle."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.library.test_several_labels import clinic

import fedflux
from fedflux.serve.bundle import Bundle, build_bundle
from fedflux.serve.container import read_files, write_files
from fedflux.serve.making import bundle_contents

SMALL: dict[str, Any] = {"dataset": "digits", "shift": "px", "level": 4, "clients": 6, "rounds": 3, "cluster_round": 1}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedflux.TrainedRun:
    folder = tmp_path_factory.mktemp("trained") / "digits"
    fedflux.run(**SMALL, out=folder, progress=False)
    return fedflux.load(folder)


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> fedflux.TrainedRun:
    return clinics(tmp_path_factory.mktemp("several"))


def clinics(folder: Path) -> fedflux.TrainedRun:
    """A run on records with several labels, of clinics with two kinds of scanners."""
    rng = np.random.default_rng(3)
    x, y = (np.concatenate(part) for part in zip(*(clinic(rng, k % 2) for k in range(6)), strict=True))
    names = np.array(["oedema", "mass", "nodule", "fibrosis"])
    np.savez(folder / "own.npz", x=x, y=y, client=np.repeat(np.arange(6), 100), class_names=names)
    told: dict[str, Any] = {"dataset": "npz", "data_dir": folder / "own.npz", "lr": 0.2, "engine": "loop"}
    fedflux.run(**told, rounds=3, cluster_round=1, out=folder / "run", progress=False)
    return fedflux.load(folder / "run")


@pytest.fixture(scope="session")
def contents(run: fedflux.TrainedRun) -> dict[str, bytes]:
    return bundle_contents(run)


@pytest.fixture
def folder(contents: dict[str, bytes], tmp_path: Path) -> Path:
    write_files(tmp_path / "bundle", contents)
    return tmp_path / "bundle"


@pytest.fixture(scope="session")
def bundle(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundle") / "bundle.zip"
    write_files(path, contents)
    return build_bundle(read_files(path), str(path))


def images(count: int, seed: int = 0, turned: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Handwritten digits as somebody new has them, perhaps turned."""
    from fedflux.data.sources.digits import load_digits

    rows = np.random.default_rng(seed).choice(len(load_digits().test.x), count, replace=False)
    return np.rot90(load_digits().test.x[rows], turned, axes=(2, 3)).copy()
