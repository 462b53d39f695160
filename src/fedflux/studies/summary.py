"""Rows of runs to summaries: means by cell, by shift and overall, and paired differences to a reference algorithm.

A row is one run: `group, algorithm, dataset, shift, level, seed` and its scores. `group` separates runs that differ in
other settings, so nothing is ever averaged or compared across groups or datasets. Of two rows for the same run the
last counts. A score that is None or absent is left out. Algorithms, shifts, datasets and groups keep the order in which
they first appear; levels and seeds ascend.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, t

from fedflux.data.sources import BY_LEVEL

Row = Mapping[str, Any]
Key = tuple[str, str, str]  # group, algorithm, dataset
Cell = tuple[str, int, int]  # shift, level, seed
Grid = dict[str, tuple[int, ...]]  # the levels of each shift

SPREAD = ("known", "test", "unseen")
WORST = ("known_worst", "test_worst", "unseen_worst")
WORK = ("models_down", "models_up", "forward_passes", "training_passes")
COUNTED = ("pairs_right", "clusters_found", "clusters_true", "seconds", "bytes_up", "bytes_down", *WORK)
SCORES = (*SPREAD, *WORST, *COUNTED)
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
UNSHIFTED = "none"
"""The shift that has no level."""
FEWEST_PAIRS = 6
"""With n pairs the two-sided p-value is at least 2/2ⁿ, which is below 0.05 from six pairs on."""
DECIMALS = 9
"""Differences are rounded to these before they are ranked: equal ones must not be told apart by rounding errors."""


def by_cell(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One line per (group, algorithm, dataset, shift, level): mean and sample deviation over seeds."""
    lines = []
    tables, grids = _arranged(rows)
    for (group, algorithm, dataset), cells in tables.items():
        for shift, levels in grids[group, dataset].items():
            for level in levels:
                seeds = sorted({cell[2] for cell in cells if cell[:2] == (shift, level)})
                if seeds:
                    named = {"group": group, "algorithm": algorithm, "dataset": dataset, "shift": shift, "level": level}
                    scores = _scores(cells, {score: {shift: (level,)} for score in SCORES})
                    lines.append({**named, **scores, "seeds": seeds})
    return lines


