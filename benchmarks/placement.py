"""Placing unseen, unlabelled clients by class mixtures: figures on real latents, in seconds instead of training runs.

    python -m benchmarks.placement bank --bank FOLDER --data-dir DATA [--seeds 50,51]    (a minute or two a bank)
    python -m benchmarks.placement right|confidence|novelty --bank FOLDER [--seeds 50]   (from the repository's root)
    OMP_NUM_THREADS=1 python -m benchmarks.placement cost --bank FOLDER

A bank holds the reduced latents of all images under all rotations, as a FLUX run sees them when it finds its clusters.
Worlds are drawn from it: five clusters of two members each (P(X): four rotations; P(Y): seven classes kept; P(X|Y):
four classes rotated), of images that the model trained on. Their unseen clients hold test images. Everything between
the images and a placement is the library's own code.

`right`: how often the likeliest cluster is the true one, beside the nearest marginal mean. `confidence`: expected
calibration error (ten bins of equal count). `novelty`: who is called novel, of known patterns and of others. `cost`:
time and memory. Members' validation parts are a quarter as large as what they train on: --validation test takes them
from one random half of the test images and unseen clients from the other, --validation train from training images that
the model did not train on, as a run has it.
"""

import argparse
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tests.clustering.making import Sample, describe_samples, moments_of
from tqdm import tqdm

from fedflux.algorithms import make_algorithm
from fedflux.algorithms.flux.describe import Extractor
from fedflux.algorithms.flux.placing import make_offer, place_unseen, sent_mixtures
from fedflux.algorithms.flux.state import Clustered
from fedflux.clustering import Clusters, with_centroids
from fedflux.clustering.placement.misfit import UsualMisfit
from fedflux.clustering.placement.novelty import LEVEL
from fedflux.clustering.placement.offer import Offer
from fedflux.clustering.placement.queries import AskTries, ReducedLatents, Tries
from fedflux.data import Features
from fedflux.data.holding import LooseHolding, Seen
from fedflux.data.shifts.appearance import Look
from fedflux.data.shifts.patterns import Pattern
from fedflux.descriptors.descriptor import Descriptors, make_descriptors
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.queries import AskDescriptor
from fedflux.engine import SimulatedEngine, Stack, one_thread
from fedflux.engine.base import Backend, Statistic
from fedflux.runs.config import make_config
from fedflux.runs.runner import build_federation, engine_for
from fedflux.runs.session import cohort_of

Array = NDArray[np.float64]
Index = NDArray[np.int64]

SHIFTS = {"px": "P(X)", "py": "P(Y)", "pxgy": "P(X\\|Y)"}
TURNS = (0, 90, 180, 270)
ODD = 45
"""A rotation that no cluster has."""
CLASSES = 10
MEMBERS = 2
SIZES = (8, 20, 50, 100)
"""Images of unseen clients."""
CLUSTER_IMAGES = (25, 50, 100, 400, 1600, 4000)
AT_ONCE = 1000
"""Unseen clients that are asked at once, as a run does."""


def fill(dataset: str, shift: str, seed: int, data_dir: str | None, path: Path) -> None:
    """Train FLUX up to its clusters and keep the reduced latents of all images."""
    settings = {"dataset": dataset, "data_dir": data_dir, "shift": shift, "level": 5, "seed": seed, "engine": "loop"}
    federation, config = build_federation(make_config(settings))
    algorithm, view = make_algorithm("flux", config.settings()), federation.blind()
    kept: dict[str, NDArray[Any]] = {}
    with one_thread():
        engine = engine_for(config, view)
        state = algorithm.init(view, engine)
        while not isinstance(state, Clustered):
            state, _ = algorithm.round(state, cohort_of(view, range(len(view)), config, state.round + 1), engine)
        statistic = ReducedLatents(state.extractor.question)
        for part in ("train", "test"):
            source = getattr(federation.dataset, part)
            kept[f"labels_{part}"] = source.y
            for turn in (*TURNS, ODD):
                x = np.repeat(source.x, federation.channels // source.x.shape[1], axis=1)
                x, _ = Pattern(look=Look(turn)).transform(x, source.y, np.random.default_rng(0))
                images = torch.from_numpy(np.ascontiguousarray(x))
                kept[f"{part}_{turn}"] = engine.public(state.extractor.reference, images, statistic).numpy()
    everyone = range(len(federation))
    kept["rows_trained"] = np.concatenate([federation.source_rows(k, "train") for k in everyone])
    kept["rows_validation"] = np.concatenate([federation.source_rows(k, "validation") for k in everyone])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **cast(Any, kept))


