"""Real images as npz files: sprites of Office-Home and of NIH's chest X-rays, dealt to clients by a recipe.

python -m benchmarks.real_data officehome --data DATA/officehome20_64 --out officehome.npz --seed 42
python -m benchmarks.real_data nih --data DATA/nih_cxr64 --out nih.npz --clients 10 --label finding --seed 42
python -m benchmarks.real_data nih --data DATA/nih_cxr64 --out nih.npz --by attributes --label findings --seed 42

A folder holds JPEG sprites (rows of 64×64 tiles) and labels.csv.gz. The files have x, y, client and, where they are
known, group (the patient) and cluster; X-rays are labelled with their view, any finding, or all 14 findings (N, 14).
`fedflux run --dataset npz --data-dir FILE` reads them and cuts test parts.
`--without-groups` leaves the patients out, as data comes whose owner did not think of them.
"""

import argparse
import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedflux.files import write_npz

TILE = 64
DOMAINS = ("Art", "Clipart", "Product", "Real_World")
LARGE = 475
"""Images from which on a group of views, ages and sexes is halved by patients: of the eight, five are."""

Array = NDArray[np.generic]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class XRays:
    """NIH's chest X-rays in the order of their patients."""

    x: Array
    """(N, 64, 64)."""
    patient: Index
    view: Index
    """0: from behind (PA), 1: from the front (AP)."""
    findings: Index
    """(N, 14): which findings were made."""
    names: tuple[str, ...]
    """Of the findings."""
    attributes: Index
    """View, age above 50 and sex as one number below 8."""


def tiles(sprite: Path, count: int) -> Array:
    """The first so many tiles of a sprite, row by row: (count, 64, 64) or (count, 64, 64, 3)."""
    pixels = np.asarray(Image.open(sprite))
    down, across = pixels.shape[0] // TILE, pixels.shape[1] // TILE
    grid = pixels.reshape(down, TILE, across, TILE, -1).transpose(0, 2, 1, 3, 4)
    return grid.reshape(down * across, TILE, TILE, -1)[:count].squeeze(-1 if pixels.ndim == 2 else ())


def table(folder: Path) -> dict[str, Array]:
    """The columns of labels.csv.gz."""
    with gzip.open(folder / "labels.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def load_xrays(folder: Path) -> XRays:
    """All X-rays of the folder."""
    columns = table(folder)
    names = tuple(columns)[tuple(columns).index("view") + 1 :]
    findings = np.stack([columns[name] == "1" for name in names], axis=1).astype(np.int64)
    view = (columns["view"] == "AP").astype(np.int64)
    old, male = columns["age"].astype(np.int64) > 50, columns["gender"] == "M"
    attributes = 4 * view + 2 * old + male
    x = tiles(folder / "images.jpg", len(view))
    return XRays(x, columns["patient"].astype(np.int64), view, findings, names, attributes)


def deal_patients(patient: Index, clients: int, rng: np.random.Generator) -> Index:
    """The client of each record: patients in random order, as many to each client as to every other."""
    people, who = np.unique(patient, return_inverse=True)
    return (rng.permutation(len(people)) % clients)[who.reshape(-1)].astype(np.int64)


def deal_attributes(xrays: XRays, rng: np.random.Generator) -> Index:
    """The client of each X-ray: its view, age and sex, and one of two halves of the patients of a large group."""
    client = 2 * xrays.attributes
    for number in np.unique(xrays.attributes):
        mine = np.flatnonzero(xrays.attributes == number)
        if len(mine) > LARGE:
            client[mine] += deal_patients(xrays.patient[mine], 2, rng)
    return np.unique(client, return_inverse=True)[1].astype(np.int64)


def deal_domains(domain: Index, clients: int, rng: np.random.Generator) -> Index:
    """The client of each picture: domains go round the clients, whose order is shuffled; a domain is cut equally."""
    of_client = rng.permutation(np.arange(clients) % len(DOMAINS))
    client = np.empty(len(domain), dtype=np.int64)
    for number in np.unique(domain):
        mine = rng.permutation(np.flatnonzero(domain == number))
        owners = np.flatnonzero(of_client == number)
        for owner, part in zip(owners, np.array_split(mine, len(owners)), strict=True):
            client[part] = owner
    return client


def officehome(folder: Path, clients: int, seed: int) -> dict[str, Array]:
    """Office-Home: the cluster is the domain."""
    columns = table(folder)
    domain = np.array([DOMAINS.index(name.removesuffix(".jpg")) for name in columns["sprite"]])
    x = np.concatenate([tiles(folder / f"{name}.jpg", int((domain == n).sum())) for n, name in enumerate(DOMAINS)])
    place = columns["index"].astype(np.int64) + np.searchsorted(np.sort(domain), domain)
    client = deal_domains(domain, clients, np.random.default_rng(seed))
    return {"x": x[place], "y": columns["label"].astype(np.int64), "client": client, "cluster": domain}


def nih(folder: Path, by: str, label: str, clients: int, seed: int, groups: bool = True) -> dict[str, Array]:
    """X-rays, patients dealt at random (one cluster) or by view, age and sex (eight)."""
    xrays, rng = load_xrays(folder), np.random.default_rng(seed)
    dealt = by == "patients"
    client = deal_patients(xrays.patient, clients, rng) if dealt else deal_attributes(xrays, rng)
    cluster = np.zeros_like(client) if dealt else xrays.attributes
    y = {"view": xrays.view, "finding": xrays.findings.max(axis=1), "findings": xrays.findings}[label]
    arrays: dict[str, Array] = {"x": xrays.x, "y": y, "client": client, "cluster": cluster}
    if label == "findings":
        arrays["class_names"] = np.array(xrays.names)
    return arrays | ({"group": xrays.patient} if groups else {})


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=("officehome", "nih"))
    parser.add_argument("--data", type=Path, required=True, help="the folder with the sprites and labels.csv.gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--by", choices=("patients", "attributes"), default="patients", help="what nih is dealt by")
    parser.add_argument("--label", choices=("finding", "findings", "view"), default="finding")
    parser.add_argument("--without-groups", action="store_true", help="leave the patients out")
    told = parser.parse_args()
    if told.dataset == "officehome":
        arrays = officehome(told.data, told.clients, told.seed)
    else:
        arrays = nih(told.data, told.by, told.label, told.clients, told.seed, not told.without_groups)
    write_npz(told.out, arrays)
    sizes = np.bincount(arrays["client"].astype(np.int64))
    print(f"{told.out}: {len(arrays['y'])} images, {len(sizes)} clients of {sizes.min()} to {sizes.max()}")


if __name__ == "__main__":
    main()
