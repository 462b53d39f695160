"""Who is told to be novel: unseen, unlabelled clients with patterns that training saw, and with patterns it did not.

    python benchmarks/novelty.py --data-dir DATA [--dataset mnist] [--shifts px,py,pxgy] [--seeds 42,43,44]
        [--fraction 1.0] [--device auto] [--assignment mixture] [--until-clustered] [--out TABLE.md]

FLUX is trained on ten clients (px at level 3: rotations by quarter turns; py and pxgy at level 6), which then say what
is usual, as after every run. The test images are dealt to clients of 100, 200, 500 and 1,000 images, once for every
pattern; a client is asked by its images alone. Known patterns are shown with other label shares, too: Dirichlet(1) of
the classes that they keep. Patterns nobody trained on: rotations by 45, 30 and 60 degrees, a colour, quarter turns that
no training client drew, other class subsets, other class rotations. Shares are over all clients of a kind and all
seeds, with exact 95 % binomial intervals; "calibrated" are those whose verdict is one: in a cluster of one member
nobody is called novel. The accuracies say what novel clients get from each fallback; labels are used for those alone.
Who is novel is settled once the clusters are found: --until-clustered trains no further and leaves accuracies out.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from tqdm import tqdm

from fedflux.algorithms import Algorithm, make_algorithm
from fedflux.algorithms.flux.state import Clustered
from fedflux.algorithms.shared.averaging import by_membership
from fedflux.data import Features, Federation
from fedflux.data.shifts.appearance import Look
from fedflux.data.shifts.patterns import Pattern
from fedflux.engine import Predictor, SimulatedEngine, one_thread
from fedflux.runs.config import RunConfig, make_config
from fedflux.runs.runner import build_federation, engine_for
from fedflux.runs.session import cohort_of
from fedflux.streams import stream

LEVELS = {"px": 3, "py": 6, "pxgy": 6}
SIZES = (100, 200, 500, 1000)
DEALT = [100] * 6 + [200] * 3 + [500] * 2 + [1000]
"""Sizes of clients, again and again until the images are dealt."""
OTHERS = 6
"""Patterns nobody trained on that are drawn for py and pxgy."""
OTHER_LABELS = "known, other label shares"
FALLBACKS = ("placed", "general", "mixture", "mean")


@dataclass
class Tally:
    """Clients of one kind."""

    size: list[int] = field(default_factory=list)
    novel: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    calibrated: list[bool] = field(default_factory=list)
    accuracy: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def unknown_patterns(shift: str, known: set[Pattern], federation: Federation, seed: int) -> dict[str, list[Pattern]]:
    if shift == "px":
        held_out = {f"{r}°": [Pattern(look=Look(r))] for r in (45, 30, 60)} | {"red": [Pattern(look=Look(0, "red"))]}
        turns = [p for r in (0, 90, 180, 270) if (p := Pattern(look=Look(r))) not in known]
        return held_out | ({"quarter turn nobody drew": turns} if turns else {})
    rng, found = stream(seed, "patterns nobody trained on"), set[Pattern]()
    example = next(iter(known))
    while len(found) < OTHERS:
        if example.kept is not None:
            kept = rng.choice(federation.classes, len(example.kept), replace=False)
            pattern = Pattern(kept=tuple(sorted(kept.tolist())))
        else:
            turned = [(label, Look(int(rng.choice((0, 90, 180, 270))))) for label, _ in example.class_looks]
            pattern = Pattern(class_looks=tuple(turned))
        if pattern.content() not in known:
            found.add(pattern)
    return {"another pattern": sorted(found, key=repr)}


def unseen_clients(
    federation: Federation, pattern: Pattern, rng: np.random.Generator, other_labels: bool
) -> Iterator[tuple[Features, NDArray[np.int64]]]:
    """Disjoint chunks of the test images as this pattern shows them, and their labels.

    With other label shares every client draws for itself, and only its own images differ from one another.
    """
    test = federation.dataset.test
    kept = np.array(range(federation.classes) if pattern.kept is None else pattern.kept)
    rows = np.flatnonzero(np.isin(test.y, kept))
    rows = rng.permutation(rows)
    begin, turn = 0, 0
    while begin + (size := DEALT[turn % len(DEALT)]) <= len(rows):
        mine = with_shares(test.y, kept, size, rng) if other_labels else rows[begin : begin + size]
        x = np.repeat(test.x[mine], federation.channels // test.x.shape[1], axis=1)
        x, y = pattern.transform(x, test.y[mine], rng)
        yield Features(torch.from_numpy(np.ascontiguousarray(x))), y
        begin, turn = begin + size, turn + 1


def with_shares(
    labels: NDArray[np.int64], kept: NDArray[np.int64], size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of images whose label shares are drawn from Dirichlet(1); a class has no more images than there are."""
    count = rng.multinomial(size, rng.dirichlet(np.ones(len(kept))))
    rows = [np.flatnonzero(labels == label) for label in kept]
    return np.concatenate(
        [rng.choice(own, min(n, len(own)), replace=False) for own, n in zip(rows, count, strict=True)]
    )