def by_shift(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One line per (group, algorithm, dataset, shift): mean over levels by seed, then mean and deviation over seeds.

    Only seeds with every level that the group has for the shift count, so that all algorithms' means are over the same.
    """
    lines = []
    tables, grids = _arranged(rows)
    for (group, algorithm, dataset), cells in tables.items():
        for shift, levels in grids[group, dataset].items():
            if any(cell[0] == shift for cell in cells):
                named = {"group": group, "algorithm": algorithm, "dataset": dataset, "shift": shift}
                words = _of_levels(shift, levels, dataset)
                wanted = {score: {shift: levels} for score in SCORES}
                over = f"mean over {words}" if len(levels) > 1 and words else words
                line = _mean_line(cells, {shift: levels}, wanted, over)
                lines.append({**named, **line, "levels": list(levels)})
    return lines


def overall(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One line per (group, algorithm, dataset): as `by_shift`, and every shift has the same weight.

    A score is a mean over the shifts in which any algorithm of the group has it: P(Y|X) has no test phase.
    """
    lines = []
    tables, grids = _arranged(rows)
    for (group, algorithm, dataset), cells in tables.items():
        grid = grids[group, dataset]
        beside = [other for key, other in tables.items() if (key[0], key[2]) == (group, dataset)]
        wanted = {score: {s: grid[s] for s in grid if _defined(beside, s, score)} for score in SCORES}
        shifts = {f"{score}_shifts": list(wanted[score]) for score in SPREAD}
        over = "" if set(grid) == {UNSHIFTED} else f"mean over {_grid_words(grid)}{_but(grid, wanted)}"
        line = _mean_line(cells, grid, wanted, over)
        levels = sorted(set().union(*grid.values()))
        named = {"group": group, "algorithm": algorithm, "dataset": dataset, "shifts": list(grid)}
        lines.append({**named, **shifts, **line, "levels": levels})
    return lines


def paired(rows: Iterable[Row], reference: str, score: str = "known") -> list[dict[str, Any]]:
    """Differences to `reference` over matched (shift, level, seed), per (group, dataset) and other algorithm.

    `low` and `high` are a 95 % t interval, `p` an exact two-sided Wilcoxon signed-rank test (from six pairs on), and
    `p_holm` is p corrected for the algorithms of the group. Interval and test take the differences for independent
    draws from one population. For the seeds of one shift and level that holds. Cells of different shifts or levels
    differ in more than chance, were chosen and not drawn, and share their seeds: over several of them the interval
    describes this grid, its width holds the spread between cells too, and nothing follows for other shifts or levels.
    `mark` needs p_holm < 0.05, and mean and ranks that point the same way; it takes more of the score for better.
    """
    lines: list[dict[str, Any]] = []
    tables, grids = _arranged(rows)
    for group, dataset in grids:
        base = tables.get((group, reference, dataset), {})
        block = [
            {"group": group, "dataset": dataset, "algorithm": key[1], "reference": reference, "score": score}
            | _differences(cells, base, score)
            for key, cells in tables.items()
            if (key[0], key[2]) == (group, dataset) and key[1] != reference
        ]
        tested = [line for line in block if line["p"] is not None]
        for line, p in zip(tested, holm([line["p"] for line in tested]), strict=True):
            line["p_holm"] = p
        for line in block:
            line["mark"] = _mark(line["p_holm"], line["mean"], line.pop("ranks"))
        lines += block
    return lines


def signed_rank(differences: Sequence[float]) -> tuple[float, float]:
    """Wilcoxon's T⁺ − T⁻ and its exact two-sided p-value: the share of the 2ⁿ choices of signs that are as extreme.

    Zeros are left out; nothing but zeros has p = 1. Equal sizes share their mean rank, and the distribution is that of
    these ranks, where `scipy.stats.wilcoxon` would take the one without ties.
    """
    rounded = np.round(np.asarray(differences, dtype=np.float64), DECIMALS)
    rounded = rounded[rounded != 0]
    doubled = np.rint(2 * rankdata(np.abs(rounded))).astype(np.int64)  # mean ranks are halves at worst
    total = int(doubled.sum())
    chance: NDArray[np.float64] = np.zeros(total + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance[rank:] += chance[:-rank].copy()
        chance /= 2
    positive = int(doubled[rounded > 0].sum())
    tail = min(float(chance[: positive + 1].sum()), float(chance[positive:].sum()))
    return positive - total / 2, min(1.0, 2 * tail)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m p-values times m − k + 1, never below a smaller one's."""
    corrected = [0.0] * len(values)
    so_far = 0.0
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(values) - place) * values[index]))
        corrected[index] = so_far
    return corrected


def level_words(levels: Sequence[int]) -> str:
    """`level 3`, `levels 3 and 6`, `levels 1–8`."""
    if len(levels) > 2 and list(levels) == list(range(levels[0], levels[-1] + 1)):
        return f"levels {levels[0]}–{levels[-1]}"
    return f"level{'s' if len(levels) > 1 else ''} {listed(levels)}"


