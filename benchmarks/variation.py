"""Clients that differ by nature: are they left together, and are real groups among them found?

python -m benchmarks.variation --out FOLDER [--worlds 100] [--only NAME] [--latents FILE]   (from the root; resumable)

Every row is a kind of world: 20 clients in ten classes with unlike covariances. Class means of clients vary by
`variation` deviations in every coordinate; groups of clients lie `apart` deviations from each other in three classes.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from tests.clustering.making import Population, Sample, describe_samples, many_descriptors
from tqdm import tqdm

from fedflux.clustering import CalibratedClustering
from fedflux.descriptors.descriptor import Descriptors
from fedflux.runs.scores import cluster_scores

CLIENTS, CLASSES, LENGTH = 20, 10, 10
VARIATIONS, SIZES = (0.0, 0.02, 0.05, 0.1, 0.2), (300, 1_000, 5_000, 20_000)
FIRST_SEED = 5_000


@dataclass(frozen=True)
class World:
    """One kind of federation: how its truth and its descriptors are drawn."""

    name: str
    draw: Callable[[np.random.Generator, int], tuple[NDArray[np.int64], Descriptors]]


def effects(rng: np.random.Generator, world: Population, variation: float, shape: str) -> NDArray[np.float64]:
    """(clients, classes, l): random effects, in the shape of the class's scatter or independent by coordinate."""
    normal = variation * rng.normal(size=(CLIENTS, CLASSES, LENGTH))
    if shape == "scatter":
        return np.asarray(np.einsum("kuj,uji->kui", normal, world.mix))
    return np.asarray(normal * np.sqrt((world.mix**2).sum(axis=1)))


def gaussian(variation: float, size: int, groups: int, apart: float, shape: str = "scatter") -> World:
    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        world, truth = Population(seed), np.arange(CLIENTS) % groups
        direction = rng.normal(size=(groups, CLASSES, LENGTH))
        direction *= apart / np.sqrt(2) / np.linalg.norm(direction, axis=2, keepdims=True)
        chosen = rng.permutation(CLASSES)[:3]
        if groups == 2:
            direction[1] = -direction[0]
        moved = np.zeros((groups, CLASSES, LENGTH))
        moved[:, chosen] = direction[:, chosen] / (np.sqrt(2) if groups == 2 else 1.0)
        moves = np.einsum("muj,uji->mui", moved, world.mix)[truth] + effects(rng, world, variation, shape)
        sizes = np.full(CLIENTS, size)
        return truth, many_descriptors(rng, world, moves, np.arange(CLIENTS), sizes)

    told = "exchangeable" if groups == 1 else f"{groups} groups {apart} apart"
    return World(f"{told}, variation {variation} by {shape}, {size} examples", draw)


def lopsided(directions: int, clients: int, variation: float, size: int) -> World:
    """Exchangeable clients that vary in few directions, which all classes have in common: brightness, say."""

    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        world = Population(seed)
        axes = np.linalg.qr(rng.normal(size=(LENGTH, directions)))[0].T
        reach = variation * np.sqrt(LENGTH / directions)
        moves = np.repeat((reach * rng.normal(size=(clients, directions)) @ axes)[:, None], CLASSES, axis=1)
        moves = np.einsum("kuj,uji->kui", moves, world.mix)
        return np.zeros(clients, np.int64), many_descriptors(
            rng, world, moves, np.arange(clients), np.full(clients, size)
        )

    told = f"{clients} exchangeable, variation {variation} in {directions} directions"
    return World(f"{told}, {size} examples", draw)


def by_label(strength: float, size: int) -> World:
    """Exchangeable clients whose label shares vary: Dirichlet with so many examples' worth of equal shares."""

    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        world, even = Population(seed), np.full(CLASSES, strength / CLASSES)
        clients = [world.draw(rng, size, shares=rng.dirichlet(even)) for _ in range(CLIENTS)]
        return np.zeros(CLIENTS, np.int64), describe_samples(clients, CLASSES)

    return World(f"exchangeable, label shares Dirichlet of {strength:g}, {size} examples", draw)


def heavy_tailed(unequal: bool) -> World:
    """Latents of a random ReLU layer, averaged down to l numbers: skewed, with heavy tails."""

    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        world, hidden = Population(seed), np.random.default_rng(seed).normal(size=(LENGTH, LENGTH))
        sizes = np.exp(rng.uniform(np.log(10), np.log(5_000), CLIENTS)).astype(int) if unequal else [500] * CLIENTS

        def latents(size: int) -> Sample:
            z, y = world.draw(rng, size)
            return np.maximum(z @ hidden / 3, 0) ** 1.5, y

        return np.zeros(CLIENTS, np.int64), describe_samples([latents(size) for size in sizes], CLASSES)

    return World("heavy tails, " + ("10 to 5000 examples" if unequal else "500 examples"), draw)


