"""Datasets by name: each source reads original files from a folder, or fetches them when they are absent."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedflux.data.dataset import Dataset
from fedflux.data.scaling import Scaling
from fedflux.data.sources.cifar import load_cifar10, load_cifar100
from fedflux.data.sources.dependence import dependence
from fedflux.data.sources.digits import load_digits
from fedflux.data.sources.folder import load_folder
from fedflux.data.sources.idx import load_emnist, load_fmnist, load_mnist
from fedflux.data.sources.natural.chest import load_chexpert, load_nih
from fedflux.data.sources.natural.heart_disease import load_heart_disease
from fedflux.data.sources.natural.officehome import load_officehome
from fedflux.data.sources.npz import load_npz
from fedflux.data.sources.table import load_csv
from fedflux.errors import FedfluxError, unknown
from fedflux.plugins import find

SOURCES: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fmnist": load_fmnist,
    "emnist": load_emnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "officehome": load_officehome,
    "chexpert": load_chexpert,
    "nih-cxr": load_nih,
    "heart-disease": load_heart_disease,
    "folder": load_folder,
    "npz": load_npz,
    "csv": load_csv,
}
OWN = ("folder", "npz", "csv")
"""Sources of people's own data."""

PIXELS: dict[str, tuple[float, float]] = {
    "digits": (0.306, 0.376),
    "mnist": (0.1307, 0.3081),
    "fmnist": (0.2860, 0.3530),
    "emnist": (0.1751, 0.3332),
    "cifar10": (0.4734, 0.2516),
    "cifar100": (0.4782, 0.2682),
}
"""Mean and deviation of the training pixels of public datasets, over all channels."""


BY_LEVEL = frozenset(("chexpert", "nih-cxr"))
"""Data whose level says by how many attributes clients differ: 1 by view, 2 by age too, 3 by sex too."""
PUBLIC = frozenset((*PIXELS, "officehome", "chexpert", "nih-cxr", "heart-disease"))
"""Data of which it is known what belongs together."""
GROUP = "fedflux.datasets"
"""Entry points by which packages offer datasets: functions like `load_mnist`."""


def find_source(name: str) -> Callable[[Path | None], Dataset]:
    """What loads the dataset of that name: ours, an installed package's, or `package.module:function`."""
    found = SOURCES.get(name) or find(GROUP, name, "dataset")
    if found is None:
        raise unknown("dataset", name, SOURCES)
    source: Callable[[Path | None], Dataset] = found
    return source


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """The dataset of that name; `data_dir` holds its files, or a sub-folder of its name that does."""
    dataset = find_source(name)(data_dir)
    if not isinstance(dataset, Dataset):
        raise FedfluxError(f"dataset '{name}' gives {type(dataset).__name__}, not fedflux.data.Dataset")
    if name not in PUBLIC:
        warn_dependent(dataset, stacklevel=3)
    known = PIXELS.get(name)
    return dataset if known is None else replace(dataset, scaling=Scaling("pixels", known[:1], known[1:]))


def warn_dependent(dataset: Dataset, stacklevel: int = 4) -> None:
    """Say where records seem to belong together and no groups are given: they would be taken for independent."""
    signs = dependence(dataset.train)
    if signs is not None:
        advice = "if several come from one person, recording or device, say so by groups (docs/groups.md)"
        words = f"{dataset.name}: {signs}; {advice}, else clients that differ in nothing may be split"
        warnings.warn(words, stacklevel=stacklevel)
