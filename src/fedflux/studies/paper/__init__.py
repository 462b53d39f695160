"""The FLUX paper's tables as data, so that own results can stand beside them without being mistaken for them.

The text of the paper has no figures of single levels, but for mixed shifts and for the comparison of numbers of
clients, which fixes one level for each shift. By shift there are only means over levels 1 to 8, and for most
algorithms only means over shifts and levels. A figure therefore never travels without its `scope`.
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib.resources import files
from math import isclose
from typing import Any

from fedflux.studies.paper.figure import Figure

__all__ = ["Figure", "every_figure", "fidelity_rows", "figures"]

USUAL_CLIENTS = 10
"""What the paper uses where a table does not say how many clients there are."""
OWN = {field.name for field in fields(Figure)}


def figures(
    dataset: str, clients: int, *, participation: float = 1.0, shifts: Iterable[str] | None = None
) -> list[Figure]:
    """The figures that a plain comparison on `dataset` with so many clients may be put beside.

    With `shifts`, only those of the shifts named, and means over shifts only if every shift in them is named.
    """
    named = None if shifts is None else set(shifts)
    return [
        figure
        for figure in every_figure()
        if figure.plain
        and figure.dataset == dataset
        and (figure.clients or USUAL_CLIENTS) == clients
        and isclose(figure.participation, participation)
        and (figure.known, figure.test, figure.accuracy) != (None, None, None)
        and (named is None or named.issuperset({figure.shift} if figure.shift else figure.over))
    ]


@cache
def every_figure() -> tuple[Figure, ...]:
    """All tables, ablations included, in the order of the file."""
    content = _content()
    return tuple(_figure(entry, content["tables"][entry["table"]]) for entry in content["figures"])


def fidelity_rows(dataset: str, shift: str) -> dict[int, dict[str, Any]]:
    """tab:eps_R1 by level: maximum, minimum, mean and deviation of |descriptor distance − W2|, in the paper's unit."""
    return {row["level"]: row for row in _content()["fidelity"] if (row["dataset"], row["shift"]) == (dataset, shift)}


@cache
def _content() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        files("fedflux.studies.paper").joinpath("tables.json").read_text(encoding="utf-8")
    )
    return found


def _figure(entry: dict[str, Any], about: str) -> Figure:
    own = {key: value for key, value in entry.items() if key in OWN}
    lists = {key: tuple(entry.get(key) or ()) for key in ("levels", "over", "test_over")}
    note = "; ".join(filter(None, (entry.get("note"), about)))
    return Figure(**{**own, **lists, "note": note, "more": {k: v for k, v in entry.items() if k not in OWN}})