def dealt(file: Path) -> World:
    """Reduced latents of real images (`reduced` and `y` of an npz file), dealt at random to clients of unlike sizes."""
    arrays = np.load(file)
    z, y = arrays["reduced"].astype(np.float64), arrays["y"].astype(np.int64)

    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        sizes = np.exp(rng.uniform(np.log(10), np.log(5_000), CLIENTS))
        ends = np.cumsum(np.maximum(sizes * (len(y) - 10 * CLIENTS) / sizes.sum(), 1).astype(int) + 9)
        parts = np.split(rng.permutation(len(y))[: ends[-1]], ends[:-1])
        return np.zeros(CLIENTS, np.int64), describe_samples([(z[p], y[p]) for p in parts], int(y.max()) + 1)

    return World(f"{file.name} dealt at random", draw)


def spread(factor: float, size: int, groups: int = 2) -> World:
    """The same class means; the second half of the clients have wider classes."""

    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        world, truth = Population(seed), np.arange(CLIENTS) % groups
        clients = []
        for group in truth:
            z, y = world.draw(rng, size)
            clients.append((world.mean[y] + (factor if group else 1.0) * (z - world.mean[y]), y))
        return truth, describe_samples(clients, CLASSES)

    return World(f"class spreads times {factor:g}, {size} examples", draw)


def apart_all(reach: float, size: int) -> World:
    """Every client a cluster of its own: two classes moved each."""

    def draw(rng: np.random.Generator, seed: int) -> tuple[NDArray[np.int64], Descriptors]:
        world, moved = Population(seed), np.zeros((CLIENTS, CLASSES, LENGTH))
        for k in range(CLIENTS):
            direction = rng.normal(size=(2, LENGTH))
            moved[k, rng.permutation(CLASSES)[:2]] = reach * direction / np.linalg.norm(direction, axis=1)[:, None]
        moves = np.einsum("kuj,uji->kui", moved, world.mix)
        return np.arange(CLIENTS), many_descriptors(rng, world, moves, np.arange(CLIENTS), np.full(CLIENTS, size))

    return World(f"all different, two classes by {reach:g}, {size} examples", draw)


def worlds() -> list[World]:
    grid = [(v, n) for v in VARIATIONS for n in SIZES]
    return [
        *(gaussian(v, n, 1, 0.0) for v, n in grid),
        *(gaussian(v, n, groups, 2.0) for groups in (2, 4) for v, n in grid),
        *(gaussian(0.05, 5_000, groups, 0.5) for groups in (2, 4)),
        *(gaussian(v, n, 1, 0.0, "coordinate") for v, n in grid if v),
        *(gaussian(v, n, 4, 2.0, "coordinate") for v, n in grid if v),
        *(lopsided(r, k, 0.05, n) for r in (1, 2, 3) for k in (5, 20) for n in (1_000, 5_000)),
        *(by_label(strength, n) for strength in (1_000.0, 100.0) for n in (1_000, 5_000)),
        heavy_tailed(True),
        heavy_tailed(False),
        *(spread(factor, 500) for factor in (1.0, 2.0, 5.0)),
        *(apart_all(reach, 1_000) for reach in (1.0, 2.0)),
    ]


def measured(world: World, repeats: int) -> dict[str, float | str]:
    clusters, right, means = [], [], []
    begin = perf_counter()
    for r in range(repeats):
        truth, descriptors = world.draw(np.random.default_rng(FIRST_SEED + r), r % 10)
        found = CalibratedClustering().fit(descriptors)
        clusters.append(int(found.labels_.max()) + 1)
        right.append(cluster_scores(found.labels_, truth)["pairs_right"])
        means.append(found.variation_.means)
    return {
        "world": world.name,
        "worlds": repeats,
        "clusters": round(float(np.mean(clusters)), 3),
        "split": round(float(np.mean(np.array(clusters) > 1)), 3),
        "pairs_right": round(float(np.mean(right)), 4),
        "worst": round(float(np.min(right)), 3),
        "variation": round(float(np.mean(means)), 4),
        "seconds": round((perf_counter() - begin) / repeats, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("variation"))
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--latents", type=Path, help="an npz file of real latents, dealt at random besides")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    stored = asked.out / "variation.json"
    rows: list[dict[str, float | str]] = json.loads(stored.read_text()) if stored.exists() else []
    done = {row["world"] for row in rows}
    wanted = worlds() + ([dealt(asked.latents)] if asked.latents else [])
    for world in tqdm([one for one in wanted if asked.only in one.name and one.name not in done]):
        rows.append(measured(world, asked.worlds))
        stored.write_text(json.dumps(rows, indent=1))
    if rows:
        print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
        print("\n".join("| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows))


if __name__ == "__main__":
    main()