@dataclass(frozen=True, eq=False)
class Bank:
    """Reduced latents, and which images are drawn for what."""

    latents: dict[tuple[str, int], Array]
    """By part of the dataset and rotation."""
    rows: dict[str, tuple[str, list[Index]]]
    """By purpose: the part of the dataset, and the rows of every class there."""

    @staticmethod
    def load(path: Path) -> "Bank":
        """As `fill` left it."""
        if not path.exists():
            sys.exit(f"{path} is not there: make it with `bank`")
        with np.load(path) as held:
            latents = {(p, t): held[f"{p}_{t}"].astype(np.float64) for p in ("train", "test") for t in (*TURNS, ODD)}
            labels = {part: held[f"labels_{part}"] for part in ("train", "test")}
            some = {"trained": held["rows_trained"], "held": held["rows_validation"]}
        found = {name: [rows[labels["train"][rows] == u] for u in range(CLASSES)] for name, rows in some.items()}
        test = [np.flatnonzero(labels["test"] == u) for u in range(CLASSES)]
        return Bank(latents, {**{name: ("train", rows) for name, rows in found.items()}, "test": ("test", test)})

    def divided(self, validation: str, rng: np.random.Generator) -> "Bank":
        """The same with rows for members' validation parts and for unseen clients."""
        if validation == "train":
            return replace(self, rows={**self.rows, "validation": self.rows["held"], "unseen": self.rows["test"]})
        mixed = [rng.permutation(rows) for rows in self.rows["test"][1]]
        first, second = (("test", [rows[k::2] for rows in mixed]) for k in (0, 1))
        return replace(self, rows={**self.rows, "validation": first, "unseen": second})


@dataclass(frozen=True)
class Looks:
    """What a cluster's clients hold: some classes, each turned in its own way."""

    kept: tuple[int, ...]
    turns: tuple[int, ...]


def some_looks(shift: str, rng: np.random.Generator, count: int) -> list[Looks]:
    """The patterns of clusters, no two of them the same."""
    everything = tuple(range(CLASSES))
    if shift == "px":
        return [Looks(everything, (turn,) * CLASSES) for turn in TURNS]
    turned = rng.choice(CLASSES, 4, replace=False)
    found: dict[Looks, None] = {}
    while len(found) < count:
        kept, turns = everything, np.zeros(CLASSES, dtype=np.int64)
        if shift == "py":
            kept = tuple(np.sort(rng.choice(CLASSES, 7, replace=False)).tolist())
        else:
            turns[turned] = rng.choice(TURNS, 4)
        found[Looks(kept, tuple(turns.tolist()))] = None
    return list(found)


def draw(
    bank: Bank, looks: Looks, count: int, purpose: str, rng: np.random.Generator, shares: Array | None = None
) -> Sample:
    """A client's reduced latents and labels; `shares` are its label shares among the classes that it keeps."""
    chance = np.zeros(CLASSES)
    chance[list(looks.kept)] = 1.0 if shares is None else shares[list(looks.kept)] + 1e-9
    y = rng.choice(CLASSES, count, p=chance / chance.sum()).astype(np.int64)
    part, by_class = bank.rows[purpose]
    z = np.empty((count, bank.latents[part, 0].shape[1]))
    for u in np.unique(y):
        mine, rows = np.flatnonzero(y == u), by_class[u]
        z[mine] = bank.latents[part, looks.turns[u]][rng.choice(rows, len(mine), replace=len(mine) > len(rows))]
    return z, y


class Reduced(LooseHolding):
    """A client whose images are reduced latents already, all of them different."""

    def rows(self, split: str) -> Index:
        """No copies."""
        return np.arange(len(self.features))


def question_of(length: int) -> AskDescriptor:
    """Reduced latents are taken as they are."""
    return AskDescriptor(CLASSES, length, 1, None, given=Projector(np.zeros(length), np.eye(length)))