def answers(state: Clustered, placed: Predictor, count: int) -> dict[str, Predictor]:
    """What could answer for a novel client."""
    members = np.bincount(state.assignment, minlength=len(state.models)).astype(np.float64)
    return {
        "placed": placed,
        "general": Predictor.shared(state.extractor.reference, np.ones(1), count),
        "mixture": by_membership(state.models, state.assignment, count),
        "mean": Predictor.shared(state.models.average(members[None]), np.ones(1), count),
    }


def measure(config: RunConfig, tallies: dict[str, Tally], until_clustered: bool) -> None:
    federation, config = build_federation(config)
    algorithm = make_algorithm("flux", config.settings())
    view = federation.blind()
    with one_thread():
        engine = engine_for(config, view)
        state = algorithm.init(view, engine)
        for round in tqdm(range(1, config.rounds + 1), desc=f"{config.shift} seed {config.seed}"):
            cohort = cohort_of(view, range(len(view)), config, round)
            state, _ = algorithm.round(state, cohort, engine)
            if until_clustered and isinstance(state, Clustered):
                break
        state, _ = algorithm.complete(state, view.cohort(range(len(view)), state.round), engine)
        cluster_of = {p.content(): int(m) for p, m in zip(federation.patterns, state.assignment, strict=True)}
        new = unknown_patterns(config.shift, set(cluster_of), federation, config.seed)
        for kind, patterns in {"known": list(cluster_of), OTHER_LABELS: list(cluster_of), **new}.items():
            for number, pattern in enumerate(patterns):
                rng = stream(config.seed, f"unseen {kind}", client=number)
                features, labels = zip(*unseen_clients(federation, pattern, rng, kind == OTHER_LABELS), strict=True)
                found = ask(algorithm, state, engine, list(features), cluster_of.get(pattern), tallies[kind])
                if not until_clustered:
                    score(state, engine, list(features), list(labels), found, tallies[kind])


def ask(
    algorithm: Algorithm[Clustered],
    state: Clustered,
    engine: SimulatedEngine,
    features: list[Features],
    cluster: int | None,
    tally: Tally,
) -> Predictor:
    found = algorithm.unseen(state, features, engine)
    if found is None or found.placement is None:
        raise SystemExit("this run never clustered: nothing to be novel to")
    tally.size += [len(one) for one in features]
    tally.novel += found.placement.novel.tolist()
    tally.confidence += found.placement.confidence.tolist()
    tally.calibrated += found.placement.calibrated.tolist()
    if cluster is not None:
        tally.right += (found.placement.cluster == cluster).tolist()
    return found


def score(
    state: Clustered,
    engine: SimulatedEngine,
    features: list[Features],
    labels: list[NDArray[np.int64]],
    found: Predictor,
    tally: Tally,
) -> None:
    for name, predictor in answers(state, found, len(features)).items():
        said = engine.predict(predictor, features)
        tally.accuracy[name] += [float(np.mean(p.argmax(axis=1) == y)) for p, y in zip(said, labels, strict=True)]


def share(flags: list[bool]) -> str:
    if not flags:
        return "–"
    interval = binomtest(sum(flags), len(flags)).proportion_ci(0.95, method="exact")
    return f"{100 * np.mean(flags):.1f} ({100 * interval.low:.1f}–{100 * interval.high:.1f})"


def table(dataset: str, shift: str, tallies: dict[str, Tally]) -> list[str]:
    lines = []
    for kind, tally in tallies.items():
        size, novel = np.array(tally.size), np.array(tally.novel)
        meant = f"{100 * np.mean(tally.calibrated):.0f}"
        by_size = [f"{100 * novel[size == s].mean():.0f}" if (size == s).any() else "–" for s in SIZES]
        right = f"{100 * np.mean(tally.right):.1f}" if tally.right else "–"
        sure = f"{100 * np.mean(tally.confidence):.1f}"
        fallback = [f"{100 * np.mean(tally.accuracy[n]):.1f}" if tally.accuracy else "–" for n in FALLBACKS]
        cells = [dataset, shift, kind, str(len(novel)), meant, share(tally.novel), *by_size, right, sure, *fallback]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--shifts", default="px,py,pxgy")
    parser.add_argument("--seeds", default="42,43,44")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--patterns", default="independent")
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--novelty-level", type=float, default=RunConfig.novelty_level)
    parser.add_argument("--assignment", default=RunConfig.assignment)
    parser.add_argument("--until-clustered", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    told = parser.parse_args()
    heads = ["dataset", "shift", "pattern", "clients", "calibrated, %", "called novel, %", *(f"of {s}" for s in SIZES)]
    heads += ["placed right, %", "confidence, %", *(f"{name}, %" for name in FALLBACKS)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for shift in told.shifts.split(","):
        tallies: dict[str, Tally] = defaultdict(Tally)
        for seed in told.seeds.split(","):
            settings = {
                "dataset": told.dataset,
                "data_dir": told.data_dir,
                "shift": shift,
                "level": LEVELS[shift],
                "seed": int(seed),
                "clients": told.clients,
                "patterns": told.patterns,
                "data_fraction": told.fraction,
                "device": told.device,
                "novelty_level": told.novelty_level,
                "assignment": told.assignment,
            }
            measure(make_config(settings), tallies, told.until_clustered)
        lines += table(told.dataset, shift, tallies)
    print("\n".join(lines))
    if told.out:
        told.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
