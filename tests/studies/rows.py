"""Rows as a comparison leaves them, made by hand or drawn at random."""

from itertools import product
from typing import Any

from hypothesis import strategies as st

from fedflux.studies.summary import SCORES


def row(algorithm: str, shift: str, level: int, seed: int, **scores: Any) -> dict[str, Any]:
    """A run whose other scores are None."""
    named = {"group": "g", "dataset": "mnist", "algorithm": algorithm, "shift": shift, "level": level, "seed": seed}
    return {**named, **dict.fromkeys(SCORES), **scores}


def only(lines: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    found = [line for line in lines if all(line[key] == value for key, value in wanted.items())]
    assert len(found) == 1
    return found[0]


@st.composite
def full_grids(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Every algorithm at every level of every shift with every seed, in any order."""
    accuracy = st.floats(0, 100, allow_nan=False)
    shifts = draw(st.lists(st.sampled_from(["px", "py", "pxgy"]), min_size=1, unique=True))
    levels = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True))
    seeds = draw(st.lists(st.integers(0, 99), min_size=2, max_size=4, unique=True))
    rows = [
        row(algorithm, shift, level, seed, known=draw(accuracy), known_worst=draw(accuracy), test=None)
        for algorithm, shift, level, seed in product(["flux", "fedavg"], shifts, levels, seeds)
    ]
    return draw(st.permutations(rows))
