"""Datasets by name: each source reads original files from a folder, or fetches them when they are absent."""

from collections.abc import Callable
from pathlib import Path

from fedflux.data.dataset import Dataset
from fedflux.data.sources.cifar import load_cifar10, load_cifar100
from fedflux.data.sources.digits import load_digits
from fedflux.data.sources.folder import load_folder
from fedflux.data.sources.idx import load_emnist, load_fmnist, load_mnist
from fedflux.data.sources.npz import load_npz
from fedflux.errors import unknown

SOURCES: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fmnist": load_fmnist,
    "emnist": load_emnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "folder": load_folder,
    "npz": load_npz,
}


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """The dataset of that name; `data_dir` holds its files, or a sub-folder of its name that does."""
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    return SOURCES[name](data_dir)
