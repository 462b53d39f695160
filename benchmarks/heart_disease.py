"""Fed-Heart-Disease: four centres, 740 patients, a logistic regression; FLUX beside FedAvg and each centre alone.

    python -m benchmarks.heart_disease --data DATA/heart_disease [--seeds 42,43,44,45,46] [--methods flux,fedavg,local]

The recipe is FLamby's: thirteen columns of UCI's tables, patients with missing values left out, 66 % of every centre to
train on, features standardised within each centre, batches of four, SGD at 0.001 and 15 rounds of 100 steps. Here a
round is four passes, which are 98 steps on average over centres, and there are two outputs instead of one, so that half
the rate moves their difference as fast. Test parts have 16 to 104 patients: a mean over centres has a standard error of
about 3.5 points. FLamby has 69.1 for FedAvg and 76.3 for every centre alone.
"""

import argparse
import warnings
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from fedflux.data import Dataset
from fedflux.data.sources.own import Part, make_dataset
from fedflux.models import OwnModel
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
LEFT_OUT = [10, 11, 12]
CATEGORIES = [2, 6]
SPLIT_SEED = 43
SETTINGS = {"rounds": 15, "epochs": 4, "batch_size": 4, "lr": 0.0005, "momentum": 0.0, "scale": "none"}

Array = NDArray[np.generic]


class LogisticRegression(nn.Module):
    """One layer; its latents are the features themselves."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(input_shape[0], classes)

    def encode(self, x: Tensor) -> Tensor:
        """The features."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(x)
        return logits


def centres(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.int64], Array]:
    """Features, whether the heart is diseased, and the centre of every patient."""
    tables = [pd.read_csv(folder / f"processed.{name}.data", header=None, na_values="?") for name in CENTRES]
    whole = pd.concat([one.drop(columns=LEFT_OUT).dropna() for one in tables], keys=CENTRES)
    y = (whole.iloc[:, -1] > 0).to_numpy().astype(np.int64)
    features = pd.get_dummies(whole.iloc[:, :-1], columns=CATEGORIES, drop_first=True)
    return features.to_numpy(dtype=np.float64), y, whole.index.get_level_values(0).to_numpy().astype(np.str_)


def load(folder: Path) -> Dataset:
    """Four clients, each standardised by its own training part."""
    x, y, owner = centres(folder)
    in_test = np.zeros(len(y), dtype=np.bool_)
    for centre in CENTRES:
        rows = np.flatnonzero(owner == centre)
        classes = y[rows] if np.bincount(y[rows]).min() > 2 else None
        train, test = train_test_split(rows, train_size=0.66, random_state=SPLIT_SEED, stratify=classes)
        deviation = x[train].std(axis=0)
        x[rows] = (x[rows] - x[train].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        in_test[test] = True
    parts = [
        Part(x[some].astype(np.float32), y[some], owner[some], ending=ending)
        for some, ending in ((~in_test, ""), (in_test, "_test"))
    ]
    return make_dataset("heart-disease", str(folder), *parts, class_names=["healthy", "diseased"], scale="none")


def main() -> None:
    """Print a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[*range(42, 47)])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["flux", "fedavg", "local"])
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    dataset, model = load(told.data), OwnModel.of(LogisticRegression)
    print(f"| known | {' | '.join(f'seed {seed}' for seed in told.seeds)} | mean | clusters |")
    print("|---" * (len(told.seeds) + 3) + "|")
    for method in told.methods:
        found = []
        for seed in told.seeds:
            with TemporaryDirectory() as folder:
                settings = {"algorithm": method, "seed": seed, "out": f"{folder}/run", "store": "none", **SETTINGS}
                config = make_config({"dataset": "npz", "model": model.name, **settings})
                found.append(run_config(config, None, dataset, model=model))
        scores = [one["known"] for one in found]
        clusters = ", ".join(str(one["clusters_found"]) for one in found)
        print(f"| {method} | {' | '.join(f'{one:.1f}' for one in scores)} | {mean(scores):.1f} | {clusters} |")


if __name__ == "__main__":
    main()