def listed(things: Sequence[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last


def _arranged(rows: Iterable[Row]) -> tuple[dict[Key, dict[Cell, Row]], dict[tuple[str, str], Grid]]:
    """The runs of each (group, algorithm, dataset), and the levels of each shift that a (group, dataset) has at all."""
    rows = list(rows)
    names = ("group", "algorithm", "dataset")
    ranks = [{name: i for i, name in enumerate(dict.fromkeys(row[column] for row in rows))} for column in names]
    keys = {(row["group"], row["algorithm"], row["dataset"]) for row in rows}
    tables: dict[Key, dict[Cell, Row]] = {
        key: {} for key in sorted(keys, key=lambda key: [rank[name] for rank, name in zip(ranks, key, strict=True)])
    }
    for row in rows:
        cells = tables[row["group"], row["algorithm"], row["dataset"]]
        cells[row["shift"], row["level"], row["seed"]] = row
    shifts = dict.fromkeys(row["shift"] for row in rows)
    grids: dict[tuple[str, str], Grid] = {}
    for group, _, dataset in tables:
        beside = [row for row in rows if (row["group"], row["dataset"]) == (group, dataset)]
        found = {s: tuple(sorted({row["level"] for row in beside if row["shift"] == s})) for s in shifts}
        grids[group, dataset] = {shift: levels for shift, levels in found.items() if levels}
    return tables, grids


def _complete(cells: Mapping[Cell, Row], score: str, grid: Grid) -> dict[int, list[list[float]]]:
    """The score by seed, as values by shift and level, for the seeds that have it in every cell of the grid."""
    answer: dict[int, list[list[float]]] = {}
    for seed in sorted({cell[2] for cell in cells}):
        values: list[list[Any]] = [
            [cells.get((shift, level, seed), {}).get(score) for level in levels] for shift, levels in grid.items()
        ]
        if values and not any(value is None for shift in values for value in shift):
            answer[seed] = values
    return answer


def _scores(cells: Mapping[Cell, Row], wanted: Mapping[str, Grid]) -> dict[str, Any]:
    """Means over grid and seeds; for the accuracies also the deviation over seeds, for the worst clients the least."""
    answer: dict[str, Any] = {}
    for score, grid in wanted.items():
        seeds = _complete(cells, score, grid).values()
        means = [fmean(fmean(levels) for levels in shifts) for shifts in seeds]
        answer[f"{score}_mean"] = fmean(means) if means else None
        if score in SPREAD:
            answer[f"{score}_std"] = stdev(means) if len(means) > 1 else None
        if score in WORST:
            answer[f"{score}_min"] = min((v for shifts in seeds for levels in shifts for v in levels), default=None)
    return answer


def _mean_line(cells: Mapping[Cell, Row], grid: Grid, wanted: Mapping[str, Grid], over: str) -> dict[str, Any]:
    """Scores, the seeds that have a run in every cell, and the scope; scores with fewer seeds are named in it."""
    places = [(shift, level) for shift, levels in grid.items() for level in levels]
    seeds = [seed for seed in sorted({cell[2] for cell in cells}) if all((*place, seed) in cells for place in places)]
    if not seeds:
        return {**_scores(cells, wanted), "seeds": [], "scope": f"{over}: no seed has them all".removeprefix(": ")}
    scope = f"{over}, {_seed_words(len(seeds))}".removeprefix(", ")
    for score in SPREAD:
        count = len(_complete(cells, score, wanted[score]))
        if 0 < count < len(seeds):
            scope += f" ({score}: {_seed_words(count)})"
    return {**_scores(cells, wanted), "seeds": seeds, "scope": scope}


def _seed_words(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _grid_words(grid: Grid) -> str:
    shifted = {shift: levels for shift, levels in grid.items() if shift != UNSHIFTED}
    plain = [UNSHIFTED] if UNSHIFTED in grid else []
    if len(set(shifted.values())) == 1:
        words = f"{listed(list(shifted))} at {level_words(next(iter(shifted.values())))}"
        return listed([*plain, words])
    return listed([*plain, *(f"{shift} at {level_words(levels)}" for shift, levels in shifted.items())])


def _of_levels(shift: str, levels: Sequence[int], dataset: str) -> str:
    """Nothing where the shift has none, unless the data's own differences have."""
    return "" if shift == UNSHIFTED and dataset not in BY_LEVEL else level_words(levels)


def _but(grid: Grid, wanted: Mapping[str, Grid]) -> str:
    """Which score is over fewer shifts than the others."""
    fewer = [f"{score} over {listed(list(wanted[score]))}" for score in SPREAD if 0 < len(wanted[score]) < len(grid)]
    return f" ({', '.join(fewer)})" if fewer else ""


def _defined(tables: Iterable[Mapping[Cell, Row]], shift: str, score: str) -> bool:
    return any(row.get(score) is not None for cells in tables for cell, row in cells.items() if cell[0] == shift)


def _differences(cells: Mapping[Cell, Row], base: Mapping[Cell, Row], score: str) -> dict[str, Any]:
    pairs = [(cells[cell].get(score), base[cell].get(score)) for cell in cells if cell in base]
    values = [own - other for own, other in pairs if own is not None and other is not None]
    count = len(values)
    mean = fmean(values) if values else None
    answer = {"pairs": count, "mean": mean, "low": None, "high": None, "p": None, "p_holm": None, "ranks": 0.0}
    if mean is not None and count > 1:
        half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * stdev(values) / sqrt(count)
        answer |= {"low": mean - half, "high": mean + half}
    if count >= FEWEST_PAIRS:
        answer["ranks"], answer["p"] = signed_rank(values)
    return answer


def _mark(p: float | None, mean: float | None, ranks: float) -> str:
    if p is None or mean is None or p >= SIGNIFICANCE or mean * ranks <= 0:
        return ""
    return "better" if mean > 0 else "worse"
