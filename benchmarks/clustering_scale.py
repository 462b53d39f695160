"""How long clustering takes, what it needs and what it finds, from 10,000 to 100,000 clients of synthetic worlds.

python -m benchmarks.clustering_scale --out FOLDER            (from the repository's root; twenty minutes or so)
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from tests.clustering.making import many_clients
from tqdm import tqdm

from fedflux.clustering import Clusterer, find_clusters

SIZES = (10_000, 20_000, 50_000, 100_000)
WORLDS = {
    "200 clusters": (200, 3.0, 2),
    "5 weak clusters": (5, 1.2, 2),
    "all different": (None, 3.0, 10),
    "one cluster": (1, 0.0, 0),
}
"""Clusters, and by how many deviations how many classes of each of them are moved."""
CLUSTERERS = ("calibrated", "adaptive-dbscan")


def truth_of(world: str, clients: int) -> NDArray[np.int64]:
    clusters = WORLDS[world][0]
    return np.arange(clients) if clusters is None else np.random.default_rng(0).integers(0, clusters, clients)


def cell(clusterer: str, world: str, clients: int) -> dict[str, object]:
    """One measurement; peak memory is the process's, so each has a process of its own."""
    truth = truth_of(world, clients)
    descriptors = many_clients(0, truth, *WORLDS[world][1:])
    start = time.perf_counter(), time.process_time()
    labels = find_clusters(descriptors, Clusterer(clusterer)).labels
    seconds, busy = time.perf_counter() - start[0], time.process_time() - start[1]
    return {
        "clusterer": clusterer,
        "world": world,
        "clients": clients,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(busy, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "clusters": int(labels.max()) + 1,
        "ari": round(float(adjusted_rand_score(truth, labels)), 3),
    }


def exponent(rows: list[dict[str, object]]) -> float:
    """e of CPU seconds ∝ clientsᵉ from 20,000 clients on."""
    large = [(float(str(r["clients"])), float(str(r["cpu_seconds"]))) for r in rows if int(str(r["clients"])) >= 20_000]
    if len(large) < 2:
        return float("nan")
    clients, seconds = np.log(np.array(large)).T
    return float(np.polyfit(clients, seconds, 1)[0])


def table(rows: list[dict[str, object]]) -> str:
    lines = ["| clusterer | world | clients | seconds | CPU seconds | peak MB | clusters | ARI |", "|" + "---|" * 8]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def of(rows: list[dict[str, object]], clusterer: str, world: str) -> list[dict[str, object]]:
    return [row for row in rows if (row["clusterer"], row["world"]) == (clusterer, world)]


def draw(rows: list[dict[str, object]], path: Path) -> None:
    figure, panels = plt.subplots(1, len(CLUSTERERS), figsize=(10, 4), sharey=True)
    for panel, clusterer in zip(panels, CLUSTERERS, strict=True):
        for world in WORLDS:
            mine = of(rows, clusterer, world)
            panel.loglog([r["clients"] for r in mine], [r["cpu_seconds"] for r in mine], "o-", label=world)
        panel.set(title=clusterer, xlabel="clients", ylabel="CPU seconds")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("clustering_scale"))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(cell(asked.cell[0], asked.cell[1], int(asked.cell[2]))))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    stored = asked.out / "clustering_scale.json"
    rows: list[dict[str, object]] = json.loads(stored.read_text()) if stored.exists() else []
    done = {(row["clusterer"], row["world"], row["clients"]) for row in rows}
    for size, clusterer, world in tqdm(list(product(asked.sizes, CLUSTERERS, WORLDS))):
        if (clusterer, world, size) in done:
            continue
        command = [sys.executable, "-m", "benchmarks.clustering_scale", "--cell", clusterer, world, str(size)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        stored.write_text(json.dumps(rows, indent=1))
    rows.sort(key=lambda r: (str(r["clusterer"]), list(WORLDS).index(str(r["world"])), int(str(r["clients"]))))
    draw(rows, asked.out / "clustering_scale.png")
    print(table(rows))
    for clusterer, world in product(CLUSTERERS, WORLDS):
        print(f"{clusterer}, {world}: CPU seconds grow with clients^{exponent(of(rows, clusterer, world)):.2f}")


if __name__ == "__main__":
    main()
