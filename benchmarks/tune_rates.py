"""Chooses every method's learning rate on one dataset and writes it into the file that `--preset tuned` reads.

    python -m benchmarks.tune_rates digits --out runs/tuning [--data-dir FOLDER] [--algorithms all] [--jobs 2]

Each method is run with each rate on the four shifts at level 4, seed 42; the rate with the best mean validation
accuracy of the last round counts. Test parts are not looked at. Finished runs are not repeated, so it can be stopped
and gone on with, and runs of other machines can be merged into its store (`fedflux store merge`).
"""

from argparse import ArgumentParser
from json import loads
from pathlib import Path
from statistics import fmean
from typing import Any

from fedflux.algorithms import ALGORITHMS
from fedflux.files import write_json
from fedflux.runs.storage.store import Store
from fedflux.studies.compare import Cell, compare, plan
from fedflux.studies.grid import FOR_SOME_MODELS, names

RATES = (0.005, 0.01, 0.03, 0.06)
SHIFTS = ("px", "py", "pygx", "pxgy")
FILE = Path(__file__).parents[1] / "src/fedflux/runs/tuned.json"


def validation(cell: Cell, store: Store) -> float:
    """Mean validation accuracy over clients after the last round, in percent; a run that diverged has none."""
    rounds = store.rounds(cell.identity)
    if not rounds:
        return 0.0
    return fmean(score for score in rounds[-1]["validation"].values() if score is not None)


def scores(told: dict[str, Any], algorithms: list[str], out: Path, jobs: int) -> dict[str, dict[str, float]]:
    """By method and rate, the mean over the shifts; what the store in `out` holds already is not run again."""
    found: dict[str, dict[str, float]] = {name: {} for name in algorithms}
    for rate in RATES:
        cells = plan({**told, "lr": rate}, algorithms, SHIFTS, [4], [42], out)
        answer = compare(cells, Store(out), jobs, algorithms[0])
        print(f"rate {rate}: {answer['ran']} runs, {len(answer['failed'])} failed", flush=True)
        broken = [one for one in answer["failed"] if "diverged" not in one["why"]]
        if broken:
            raise SystemExit(f"{broken[0]['cell']}: {broken[0]['why']}")
        for name in algorithms:
            mine = [validation(cell, Store(out)) for cell in cells if cell.config.algorithm == name]
            found[name][str(rate)] = round(fmean(mine), 2)
    return found


def main() -> None:
    """Tune the methods asked for, keep the others' entries."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--algorithms", default="all")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    told = {"dataset": given.dataset, **({"data_dir": given.data_dir} if given.data_dir else {})}
    algorithms = names(given.algorithms, list(ALGORITHMS), "algorithms", left_out=FOR_SOME_MODELS)
    found = scores(told, algorithms, given.out / given.dataset, given.jobs)
    kept = loads(FILE.read_text()) if FILE.exists() else {}
    before = kept.get(given.dataset, {"rates": {}, "validation": {}})
    best = {name: float(max(rates, key=lambda rate: (rates[rate], -float(rate)))) for name, rates in found.items()}
    kept[given.dataset] = {
        "rates": {**before["rates"], **best},
        "validation": {**before["validation"], **found},
    }
    write_json(FILE, dict(sorted(kept.items())))
    for name, rate in best.items():
        print(f"{name}: {rate}  {found[name]}")


if __name__ == "__main__":
    main()
