"""Ours beside the paper's: the mean over shifts and levels of every seed, then over seeds, and a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, sqrt
from statistics import fmean, stdev
from typing import Any

from fedflux.algorithms.flux.trigger import should_cluster
from fedflux.studies.paper.study import FOLDS, Place, Study
from fedflux.studies.reproduce.asking import Asked, ask, key, of_threshold, presets_of
from fedflux.studies.summary import level_words

SAME = 0.5
"""Points within which two means are called the same, however small their deviations."""
ERRORS = 2.0
"""Standard errors of the difference within which they are, too."""

Row = Mapping[str, Any]
Lookup = Callable[[str], Row | None]
"""What is kept of a finished cell, by the key of what was asked for."""


@dataclass(frozen=True)
class Outcome:
    """What a place came to under a preset."""

    place: Place
    preset: str
    ours: float | None
    std: float | None
    """The deviation over seeds, where there are two or more."""
    seeds: tuple[int, ...]
    levels: tuple[int, ...]
    paper: float | None
    """The paper's figure that ours is compared with: as printed, or its plots' at the same levels."""
    verdict: str
    finished: int
    planned: int

    def as_dict(self, study: str) -> dict[str, Any]:
        """One of the cells of `fedflux reproduce --json`."""
        place = self.place
        return {
            "table": study,
            "row": place.row,
            "column": place.column,
            "preset": self.preset,
            "dataset": place.runs.dataset,
            "algorithm": place.runs.algorithm,
            "score": place.score,
            "paper": place.paper,
            "paper_std": place.paper_std,
            "paper_same_levels": self.paper if self.paper != place.paper else None,
            "ours": self.ours,
            "std": self.std,
            "seeds": list(self.seeds),
            "levels": list(self.levels),
            "verdict": self.verdict,
            "finished": self.finished,
            "planned": self.planned,
        }


def outcomes(
    study: Study, presets: tuple[str, ...], lookup: Lookup, why: Mapping[str, str] | None = None
) -> list[Outcome]:
    """All places of a study, in its order; `why` says of cells that are missing what stopped them."""
    return [
        _outcome(place, study.seeds, preset, lookup, why or {})
        for place in study.places
        for preset in presets_of(place.runs.algorithm, presets)
    ]


def _outcome(place: Place, seeds: Sequence[int], preset: str, lookup: Lookup, why: Mapping[str, str]) -> Outcome:
    grid = place.runs.grid
    planned = 0 if place.missing or place.score == "samples" else len(seeds) * len(grid)
    values: dict[int, dict[tuple[str, int], float]] = {}
    if planned:
        for seed in seeds:
            own = {one: _value(place, *one, seed, preset, lookup) for one in grid}
            values[seed] = {one: value for one, value in own.items() if value is not None}
    levels, chosen = _complete(grid, values)
    means = [_mean(grid, values[seed], levels) for seed in chosen]
    ours = fmean(means) if means else None
    std = stdev(means) if len(means) > 1 else None
    finished = sum(map(len, values.values()))
    paper, paper_std = _paper(place, levels)
    verdict = (
        _why_missing(place, seeds, preset, lookup, why, finished, planned)
        if ours is None
        else _verdict(place, (ours, std, len(means)), (paper, paper_std), levels)
    )
    return Outcome(place, preset, ours, std, chosen, levels, paper, verdict, finished, planned)


def _complete(
    grid: Sequence[tuple[str, int]], values: Mapping[int, Mapping[tuple[str, int], float]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The levels, and the seeds that have them all for every shift: as many levels as there are, then seeds."""
    shifts: dict[str, set[int]] = {}
    for shift, level in grid:
        shifts.setdefault(shift, set()).add(level)
    several = {level for _, level in grid} if any(len(levels) > 1 for levels in shifts.values()) else None
    if several is None:  # every shift has one level, its own
        seeds = tuple(seed for seed, own in values.items() if all(one in own for one in grid))
        return (tuple(sorted({level for _, level in grid})) if seeds else ()), seeds
    whole = {
        seed: frozenset(level for level in several if all((shift, level) in own for shift in shifts))
        for seed, own in values.items()
    }
    there = [levels for levels in whole.values() if levels]
    if not there:
        return (), ()
    best = max(there, key=lambda levels: (len(levels), sum(levels <= other for other in there), sorted(levels)))
    return tuple(sorted(best)), tuple(seed for seed, levels in whole.items() if best <= levels)


