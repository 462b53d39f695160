"""The drift protocol: MNIST, patterns redrawn after rounds 4 and 7 of ten and once more at test time.

python -m benchmarks.drift --data-dir DATA --device cuda --jobs 4          (from the repository's root)

Prints, for each algorithm, a table of the twelve cells (px, py, pxgy by the test phase after the last redraw; pygx by
known association before it) and their mean; the share of real drifts that flux-dynamic finds in the first round that
describes after them; and its false alarms over static runs, with their Clopper-Pearson interval. Cells that are in the
store of --out are not run again.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from re import fullmatch
from typing import Any

import numpy as np
from scipy.stats import binomtest
from tqdm import tqdm

from fedflux.algorithms import ALGORITHMS
from fedflux.data.sources import load
from fedflux.runs.runner import build_federation
from fedflux.runs.storage.store import STORE_FILE, Store
from fedflux.studies.compare import Cell, Status, compare, plan

SHIFTS, LEVELS, DRIFT = ("px", "py", "pxgy", "pygx"), (2, 5, 8), "after:4,7+test"
FOUND = "flux-dynamic"


def run(cells: list[Cell], out: Path, jobs: int, words: str) -> None:
    """Run what is missing, with a bar."""
    with tqdm(total=len(cells), desc=words) as bar:

        def show(status: Status) -> None:
            bar.update(len(status.results) + len(status.failed) - bar.n)
            for note in status.notes:
                bar.write(note)
            status.notes.clear()

        compare(cells, Store(out / STORE_FILE), jobs, cells[0].config.algorithm, show)


def score(cell: Cell, store: Store) -> float:
    """Known association for pygx, which features cannot show; the test phase for the others."""
    found = store.get(cell.identity)
    value = None if found is None else found["result"]["known" if cell.config.shift == "pygx" else "test"]
    return float("nan") if value is None else float(value)


def table(cells: Sequence[Cell], store: Store, algorithms: Sequence[str]) -> dict[str, Any]:
    """Mean over seeds of every cell, and over cells."""
    answer: dict[str, Any] = {}
    print("\n| cell | " + " | ".join(algorithms) + " |\n|---|" + "---|" * len(algorithms))
    for shift in SHIFTS:
        for level in sorted({cell.config.level for cell in cells}):
            line = []
            for algorithm in algorithms:
                here = (algorithm, shift, level)
                told = [c for c in cells if (c.config.algorithm, c.config.shift, c.config.level) == here]
                scores = [score(cell, store) for cell in told]
                answer.setdefault(algorithm, {})[f"{shift} {level}"] = scores
                line.append(f"{np.mean(scores):.2f}")
            print(f"| {shift} {level} ({'known' if shift == 'pygx' else 'test'}) | " + " | ".join(line) + " |")
    means = [np.mean([np.mean(v) for v in answer[algorithm].values()]) for algorithm in algorithms]
    print("| mean | " + " | ".join(f"**{mean:.2f}**" for mean in means) + " |")
    return answer


def alarms(cell: Cell) -> dict[int, tuple[set[int], int]]:
    """By round: who was said to drift, and how many described themselves; nobody where no event says so."""
    found = {}
    for line in (Path(str(cell.config.out)) / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for event in record["events"]:
            match = fullmatch("round ([0-9]+): drift at ([0-9]+) of ([0-9]+) clients: (.*)", event)
            if match:
                named = {int(word) for word in match[4].split(", ") if word.isdigit()}
                found[int(match[1])] = (named, int(match[2]))
    return found


def clustered(cell: Cell, store: Store) -> int | None:
    """The round after which descriptions are compared."""
    found = store.get(cell.identity)
    return None if found is None else found["result"]["cluster_round"]


def detection(cells: Sequence[Cell], store: Store) -> None:
    """Of the clients whose pattern really changed, how many were found in the first round that describes after it."""
    real, found, alarms_, still = 0, 0, 0, 0
    by_shift: dict[str, list[int]] = {}
    for cell in cells:
        first = clustered(cell, store)
        if cell.config.algorithm != FOUND or first is None:
            continue
        dataset = load(cell.config.dataset, Path(cell.config.data_dir) if cell.config.data_dir else None)
        federation, _ = build_federation(cell.config, dataset)
        said = alarms(cell)
        for r in range(first + 1, cell.config.rounds + 1):
            before, now = federation.at(r - 1).truth, federation.at(r).truth
            assert before is not None
            assert now is not None
            changed = set(np.flatnonzero(before != now).tolist())
            named = said.get(r, (set(), 0))[0]
            real, found = real + len(changed), found + len(changed & named)
            alarms_, still = alarms_ + len(named - changed), still + len(federation) - len(changed)
            counts = by_shift.setdefault(f"{cell.config.shift} {cell.config.level}", [0, 0])
            counts[0], counts[1] = counts[0] + len(changed & named), counts[1] + len(changed)
    print(f"\ndrift found in the first round after it: {found} of {real} clients", end="")
    print(f" ({100 * found / real:.1f} %)" if real else " (no drift after clustering)")
    print("  by cell: " + ", ".join(f"{name}: {a}/{b}" for name, (a, b) in by_shift.items()))
    print(f"alarms at clients that did not change, same runs: {alarms_} of {still} client-rounds")


def false_alarms(cells: Sequence[Cell], store: Store) -> None:
    """Alarms in runs without any drift."""
    said, asked = 0, 0
    for cell in cells:
        first = clustered(cell, store)
        if first is None:
            continue
        said += sum(count for _, count in alarms(cell).values())
        asked += (cell.config.rounds - first) * (cell.config.clients or 0)
    if asked:
        low, high = binomtest(said, asked).proportion_ci(0.95, "exact")
        rate = f"{100 * said / asked:.2f} % [95 % Clopper-Pearson {100 * low:.2f}, {100 * high:.2f}]"
        print(f"\nfalse alarms without drift: {said} of {asked} client-rounds: {rate}; stated rate", end=" ")
        print(f"{100 * cells[0].config.false_alarms:g} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ",".join(name for name in ("fedavg", "flux", "flux-dynamic", "flux-soft") if name in ALGORITHMS)
    parser.add_argument("--algorithms", default=usual)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--preset", choices=("tuned", "flux-paper"))
    parser.add_argument("--out", type=Path, default=Path("runs/drift"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS))
    parser.add_argument("--drift", default=DRIFT)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--static-seeds", type=int, nargs="*", default=[100, 101])
    parser.add_argument("--static-clients", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    told = parser.parse_args()
    algorithms = told.algorithms.split(",")
    shared = {
        "dataset": told.dataset,
        "data_dir": told.data_dir,
        "device": told.device,
        "engine": told.engine,
        "preset": told.preset,
        "data_fraction": told.fraction,
        "batch_size": told.batch_size,
        "rounds": 10,
    }
    shared = {name: value for name, value in shared.items() if value is not None}
    cells = plan({**shared, "drift": told.drift, "clients": 10}, algorithms, SHIFTS, told.levels, told.seeds, told.out)
    run(cells, told.out, told.jobs, "drift")
    static: list[Cell] = []
    if FOUND in algorithms and told.static_seeds:
        many = {**shared, "clients": told.static_clients, "cluster_round": 3}
        static = plan(many, [FOUND], SHIFTS, [5], told.static_seeds, told.out)
        run(static, told.out, told.jobs, "static")
    store = Store(told.out / STORE_FILE)
    answer = table(cells, store, algorithms)
    if FOUND in algorithms:
        detection(cells, store)
        false_alarms(static, store)
    (told.out / "drift.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
