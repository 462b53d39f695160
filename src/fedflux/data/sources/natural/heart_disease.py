"""Heart disease in four hospitals: UCI's tables by the recipe of Fed-Heart-Disease (FLamby)."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset
from fedflux.data.sources.fetch import Originals, Remote, find_files
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.errors import FedfluxError

if TYPE_CHECKING:
    import pandas as pd

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = 14
LEFT_OUT = [10, 11, 12]
"""Columns that most of the centres lack."""
CATEGORIES = [2, 6]
TRAIN_SHARE, SPLIT_SEED = 0.66, 43
_BASE = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
_MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
HEART_DISEASE = Originals(
    "heart-disease",
    layouts=(tuple(f"processed.{name}.data" for name in CENTRES),),
    subfolders=("heart-disease", "heart_disease", "heart+disease"),
    remotes=tuple(Remote(f"{_BASE}processed.{name}.data", _MD5[name]) for name in CENTRES),
)
"""Janosi, Steinbrunn, Pfisterer and Detrano, 1988; CC BY 4.0."""


def load_heart_disease(data_dir: Path | None = None) -> Dataset:
    """Four clients, thirteen features, each centre standardised by its own training part; 66 % to train on.

    Patients with missing values are left out; the label says whether any vessel is narrowed.
    """
    from sklearn.model_selection import train_test_split

    files = find_files(HEART_DISEASE, data_dir)
    x, y, owner = _centres(files)
    in_test = np.zeros(len(y), dtype=np.bool_)
    for centre in CENTRES:
        rows = np.flatnonzero(owner == centre)
        if len(rows) < 2:
            raise FedfluxError(f"heart-disease: {len(rows)} patients of {centre} without missing values; 2 are needed")
        classes = y[rows] if np.bincount(y[rows], minlength=2).min() > 2 else None
        train, test = train_test_split(rows, train_size=TRAIN_SHARE, random_state=SPLIT_SEED, stratify=classes)
        deviation = x[train].std(axis=0)
        x[rows] = (x[rows] - x[train].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        in_test[test] = True
    parts = [
        Part(x[some].astype(np.float32), y[some], owner[some], ending=ending)
        for some, ending in ((~in_test, ""), (in_test, "_test"))
    ]
    return make_dataset(
        "heart-disease", str(files[0].parent), *parts, class_names=["healthy", "diseased"], scale="none"
    )


def _centres(files: tuple[Path, ...]) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.str_]]:
    """Features, whether the heart is diseased, and the centre of every patient."""
    import pandas as pd

    tables = [_table(file).drop(columns=LEFT_OUT).dropna() for file in files]
    whole = pd.concat(tables, keys=CENTRES)
    y = (whole.iloc[:, -1] > 0).to_numpy().astype(np.int64)
    features = pd.get_dummies(whole.iloc[:, :-1], columns=CATEGORIES, drop_first=True)
    owner = whole.index.get_level_values(0).to_numpy().astype(np.str_)
    return features.to_numpy(dtype=np.float64), y, owner


def _table(file: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        table = pd.read_csv(file, header=None, na_values="?")
        table.astype(np.float64)
    except (OSError, ValueError) as error:
        raise FedfluxError(f"{file}: not UCI's table ({' '.join(str(error).split())}); download it again") from error
    if table.shape[1] != COLUMNS:
        raise FedfluxError(f"{file}: {table.shape[1]} columns; UCI's table has {COLUMNS}")
    return table
