"""Sharing across clusters against its partners, regime by regime: the tables of docs/sharing.md.

    python -m benchmarks.regimes run --data-dir DATA --out FILE [--regimes A,B] [--methods flux,own] [--seeds 50,51]
                                     [--level 5] [--jobs 2] [--limit SECONDS]
    python -m benchmarks.regimes table --out FILE [--seeds 50,51] [--level 5]

Runs go side by side, the longest first, and each is a line of FILE as soon as it is done; what is there already is not
run again, and nothing is begun after `--limit`. On a GPU a dozen jobs fill the device (under NVIDIA's MPS).

Level 5, unless a regime says otherwise. A: MNIST, 10 clients, the paper's training. B: a tenth of it, at 0.03. G: as B,
40 rounds. C: 50 clients, at 0.03. K: 300 clients, at 0.03, 15 rounds. E: the first 13,000/3,000 images of CIFAR-10.
F: as E, 60 rounds. H: as E, 30 clients. P: all of CIFAR-10. L: the same for 40 rounds. Q: CIFAR-100. T: 1,200 clients.
O: Office-Home, 20 classes of 64×64, ten clients of one domain each (`--shifts px`, whose clusters the data has).
N: MNIST, 100 clients of eight copies. `--level` runs any of them but O and T at another level.
"""

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks.real_data import officehome

from fedflux.data import Dataset
from fedflux.data.sources import load
from fedflux.data.sources.own import make_dataset
from fedflux.data.sources.part import Part
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

TENTH = {"dataset": "mnist", "data_fraction": 0.1, "lr": 0.03}
HARD = {"dataset": "cifar10", "lr": 0.02, "batch_size": 64}
REGIMES: dict[str, dict[str, Any]] = {
    "A": {"dataset": "mnist"},
    "B": TENTH,
    "G": {**TENTH, "rounds": 40},
    "C": {"dataset": "mnist", "clients": 50, "lr": 0.03},
    "K": {"dataset": "mnist", "clients": 300, "lr": 0.03, "rounds": 15},
    "E": {**HARD, "rounds": 25},
    "F": {**HARD, "rounds": 60},
    "H": {**HARD, "clients": 30, "batch_size": 32, "rounds": 40},
    "P": {"dataset": "cifar10"},
    "L": {"dataset": "cifar10", "rounds": 40},
    "Q": {"dataset": "cifar100", "precision": "bf16"},
    "N": {"dataset": "mnist", "clients": 100, "duplicate": 8},
    "O": {"dataset": "npz", "model": "resnet9", "rounds": 40, "lr": 0.005, "batch_size": 64},
    "T": {
        **{"dataset": "mnist", "clients": 1200, "duplicate": 120, "participation": 0.2},
        **{"rounds": 30, "epochs": 1, "lr": 0.04, "clip": 10.0},
    },
}
PARTS = dict.fromkeys("EFH", (13000, 3000))
"""Regimes that take the first images of a dataset alone."""
LEVELS = {"px": (3, 0.6), "py": (7, 0.6), "pygx": (5, 0.0), "pxgy": (6, 0.5)}
"""Level and server momentum of 1,200 clients, by shift."""
METHODS: dict[str, dict[str, Any]] = {
    "flux": {"algorithm": "flux"},
    "calibrated": {"algorithm": "flux", "assignment": "calibrated"},
    "own": {"algorithm": "oracle", "sharing": "none"},
    "fedavg": {"algorithm": "fedavg"},
    "local": {"algorithm": "local"},
    "cfl": {"algorithm": "cfl"},
    "apfl": {"algorithm": "apfl"},
    "flux+finetuning": {"algorithm": "flux", "passes": 2},
    "fedavg+finetuning": {"algorithm": "fedavg", "passes": 2},
}
"""`passes`: how many times FedAvg's training passes over the data every client makes in all."""
SHIFTS = {"px": "P(X)", "py": "P(Y)", "pygx": "P(Y|X)", "pxgy": "P(X|Y)"}
KEPT = ("known", "test", "known_per_client", "test_per_client", "clusters_found", "clusters_true", "pairs_right")
COSTS = ("cluster_round", "sharing_parts", "training_passes", "models_down", "models_up", "bytes_up", "bytes_down")
LONG = "OTQHFLGEPKCNAB"
"""Regimes by how long they take, the longest first."""

Job = tuple[str, str, str, int, int]
NAMED = ("regime", "shift", "method", "seed", "level")
"""What a job is made of, and the keys of it in a line of the file."""


def options(job: Job) -> dict[str, Any]:
    """The flags of a run."""
    regime, shift, method, seed, level = job
    level, momentum = LEVELS[shift] if regime == "T" else (level, 0.0)
    shift = "none" if regime == "O" else shift
    told = {**REGIMES[regime], "shift": shift, "level": level, "seed": seed, **METHODS[method]}
    if momentum and told["algorithm"] in ("flux", "oracle", "fedavg"):
        told["server_momentum"] = momentum
    if "passes" in told:
        plain = make_config({key: value for key, value in told.items() if key != "passes"})
        told["passes"] *= plain.rounds * plain.epochs
    return told


