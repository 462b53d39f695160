"""Office-Home: things at home and in the office, as art, clip art, product pictures and photographs."""

from pathlib import Path

import numpy as np

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.shifts.domains import Domains
from fedflux.data.sources.folder import visible_folders, visible_images
from fedflux.data.sources.natural.images import read_images
from fedflux.data.sources.natural.places import find_root
from fedflux.data.splits import hold_out
from fedflux.errors import FedfluxError

DOMAINS = (("Art",), ("Clipart",), ("Product",), ("Real World", "Real_World", "RealWorld"))
"""The folders of the four domains, and other names that they go by."""
CLASSES = 20
"""Of 65, in alphabetical order: the protocol's."""
SUBFOLDERS = ("officehome", "OfficeHomeDataset_10072016", "OfficeHome", "officehome/OfficeHomeDataset_10072016")
HOW = (
    "Office-Home is for research alone and is not handed on: fetch it from "
    "https://www.hemanthdv.org/officeHomeDataset.html and put its folders Art, Clipart, Product and Real World "
    "into a folder officehome"
)


def load_officehome(data_dir: Path | None = None) -> Dataset:
    """The first 20 classes, 64×64; clients are of one of the four domains."""
    return _load(data_dir, CLASSES)


def all_classes(data_dir: Path | None = None) -> Dataset:
    """All 65: `--dataset fedflux.data.sources.natural.officehome:all_classes`."""
    return _load(data_dir, None)


def _load(data_dir: Path | None, count: int | None) -> Dataset:
    root = find_root("officehome", data_dir, SUBFOLDERS, lambda folder: all(_domains(folder)), HOW)
    folders = [folder for folder in _domains(root) if folder is not None]
    held = [{folder.name: visible_images(folder) for folder in visible_folders(domain)} for domain in folders]
    classes = sorted(set().union(*held))[:count]
    paths, y, domain = [], [], []
    for number, by_class in enumerate(held):
        for label, name in enumerate(classes):
            found = by_class.get(name, [])
            paths += found
            y += [label] * len(found)
            domain += [number] * len(found)
    if len(set(domain)) < len(DOMAINS):
        empty = folders[min(set(range(len(DOMAINS))) - set(domain))]
        raise FedfluxError(f"{empty}: holds no image of the classes {classes[0]} to {classes[-1]}; {HOW}")
    # cut by domain, which stands in for the owner until the parts are made
    train, test = hold_out(Examples(read_images(root, paths, grey=False), np.array(y), np.array(domain)))
    assert train.client is not None
    assert test.client is not None
    domains = Domains(("domain",), train.client[:, None], test.client[:, None])
    first, second = Examples(train.x, train.y), Examples(test.x, test.y)
    return Dataset("officehome", first, second, len(classes), class_names=tuple(classes), domains=domains)


def _domains(folder: Path) -> list[Path | None]:
    """The folder of each domain, None where there is none."""
    return [next((folder / name for name in names if (folder / name).is_dir()), None) for names in DOMAINS]
