"""Every clusterer on the same descriptors: a bank of federations, each trained once up to its clustering round.

    python benchmarks/descriptor_bank.py fill --data-dir DATA --bank BANK --jobs 16 [--groups mnist,cifar10,…]
    python benchmarks/descriptor_bank.py score --bank BANK [--out TABLE.md]

`fill` trains what is missing (`fedflux run --until clustered`, one process a cell, stoppable at any time); `score`
reads the saved descriptors, runs every clusterer on them in seconds and prints the share of client pairs decided
rightly: the mean over cells and, in brackets, the worst cell. k-means is told the true number of
clusters; nobody else is.
"""

import argparse
import os
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fedflux.runs.config import make_config
from fedflux.runs.presets import preset
from fedflux.runs.runner import run_config
from fedflux.runs.storage.folder import DESCRIPTOR_FILE
from fedflux.studies.recluster import recluster

SHIFTS = ("px", "py", "pygx", "pxgy")
SIX = [*((shift, "independent") for shift in SHIFTS), ("pygx", "shared"), ("pxgy", "shared")]
FOUR = SIX[:4]
CLUSTERERS = ("calibrated", "kmeans", "adaptive-dbscan", "agglomerative", "hdbscan", "kmeans-silhouette")


def cell(
    dataset: str, shift: str, patterns: str, level: int, seed: int, clients: int, fraction: float
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "shift": shift,
        "patterns": patterns,
        "level": level,
        "seed": seed,
        "clients": clients,
        "data_fraction": fraction,
    }


def cells(group: str) -> list[dict[str, Any]]:
    seeds, levels = (42, 43), (2, 4, 6, 8)
    if group in ("mnist", "fmnist"):
        return [cell(group, s, p, n, seed, 10, 1.0) for seed in seeds for n in levels for s, p in SIX]
    if group == "many":
        return [
            cell("mnist", s, p, n, seed, k, 1.0) for k in (25, 50) for seed in seeds for n in (3, 6) for s, p in SIX
        ]
    if group == "little":
        return [cell("mnist", s, p, n, seed, 10, 0.04) for seed in seeds for n in levels for s, p in FOUR]
    if group == "cifar10":
        return [cell(group, s, p, n, seed, 10, 1.0) for seed in seeds for n in levels for s, p in FOUR]
    sys.exit(f"unknown group '{group}': choose from mnist, fmnist, many, little, cifar10")


def folder_of(bank: Path, settings: dict[str, Any]) -> Path:
    return bank / "_".join(str(value) for value in settings.values())


def fill_cell(settings: dict[str, Any], data_dir: str, bank: Path) -> None:
    folder = folder_of(bank, settings)
    run_config(make_config({**settings, "data_dir": data_dir, "until": "clustered", "out": str(folder)}))


def fill(bank: Path, data_dir: str, groups: list[str], jobs: int) -> None:
    wanted = [settings for group in groups for settings in cells(group)]
    missing = [s for s in wanted if not (folder_of(bank, s) / DESCRIPTOR_FILE).exists()]
    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(fill_cell, settings, data_dir, bank) for settings in missing]
        for future in tqdm(as_completed(futures), total=len(futures), desc="cells"):
            future.result()


def score(bank: Path) -> str:
    rows: dict[tuple[str, ...], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for folder in tqdm(sorted(path.parent for path in bank.glob(f"*/{DESCRIPTOR_FILE}")), desc="scoring"):
        dataset, shift, patterns, _, _, clients, fraction = folder.name.split("_")
        for name in CLUSTERERS:
            found = recluster(folder, name, "true", preset(dataset)["eps_scale"])
            key = (dataset, clients, fraction, shift, patterns)
            rows[key][name].append((found["pairs_right"], found["ari"]))
    lines = [
        "| dataset | clients | data | shift | patterns | cells | " + " | ".join(CLUSTERERS) + " | ARI, calibrated |"
    ]
    lines.append("|---" * (7 + len(CLUSTERERS)) + "|")
    for place, found in sorted(rows.items()):
        figures = [f"{np.mean([r for r, _ in found[n]]):.3f} ({min(r for r, _ in found[n]):.3f})" for n in CLUSTERERS]
        ari = np.mean([a for _, a in found["calibrated"]])
        lines.append(f"| {' | '.join(place)} | {len(found['calibrated'])} | {' | '.join(figures)} | {ari:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["fill", "score"])
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--groups", default="mnist,fmnist,many,little,cifar10")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=None)
    told = parser.parse_args()
    if told.action == "fill":
        fill(told.bank, told.data_dir, told.groups.split(","), told.jobs)
        return
    table = score(told.bank)
    print(table)
    if told.out:
        told.out.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