def dataset_of(regime: str, data_dir: str | None, seed: int) -> Dataset:
    """All of it, or its first images; of Office-Home as the seed deals it."""
    if regime == "O":
        if data_dir is None:
            raise ValueError("regime O reads DATA/officehome20_64: give --data-dir")
        dealt = officehome(Path(data_dir) / "officehome20_64", 10, seed)
        return make_dataset("npz", "officehome", Part(dealt["x"], dealt["y"], dealt["client"], None, dealt["cluster"]))
    whole = load(REGIMES[regime]["dataset"], None if data_dir is None else Path(data_dir))
    if regime not in PARTS:
        return whole
    train, test = (
        replace(part, x=part.x[:count], y=part.y[:count])
        for part, count in zip((whole.train, whole.test), PARTS[regime], strict=True)
    )
    return replace(whole, train=train, test=test)


def work(jobs: Any, done: Any, data_dir: str | None, until: float) -> None:
    """One job after another, until there is none or no time."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    held: dict[tuple[str, int], Dataset] = {}
    while time.time() < until and (job := jobs.get()) is not None:
        part = (job[0], job[3] if job[0] == "O" else 0)
        found: dict[str, Any] = dict(zip(NAMED, job, strict=True))
        begin = time.perf_counter()
        try:
            if part not in held:
                held.clear()
                held[part] = dataset_of(job[0], data_dir, job[3])
            with TemporaryDirectory() as folder:
                told = {**options(job), "out": f"{folder}/run", "store": "none", "samples": "none"}
                result = run_config(make_config(told), None, held[part])
            found |= {name: result.get(name) for name in (*KEPT, *COSTS)}
        except Exception as error:
            found["failed"] = f"{type(error).__name__}: {error}"
        done.put({**found, "seconds": round(time.perf_counter() - begin, 1)})
    done.put(None)


def run(told: argparse.Namespace) -> None:
    """Everything that is not in the file yet."""
    there = {tuple(one[name] for name in NAMED) for one in read(told.out)}
    wanted: list[Job] = [
        (regime, shift, method, seed, told.level)
        for regime in sorted(told.regimes, key=LONG.index)
        for seed in told.seeds
        for shift in told.shifts
        for method in told.methods
    ]
    missing = [job for job in wanted if job not in there]
    context = multiprocessing.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    for job in [*missing, *[None] * told.jobs]:
        jobs.put(job)
    until = time.time() + told.limit
    workers = [context.Process(target=work, args=(jobs, done, told.data_dir, until)) for _ in range(told.jobs)]
    for worker in workers:
        worker.start()
    left, count = told.jobs, 0
    with told.out.open("a", encoding="utf-8") as file:
        while left:
            found = done.get()
            if found is None:
                left -= 1
                continue
            count += 1
            told_of = found.get("failed") or f"{found['known']:.1f}"
            names = "{regime} {shift} {method} {seed}".format(**found)
            print(f"{count}/{len(missing)} {names}: {told_of}", file=sys.stderr, flush=True)
            if "failed" not in found:
                file.write(json.dumps(found) + "\n")
                file.flush()


def read(path: Path) -> list[dict[str, Any]]:
    """The runs that are done."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [{"level": 5, **json.loads(line)} for line in lines]


def table(told: argparse.Namespace) -> None:
    """Means over seeds: known association and, in brackets, the test phase; then regimes, and the weakest clients."""
    cells: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for one in read(told.out):
        if one["seed"] in told.seeds and one["method"] in told.methods and one["level"] == told.level:
            cells[one["regime"], one["shift"]][one["method"]].append(one)
    methods = [name for name in told.methods if any(name in cell for cell in cells.values())]
    print(f"| known (test) | {' | '.join(methods)} | passes of FLUX |\n{'|---' * (len(methods) + 2)}|")
    for regime in told.regimes:
        rows = {shift: cells[regime, shift] for shift in told.shifts if (regime, shift) in cells}
        for shift, cell in rows.items():
            passes = [one["training_passes"] for one in cell.get("flux", [])]
            epochs = make_config(options((regime, shift, "fedavg", 0, told.level))).epochs
            last = f"{mean(passes) / epochs:.2f}" if passes else ""
            print(
                f"| {regime} {SHIFTS[shift]} | {' | '.join(_scores(cell.get(name, [])) for name in methods)} | {last} |"
            )
        if rows:
            together = [[one for cell in rows.values() for one in cell.get(name, [])] for name in methods]
            print(f"| {regime}: mean | {' | '.join(map(_scores, together))} | |")
            print(f"| {regime}: tenth, worst | {' | '.join(map(_weakest, together))} | |")


def _scores(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return ""
    tested = [one["test"] for one in runs if one["test"] is not None]
    return f"{mean(one['known'] for one in runs):.1f}" + (f" ({mean(tested):.1f})" if tested else "")


def _weakest(runs: Sequence[Mapping[str, Any]]) -> str:
    """The 10 % quantile of clients and the worst one, on average over runs."""
    clients = [one["known_per_client"] for one in runs]
    if not clients:
        return ""
    return f"{mean(float(np.quantile(one, 0.1)) for one in clients):.1f}, {mean(min(one) for one in clients):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--regimes", type=lambda text: text.split(","), default=list("ABGCEFH"))
    parser.add_argument("--shifts", type=lambda text: text.split(","), default=list(SHIFTS))
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[50, 51])
    parser.add_argument("--level", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which nothing is begun")
    told = parser.parse_args()
    {"run": run, "table": table}[told.action](told)


if __name__ == "__main__":
    main()
