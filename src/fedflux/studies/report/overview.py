"""The overview: summaries of comparable runs, differences to a reference, and the paper's figures beside ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedflux.errors import unknown
from fedflux.studies.paper import Figure, figures
from fedflux.studies.report.folders import distinct
from fedflux.studies.report.rounding import digits
from fedflux.studies.summary import by_shift, overall, paired

USUAL_REFERENCE = "fedavg"
"""As in comparisons; where there is none, the first algorithm."""
SHIFT_ORDER = ("px", "py", "pygx", "pxgy")
COMPARED = ("known", "test", "known_worst", "test_worst")
PAPER = ("algorithm", "shift", "known", "known_std", "test", "test_std", "scope")
OWN = ("known_mean", "known_std", "test_mean", "test_std", "scope")


def overview(rows: Sequence[Mapping[str, Any]], reference: str | None = None) -> dict[str, Any]:
    """One block for every set of runs that may be compared (same dataset, same settings), with all its summaries."""
    algorithms = sorted({str(row["algorithm"]) for row in rows})
    if reference is not None and reference not in algorithms:
        raise unknown("reference algorithm", reference, algorithms)
    base = reference or (USUAL_REFERENCE if USUAL_REFERENCE in algorithms else algorithms[0])
    algorithms.sort(key=lambda name: name != base)
    ordered = sorted(rows, key=lambda row: (algorithms.index(row["algorithm"]), _shift_place(row["shift"])))
    keys = sorted({(str(row["dataset"]), str(row["group"])) for row in rows})
    taken: set[str] = set()
    return {
        "reference": base,
        "algorithms": algorithms,
        "blocks": [{"id": distinct(key[1] or key[0], taken), **_block(ordered, key, base)} for key in keys],
    }


def _shift_place(shift: str) -> tuple[int, str]:
    return (SHIFT_ORDER.index(shift) if shift in SHIFT_ORDER else len(SHIFT_ORDER), shift)


def _block(rows: Sequence[Mapping[str, Any]], key: tuple[str, str], reference: str) -> dict[str, Any]:
    mine = [row for row in rows if (row["dataset"], row["group"]) == key]
    cells = {(row["algorithm"], row["shift"], row["level"], row["seed"]) for row in mine}
    shifts = sorted({str(row["shift"]) for row in mine}, key=_shift_place)
    answer = {
        "dataset": key[0],
        "group": key[1],
        "runs": len(mine),
        "repeated": len(mine) - len(cells),
        "shifts": shifts,
        "by_shift": sorted(by_shift(mine), key=lambda line: shifts.index(line["shift"])),
        "overall": overall(mine),
        "paired": [line for score in COMPARED for line in paired(mine, reference, score) if line["pairs"]],
        "paper": _paper(mine, shifts),
    }
    rounded: dict[str, Any] = digits(answer, 5)
    return rounded


def _paper(rows: Sequence[Mapping[str, Any]], shifts: Sequence[str]) -> list[dict[str, Any]]:
    """The paper's figures for this dataset, number of clients and participation, and ours where there is one.

    A figure of one level stands beside ours of that level only, a mean beside a mean; both say what they are over.
    """
    clients, participation = rows[0].get("clients"), rows[0].get("participation")
    if clients is None:
        return []
    found = figures(rows[0]["dataset"], clients, participation=participation or 1.0, shifts=shifts)
    return [
        {**{name: figure.as_dict().get(name) for name in PAPER}, "own": _ours(rows, figure)}
        for figure in found
        if figure.accuracy is None
    ]


def _ours(rows: Sequence[Mapping[str, Any]], figure: Figure) -> dict[str, Any] | None:
    mine = [row for row in rows if row["algorithm"] == figure.algorithm]
    if figure.shift is None:
        lines = [line for line in overall(rows) if line["algorithm"] == figure.algorithm] if mine else []
    elif len(figure.levels) == 1:
        at_level = [row for row in mine if (row["shift"], row["level"]) == (figure.shift, figure.levels[0])]
        lines = by_shift(at_level)
    else:
        of = (figure.algorithm, figure.shift)
        lines = [line for line in by_shift(rows) if (line["algorithm"], line["shift"]) == of]
    return {name: lines[0].get(name) for name in OWN} if lines and lines[0]["seeds"] else None
