"""Does calibrated clustering keep its level? Rejection rates under the null, and federations without any shift.

python -m benchmarks.calibration            (from the repository's root)
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tests.clustering.making import Population, describe_samples
from tqdm import tqdm

from fedflux.clustering import CalibratedClustering
from fedflux.clustering.evidence.comparison import RULES, Pool, compare
from fedflux.clustering.variation import UNKNOWN
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

LEVELS = (0.05, 0.01, 0.001)


def rejection_rates(size: int, repeats: int) -> str:
    """Pairs of clients of `size` examples in ten Gaussian classes with unlike covariances, one distribution."""
    found = []
    for r in range(repeats):
        rng, world = np.random.default_rng(r), Population(r % 5)
        pool = Pool.of(describe_samples([world.draw(rng, size) for _ in range(2)], 10))
        found.append(compare(pool, np.array([0]), np.array([1]), UNKNOWN, RULES))
    columns = {
        "class": np.concatenate([e.classes[e.classes < 0] for e in found]),
        "joint": np.array([e.joint[0] for e in found]),
        "leading": np.array([e.leading[0] for e in found]),
        "two": np.array([e.two[0] for e in found]),
        "labels": np.array([e.labels[0] for e in found]),
        "total": np.array([e.total[0] for e in found]),
    }
    rates = [" / ".join(f"{(values < np.log(p)).mean():.4f}" for p in LEVELS) for values in columns.values()]
    return f"| {size} | " + " | ".join(rates) + " |"


def gaussian_federations(clients: int, size: int, repeats: int) -> int:
    kept = 0
    for r in tqdm(range(repeats), desc=f"{clients} Gaussian clients"):
        rng, world = np.random.default_rng(1000 + r), Population(r % 7)
        descriptors = describe_samples([world.draw(rng, size) for _ in range(clients)], 10)
        kept += CalibratedClustering().fit(descriptors).labels_.max() == 0
    return kept


def digit_federations(clients: int, repeats: int) -> int:
    """Whole runs on `digits` up to the clustering round, every one with its own seed."""
    kept = 0
    with TemporaryDirectory() as folder:
        for r in tqdm(range(repeats), desc=f"{clients} digits clients"):
            settings = {"shift": "none", "clients": clients, "seed": 100 + r, "until": "clustered"}
            result = run_config(make_config({**settings, "out": str(Path(folder) / str(r))}))
            kept += result["clusters_found"] == 1
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    print(f"share rejected at {' / '.join(map(str, LEVELS))}, no shift")
    print("| examples a client | class | joint | leading | two | labels | total |\n|---|---|---|---|---|---|---|")
    for size in (20, 40, 80, 192, 960, 4800):
        print(rejection_rates(size, 3 * repeats))
    for clients, size in ((10, 192), (10, 4800), (50, 100), (50, 960)):
        kept = gaussian_federations(clients, size, repeats)
        print(f"{clients} Gaussian clients of {size}: one cluster in {kept} of {repeats}")
    for clients in (10, 50):
        print(f"{clients} clients of digits: one cluster in {digit_federations(clients, repeats)} of {repeats}")


if __name__ == "__main__":
    main()
