"""Chest radiographs, CheXpert and NIH ChestX-ray14: clients differ by view, by age and by sex; patients are groups."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.shifts.domains import Domains
from fedflux.data.sources.natural.images import read_images
from fedflux.data.sources.natural.places import find_root
from fedflux.errors import FedfluxError

if TYPE_CHECKING:
    import pandas as pd

OLD = 60
"""Years from which on a patient is old: the release's (the paper says 50)."""
ROWS = 120_000
"""Rows that are used, from the first: the release's 100,000 to train on and 20,000 to test with."""
TRAIN_SHARE = 5 / 6
TESTS = 280
"""Test images of a client: the protocol's."""
ATTRIBUTES = ("view", "age", "sex")
CHEXPERT_FINDINGS = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema"),
    *("Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture"),
    "Support Devices",
)
NIH_FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia"),
    *("Infiltration", "Mass", "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax"),
)
CHEXPERT_HOW = (
    "CheXpert is not handed on: fetch CheXpert-v1.0-small from https://stanfordmlgroup.github.io/competitions/chexpert "
    "and put its train.csv and its folder train into a folder chexpert"
)
NIH_HOW = (
    "ChestX-ray14 takes 42 GB: fetch Data_Entry_2017.csv and the image archives from "
    "https://nihcc.app.box.com/v/ChestXray-NIHCC and put them, unpacked, into a folder nih-cxr"
)
NIH_TABLES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")


@dataclass(frozen=True, eq=False)
class _Radiographs:
    """What a table says of its images, a row an image."""

    paths: list[Path]
    patient: NDArray[np.int64]
    attributes: NDArray[np.int64]
    """(images × 3): view, old or not, sex."""
    findings: NDArray[np.bool_]
    """(images × findings): whether there is one."""


def load_chexpert(data_dir: Path | None = None) -> Dataset:
    """CheXpert's training table: uncertain findings count as findings, those not named as none."""
    places = ("chexpert", "CheXpert-v1.0-small", "chexpert/CheXpert-v1.0-small")
    root = find_root("chexpert", data_dir, places, lambda folder: (folder / "train.csv").is_file(), CHEXPERT_HOW)
    return _dataset("chexpert", root, _read_chexpert(root), CHEXPERT_FINDINGS, CHEXPERT_HOW)


def load_nih(data_dir: Path | None = None) -> Dataset:
    """ChestX-ray14, or those of its images that are there."""
    places = ("nih-cxr", "nih_cxr", "ChestXray-NIHCC")
    root = find_root("nih-cxr", data_dir, places, lambda folder: _nih_table(folder) is not None, NIH_HOW)
    return _dataset("nih-cxr", root, _read_nih(root), NIH_FINDINGS, NIH_HOW)


def _read_chexpert(root: Path) -> _Radiographs:
    table = _table(root / "train.csv", ("Path", "Sex", "Age", "Frontal/Lateral", *CHEXPERT_FINDINGS))
    table = table[table["Sex"].isin(("Female", "Male")) & table["Frontal/Lateral"].isin(("Frontal", "Lateral"))]
    parts = table["Path"].str.partition("train/")
    if len(table) and not (parts[1] == "train/").all():
        raise FedfluxError(f"{root / 'train.csv'}: column Path must name files below train/")
    patient = _numbered(parts[2].str.partition("/")[0])
    attributes = (table["Frontal/Lateral"] == "Lateral", table["Age"].astype(float) >= OLD, table["Sex"] == "Male")
    found = table[list(CHEXPERT_FINDINGS)].fillna(0).to_numpy(dtype=np.float64) != 0
    paths = [root / "train" / name for name in parts[2]]
    return _radiographs(paths, patient, attributes, found)


def _read_nih(root: Path) -> _Radiographs:
    file = _nih_table(root)
    assert file is not None
    columns = ("Image Index", "Finding Labels", "Patient ID", "Patient Age", "Patient Gender", "View Position")
    table = _table(file, columns)
    table = table[table["Patient Gender"].isin(("F", "M")) & table["View Position"].isin(("PA", "AP"))]
    there = {path.name: path for path in sorted(root.glob("images*/**/*.png"))}
    held = table["Image Index"].isin(there)
    if not held.all():
        warnings.warn(f"nih-cxr: {(~held).sum():,} of {len(table):,} images are not in {root}", stacklevel=4)
    table = table[held]
    age = table["Patient Age"].astype(str).str.extract(r"(\d+)")[0].astype(float)  # `058Y` in older tables
    attributes = (table["View Position"] == "AP", age >= OLD, table["Patient Gender"] == "M")
    named = table["Finding Labels"].str.split("|")
    found = np.array([[name in each for name in NIH_FINDINGS] for each in named], dtype=np.bool_)
    patient = _numbered(table["Patient ID"])
    paths = [there[name] for name in table["Image Index"]]
    return _radiographs(paths, patient, attributes, found.reshape(-1, len(NIH_FINDINGS)))


def _numbered(patient: "pd.Series[Any]") -> NDArray[np.int64]:
    return np.unique(patient.to_numpy().astype(np.str_), return_inverse=True)[1].reshape(-1).astype(np.int64)


def _radiographs(
    paths: list[Path], patient: NDArray[np.int64], attributes: tuple["pd.Series[bool]", ...], found: NDArray[np.bool_]
) -> _Radiographs:
    columns = np.stack([one.to_numpy() for one in attributes], axis=1).astype(np.int64)
    return _Radiographs(paths[:ROWS], patient[:ROWS].astype(np.int64), columns[:ROWS], found[:ROWS])


def _dataset(name: str, root: Path, held: _Radiographs, findings: tuple[str, ...], how: str) -> Dataset:
    """The first 5/6 of the rows to train on, the others to test with; a patient's images stay together."""
    if not held.paths:
        raise FedfluxError(f"{name}: {root} holds no image that its table names; {how}")
    in_test = _last_patients(held.patient)
    if in_test.all() or not in_test.any():
        raise FedfluxError(f"{name}: {root} holds images of one patient; a test part needs another's")
    x, y = read_images(root, held.paths, grey=True), held.findings.astype(np.int64)
    train, test = (Examples(x[part], y[part], None, held.patient[part]) for part in (~in_test, in_test))
    domains = Domains(ATTRIBUTES, held.attributes[~in_test], held.attributes[in_test], TESTS)
    return Dataset(name, train, test, len(findings), class_names=findings, domains=domains)


def _last_patients(patient: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The images after 5/6 of the rows, but for those of patients who were there before."""
    cut = round(TRAIN_SHARE * len(patient))
    return np.asarray((np.arange(len(patient)) >= cut) & ~np.isin(patient, patient[:cut]), dtype=np.bool_)


def _table(file: Path, columns: tuple[str, ...]) -> "pd.DataFrame":
    """A table with these columns at least."""
    import pandas as pd

    try:
        table = pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise FedfluxError(f"{file}: not a readable table ({' '.join(str(error).split())})") from error
    for column in columns:
        if column not in table:
            raise FedfluxError(f"{file}: has no column '{column}'; the official table does")
    return table


def _nih_table(folder: Path) -> Path | None:
    return next((folder / name for name in NIH_TABLES if (folder / name).is_file()), None)
