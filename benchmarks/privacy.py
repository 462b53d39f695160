"""Accuracy against ε: the Gaussian release and the paper's noise, beside the paper's table.

    python -m benchmarks.privacy --data-dir DATA --out runs/privacy [--dataset mnist] [--device cuda] [--seeds 42-46]
        [--levels 5] [--fraction 1.0] [--epsilons 0.01,0.1,1,10] [--jobs 4] [--table TABLE.md]

Runs FLUX on the four shifts with each mechanism and budget, and without noise. Finished runs are not repeated, so it
can be stopped and gone on with, and stores of several machines can be merged (`fedflux store merge`). Means over
shifts, levels and seeds, with deviations; the test phase is over the shifts that have one. The paper does not say what
its own table was measured on.

    python -m benchmarks.privacy --audit 15 [--epsilons 0.5,1,2,6] [--trials 6000]

Attacks a group of so many records instead, with either privacy unit: what is proved beside what is claimed.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import numpy as np

from fedflux.runs.storage.store import Store
from fedflux.studies.audit import attack_on_group
from fedflux.studies.compare import compare, plan
from fedflux.studies.grid import numbers
from fedflux.studies.paper import every_figure

SHIFTS = ("px", "py", "pygx", "pxgy")
FIGURES = ("pairs_right", "known", "test")


def results(told: dict[str, Any], levels: list[int], seeds: list[int], out: Path, jobs: int) -> list[dict[str, Any]]:
    """The results of the four shifts under one promise, in the order of the grid."""
    cells = plan(told, ["flux"], SHIFTS, levels, seeds, out)
    store = Store(out)
    answer = compare(cells, store, jobs, "flux")
    if answer["failed"]:
        raise SystemExit(f"{answer['failed'][0]['cell']}: {answer['failed'][0]['why']}")
    found = [(cell.config.shift, store.get(cell.identity)) for cell in cells]
    return [{**one["result"], "shift": shift} for shift, one in found if one is not None]


def mean(found: list[dict[str, Any]], figure: str) -> str:
    """Mean and deviation over runs, or a dash."""
    values = [one[figure] for one in found if one[figure] is not None]
    digits = 3 if figure == "pairs_right" else 2
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}" if values else "–"


def row(name: str, told: float | None, found: list[dict[str, Any]]) -> str:
    """One line of the table: what was asked, what it spent, and what came of it."""
    spent = found[0]["epsilon"]
    by_shift = ", ".join(
        f"{np.mean([one['pairs_right'] for one in found if shift == one['shift']]):.3f}" for shift in SHIFTS
    )
    promised = "none" if told is None else f"{told:g}"
    figures = " | ".join(mean(found, figure) for figure in FIGURES)
    return f"| {name} | {promised} | {'–' if spent is None else f'{spent:.4g}'} | {figures} | {by_shift} |"


def table(rows: list[str]) -> str:
    """Ours, then the paper's."""
    head = "| mechanism | ε asked | ε spent | pairs right | known | test | pairs right by shift: px, py, pygx, pxgy |"
    lines = [head, "|---" * 7 + "|", *rows]
    for one in every_figure():
        if one.table == "tab:dp_effect":
            asked = one.more.get("epsilon")
            promised = "none" if asked is None else f"{asked:g}"
            figures = f"{one.known:.2f} ± {one.known_std:.2f} | {one.test:.2f} ± {one.test_std:.2f}"
            lines.append(f"| the paper's own table | {promised} | not stated | – | {figures} | – |")
    return "\n".join(lines)


def audit(records: int, budgets: list[float], trials: int) -> None:
    """Print what an attack on one group proves, with groups and with records as the unit."""
    print("| ε claimed | proved with --privacy-unit group | with record |\n|---|---|---|")
    for epsilon in budgets:
        proved = [attack_on_group(epsilon, unit, records, trials) for unit in ("group", "record")]
        print(f"| {epsilon:g} | {proved[0]:.2f} | {proved[1]:.2f} |", flush=True)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--levels", default="5")
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--epsilons", default="0.01,0.1,1,10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--audit", type=int, metavar="RECORDS")
    parser.add_argument("--trials", type=int, default=6000)
    given = parser.parse_args()
    if given.audit:
        audit(given.audit, [float(one) for one in given.epsilons.split(",")], given.trials)
        return
    told: dict[str, Any] = {
        "dataset": given.dataset,
        "data_fraction": given.fraction,
        "device": given.device,
        "engine": given.engine,
        **({"data_dir": given.data_dir} if given.data_dir else {}),
    }
    budgets = [float(one) for one in given.epsilons.split(",")]
    promises = [("none", None), *((name, one) for name in ("gaussian", "paper") for one in reversed(budgets))]
    levels, seeds = numbers(given.levels, "levels"), numbers(given.seeds, "seeds")
    rows = []
    for name, epsilon in promises:
        promise = {} if epsilon is None else {"dp": name, "epsilon": epsilon}
        found = results({**told, **promise}, levels, seeds, given.out, given.jobs)
        rows.append(row(name, epsilon, found))
        print(rows[-1], flush=True)
    answer = table(rows)
    print("\n" + answer)
    if given.table:
        given.table.write_text(answer + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