def _mean(grid: Sequence[tuple[str, int]], values: Mapping[tuple[str, int], float], levels: Sequence[int]) -> float:
    """Over levels, then over shifts."""
    shifts = dict.fromkeys(shift for shift, _ in grid)
    return fmean(fmean(values[one] for one in grid if one[0] == shift and one[1] in levels) for shift in shifts)


def _value(place: Place, shift: str, level: int, seed: int, preset: str, lookup: Lookup) -> float | None:
    """The score of one run."""
    if place.score.startswith("threshold:"):
        return _at_threshold(place, shift, level, seed, preset, lookup)
    row = lookup(key(ask(place.runs, shift, level, seed, preset)))
    if row is None:
        return None
    if place.score.startswith("validation:"):
        curve = row["validation"]
        after = int(place.score.partition(":")[2])
        return curve[after - 1] if after <= len(curve) else None
    if place.score == "log2_seconds":
        return log2(row["seconds"])
    value = row.get({"accuracy": "known"}.get(place.score, place.score))
    return None if value is None else 100 * value if place.score == "pairs_right" else value


def _at_threshold(place: Place, shift: str, level: int, seed: int, preset: str, lookup: Lookup) -> float | None:
    """FLUX's known association where C(r) with this T would have made clusters."""
    asks: dict[int, Asked] = dict(of_threshold(place.runs, shift, level, seed, preset))
    fedavg = lookup(key(asks[0]))
    if fedavg is None:
        return None
    curve, threshold = [value / 100 for value in fedavg["validation"]], float(place.score.partition(":")[2])
    fires = next((r for r in range(1, len(curve) + 1) if should_cluster(curve[:r], len(curve), threshold)), None)
    row = lookup(key(asks[fires])) if fires in asks else None
    return None if row is None else row["known"]


def _paper(place: Place, levels: Sequence[int]) -> tuple[float | None, float | None]:
    """Mean and ± as printed; of fewer levels, what the plots show at these."""
    fewer = tuple(levels) != (place.whole or place.runs.levels)
    if levels and fewer and all(level in place.by_level for level in levels):
        shown = [place.by_level[level] for level in levels]
        return fmean(mean for mean, _ in shown), fmean(std for _, std in shown)
    return place.paper, place.paper_std


def _verdict(
    place: Place,
    mean: tuple[float, float | None, int],
    printed: tuple[float | None, float | None],
    levels: Sequence[int],
) -> str:
    """Of our mean, its deviation and number of seeds, and of the paper's mean and its ±."""
    (ours, std, seeds), (paper, paper_std) = mean, printed
    whole = place.whole or place.runs.levels
    doubts = [place.doubt] if place.doubt else []
    if paper is None:
        doubts.append("the paper has no figure")
    elif tuple(levels) != whole and not all(level in place.by_level for level in levels):
        doubts.append(f"{level_words(levels)}, the paper's is over {level_words(whole)}")
    if doubts or paper is None:
        return f"not comparable: {'; '.join(doubts)}"
    if abs(ours - paper) <= max(SAME, ERRORS * _error(std, seeds, paper_std)):
        return "same"
    return "better" if ours > paper else "worse"


def _error(std: float | None, seeds: int, paper_std: float | None) -> float:
    """Of the difference of two means. The paper's ± is taken for a deviation over its folds, and where ours has one
    seed alone, for ours, too.
    """
    theirs = paper_std or 0.0
    own = theirs if std is None else std
    return sqrt(own**2 / seeds + theirs**2 / len(FOLDS))


def _why_missing(
    place: Place,
    seeds: Sequence[int],
    preset: str,
    lookup: Lookup,
    why: Mapping[str, str],
    finished: int,
    planned: int,
) -> str:
    if place.missing:
        return f"missing: {place.missing}"
    if place.score == "samples":
        return "not comparable: images are shown, nothing is measured"
    asked = [key(ask(place.runs, *one, seed, preset)) for seed in seeds for one in place.runs.grid]
    rows = [row for name in asked if (row := lookup(name)) is not None]
    if rows and place.score.startswith("validation:"):
        return "missing: the run has fewer rounds"
    if rows and place.score in ("known", "test", "accuracy") and finished < len(rows):
        words = next((str(row["no_test_phase"]) for row in rows if row.get("no_test_phase")), "the method has none")
        return f"missing: no {place.score} score: {words}"
    reason = next((why[name] for name in asked if name in why), None)
    return f"missing: {reason or f'{finished} of {planned} cells are finished'}"