@dataclass(frozen=True, eq=False)
class World:
    """Clusters as a run would have found them, and what unseen clients are offered."""

    bank: Bank
    looks: list[Looks]
    clusters: Clusters
    offer: Offer
    rng: np.random.Generator

    @staticmethod
    def of(bank: Bank, looks: list[Looks], images: int, seed: int, rng: np.random.Generator) -> "World":
        """Clusters of so many images, each of two members; their validation parts teach what members try."""
        own, each = np.repeat(np.arange(len(looks)), MEMBERS), max(images // MEMBERS, 1)
        trained = [draw(bank, looks[m], each, "trained", rng) for m in own]
        held = [draw(bank, looks[m], max(each // 4, 2), "validation", rng)[0] for m in own]
        clusters = with_centroids(describe_samples(trained, CLASSES, validation=held), own)
        ask = AskTries(question_of(held[0].shape[1]), sent_mixtures(clusters), seed)
        answers = []
        for client, z in enumerate(held):
            points = torch.from_numpy(z)
            answers.append(ask.answer(Reduced(Features(points), client), Seen([points])))
        tries = Tries.of(range(len(own)), answers, len(looks))
        return World(bank, looks, clusters, make_offer(clusters, own, tries), rng)

    def unseen(self, looks: Looks, count: int, shares: Array | None = None) -> Array:
        """The images of a client."""
        return draw(self.bank, looks, count, "unseen", self.rng, shares)[0]


def worlds(bank: Bank, shift: str, told: argparse.Namespace, images: int, held_out: bool = False) -> Iterator[World]:
    for number in tqdm(range(told.worlds), desc=f"{shift}, clusters of {images}", leave=False):
        rng = np.random.default_rng([number, images])
        divided, looks = bank.divided(told.validation, rng), some_looks(shift, rng, told.clusters)
        if held_out and shift == "px":
            looks.pop(int(rng.integers(len(looks))))
        yield World.of(divided, looks, images, number, rng)


def unlabelled(points: Sequence[Array]) -> Descriptors:
    found = [moments_of(z, None, None) for z in points]
    return make_descriptors(found, [one.count.astype(np.float64) for one in found])


def right(banks: dict[str, Bank], told: argparse.Namespace) -> list[str]:
    """Placed right, by the marginal mean and by the mixture."""
    lines = [row("shift", "rule", "draws", *(f"{n} images" for n in SIZES))]
    lines.append("|---" * (3 + len(SIZES)) + "|")
    for shift, bank in banks.items():
        hits: dict[tuple[str, str, int], list[bool]] = defaultdict(list)
        for world in worlds(bank, shift, told, told.images[-1]):
            for n in SIZES:
                for labels in ("", *([", labels ~ Dirichlet(0.5)"] if shift == "pxgy" else [])):
                    truth = world.rng.integers(len(world.looks), size=told.draws)
                    shares = [world.rng.dirichlet(np.full(CLASSES, 0.5)) if labels else None for _ in truth]
                    clients = [world.unseen(world.looks[m], n, s) for m, s in zip(truth, shares, strict=True)]
                    nearest = world.clusters.marginals.nearest(unlabelled(clients))[0]
                    plain = replace(world.offer, usual=UsualMisfit())
                    placed = np.array([plain.place(z, n)[0].argmax() for z in clients])
                    hits[labels, "marginal mean", n] += (nearest == truth).tolist()
                    hits[labels, "mixture", n] += (placed == truth).tolist()
        for labels, rule in sorted({key[:2] for key in hits}):
            cells = [f"{np.mean(hits[labels, rule, n]):.3f}" for n in SIZES]
            lines.append(row(SHIFTS[shift] + labels, rule, len(hits[labels, rule, SIZES[0]]), *cells))
    return lines


def calibration_error(sure: Array, hit: Array, bins: int = 10) -> float:
    """Expected calibration error with bins of equal count."""
    order = np.argsort(sure, kind="stable")
    parts = np.array_split(order, bins)
    return float(sum(len(p) * abs(sure[p].mean() - hit[p].mean()) for p in parts) / len(order))


def confidence(banks: dict[str, Bank], told: argparse.Namespace) -> list[str]:
    """How far confidences are from shares of right placements."""
    heads = [f"{n} images: ECE (right, sure)" for n in SIZES]
    lines = [row("shift", "images a cluster", "a (10–90 %)", "c", *heads), "|---" * (4 + len(SIZES)) + "|"]
    worst = 0.0
    for shift, bank in banks.items():
        for images in told.images:
            sure: dict[int, list[float]] = defaultdict(list)
            hit: dict[int, list[float]] = defaultdict(list)
            heat = []
            for world in worlds(bank, shift, told, images):
                plain = replace(world.offer, usual=UsualMisfit())
                heat.append((plain.temperature.base, plain.temperature.growth))
                for n in SIZES:
                    for m in world.rng.integers(len(world.looks), size=told.draws):
                        posterior = plain.place(world.unseen(world.looks[m], n), n)[0]
                        sure[n].append(float(posterior.max()))
                        hit[n].append(float(posterior.argmax() == m))
            errors = [calibration_error(np.array(sure[n]), np.array(hit[n])) for n in SIZES]
            worst = max(worst, *errors)
            cells = [
                f"{e:.3f} ({np.mean(hit[n]):.2f}, {np.mean(sure[n]):.2f})" for e, n in zip(errors, SIZES, strict=True)
            ]
            base, growth = np.array(heat).T
            low, middle, high = np.quantile(base, [0.1, 0.5, 0.9])
            lines.append(
                row(SHIFTS[shift], images, f"{middle:.2f} ({low:.2f}–{high:.2f})", f"{growth.mean():.3f}", *cells)
            )
    return [*lines, "", f"The largest is {worst:.3f}."]


def others(world: World, shift: str) -> dict[str, list[Looks]]:
    """Patterns that no cluster has."""
    everything, rng = tuple(range(CLASSES)), world.rng
    found = {"45°": [replace(looks, turns=(ODD,) * CLASSES) for looks in world.looks]}
    if shift == "px":
        held = [turn for turn in TURNS if all(looks.turns[0] != turn for looks in world.looks)]
        found["a held-out rotation"] = [Looks(everything, (turn,) * CLASSES) for turn in held]
    elif shift == "py":
        drawn = [tuple(np.sort(rng.choice(CLASSES, 7, replace=False)).tolist()) for _ in range(8)]
        found["other classes kept"] = [Looks(kept, (0,) * CLASSES) for kept in drawn]
    else:
        drawn_turns = np.zeros((8, CLASSES), dtype=np.int64)
        for turns in drawn_turns:
            turns[rng.choice(CLASSES, 4, replace=False)] = rng.choice(TURNS[1:], 4)
        found["other classes rotated"] = [Looks(everything, tuple(turns.tolist())) for turns in drawn_turns]
    return found


def novelty(banks: dict[str, Bank], told: argparse.Namespace) -> list[str]:
    """Who is called novel."""
    sizes = (20, 100)
    lines = [row("shift", "images a cluster", "members", "unseen clients", "draws", *(f"of {n}, %" for n in sizes))]
    lines.append("|---" * (5 + len(sizes)) + "|")
    for shift, bank in banks.items():
        for images in told.images:
            flags: dict[tuple[str, int], list[bool]] = defaultdict(list)
            for world in worlds(bank, shift, told, images, held_out=True):
                rng = world.rng
                kinds = {"known": world.looks, "known, labels ~ Dirichlet(1)": world.looks, **others(world, shift)}
                for kind, looks in kinds.items():
                    for n in sizes:
                        for _ in range(told.draws):
                            shares = rng.dirichlet(np.ones(CLASSES)) if "Dirichlet" in kind else None
                            z = world.unseen(looks[int(rng.integers(len(looks)))], n, shares)
                            flags[kind, n].append(world.offer.place(z, n)[1] < LEVEL)
            members = MEMBERS * len(world.looks)
            for kind in dict.fromkeys(kind for kind, _ in flags):
                cells = [f"{100 * np.mean(flags[kind, n]):.1f}" for n in sizes]
                lines.append(row(SHIFTS[shift], images, members, kind, len(flags[kind, sizes[0]]), *cells))
    return lines


class Encoded:
    """A backend whose clients hold reduced latents: all that is left to do is to place them."""

    name, device, precision, trained_names = "encoded", "cpu", "fp32", frozenset[str]()

    def reduce(self, stack: Stack, clients: Sequence[Features], statistic: Statistic[Any]) -> list[Any]:
        """Nothing to encode."""
        return [statistic.add(None, one.x, None) for one in clients]


def cost(banks: dict[str, Bank], told: argparse.Namespace) -> list[str]:
    """Time and memory beyond encoding."""
    bank, rng = banks["pxgy"].divided(told.validation, np.random.default_rng(0)), np.random.default_rng(0)
    lines = [row("what", "figure"), "|---|---|"]
    world = World.of(bank, some_looks("pxgy", rng, 100), 400, 0, rng)
    z = world.unseen(world.looks[0], 100)
    spent = {
        "": timed(world.offer, z),
        ", without the misfit": timed(replace(world.offer, usual=UsualMisfit()), z),
    }
    lines += [row(f"100 images among 100 clusters{name}", f"{1e3 * t:.1f} ms") for name, t in spent.items()]
    world = World.of(bank, some_looks("pxgy", rng, 200), 400, 0, rng)
    extractor = Extractor(Stack({}), question_of(z.shape[1]))
    engine = SimulatedEngine(cast(Backend, Encoded()))
    every, none = np.ones(200, dtype=np.bool_), np.zeros(200, dtype=np.bool_)
    for n in told.client_images:
        part = [Features(torch.from_numpy(world.unseen(world.looks[k % 200], n))) for k in range(AT_ONCE)]
        begin, hits = time.perf_counter(), 0
        for _ in tqdm(range(told.unseen // AT_ONCE), desc=f"clients of {n}", leave=False):
            placed = place_unseen(extractor, world.offer, world.clusters, every, none, part, engine, LEVEL)
            assert placed is not None
            hits += int((placed.placement.cluster == np.arange(AT_ONCE) % 200).sum())
        took, peak = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        words = f"{told.unseen:,} clients of {n} images among 200 clusters ({world.offer.nbytes / 1000:.0f} kB)"
        lines.append(row(words, f"{took:.0f} s, peak {peak:.2f} GiB, {hits / told.unseen:.3f} right"))
    return lines


def timed(offer: Offer, images: Array, times: int = 30) -> float:
    """The median of some placements."""
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        offer.place(images, len(images))
        spent.append(time.perf_counter() - begin)
    return float(np.median(spent))


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


FIGURES: dict[str, Callable[[dict[str, Bank], argparse.Namespace], list[str]]] = {
    "right": right,
    "confidence": confidence,
    "novelty": novelty,
    "cost": cost,
}
DRAWN = {"right": (24, 25, (4000,)), "confidence": (96, 50, CLUSTER_IMAGES), "novelty": (40, 15, (400, 4000))}
"""Worlds, draws in each, and images a cluster, unless told."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["bank", *FIGURES])
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--shifts", default="px,py,pxgy")
    parser.add_argument("--seeds", default="50")
    parser.add_argument("--clusters", type=int, default=5)
    parser.add_argument("--images", default=None, help="images a cluster, several by commas")
    parser.add_argument("--worlds", type=int, default=None)
    parser.add_argument("--draws", type=int, default=None, help="unseen clients of a kind and size in a world")
    parser.add_argument("--validation", choices=["test", "train"], default="test")
    parser.add_argument("--unseen", type=int, default=100_000, help="clients of the cost in bulk")
    parser.add_argument("--client-images", default="20,100", help="their images")
    parser.add_argument("--out", type=Path, default=None)
    told = parser.parse_args()
    count, draws, images = DRAWN.get(told.action, (1, 1, (400,)))
    told.worlds, told.draws = told.worlds or count, told.draws or draws
    told.images = images if told.images is None else tuple(int(n) for n in told.images.split(","))
    told.client_images = [int(n) for n in told.client_images.split(",")]
    lines = []
    for seed in map(int, told.seeds.split(",")):
        paths = {shift: told.bank / f"{told.dataset}_{shift}_{seed}.npz" for shift in told.shifts.split(",")}
        if told.action == "bank":
            for shift, path in paths.items():
                fill(told.dataset, shift, seed, told.data_dir, path)
            continue
        with one_thread():
            found = FIGURES[told.action]({shift: Bank.load(path) for shift, path in paths.items()}, told)
        print(
            "\n".join([f"Bank of seed {seed}, validation parts from the {told.validation} part:", "", *found, ""]),
            flush=True,
        )
        lines += [*found, ""]
    if told.out and lines:
        told.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
