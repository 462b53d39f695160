"""What a declared study is made of: places of a table or figure, each with the runs that it is a mean of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FOLDS = (42, 43, 44, 45, 46)
"""The paper's seeds."""
TEST_FREE = frozenset({"local", "pfedme"})
"""Methods without an answer to unlabelled clients."""
KNOWN_FREE = frozenset({"atp"})
"""Methods whose models are made for unlabelled clients alone."""
UNLEVELLED = 0
"""The level of a shift that has none."""

Grid = tuple[tuple[str, int], ...]
"""Shifts, each with a level."""


@dataclass(frozen=True)
class Runs:
    """The runs that a place is a mean of: one for each shift and level, times seeds."""

    dataset: str
    algorithm: str
    grid: Grid
    settings: tuple[tuple[str, Any], ...] = ()
    """What else is set, by name."""

    @property
    def levels(self) -> tuple[int, ...]:
        """All levels, ascending."""
        return tuple(sorted({level for _, level in self.grid}))

    @property
    def is_mean_over_levels(self) -> bool:
        """Whether some shift has more than one level."""
        return len(self.grid) > len({shift for shift, _ in self.grid})


@dataclass(frozen=True)
class Place:
    """One number of a table or a figure, as the paper prints it, and how it is made here."""

    row: str
    column: str
    score: str
    """`known`, `test`, `accuracy` (the paper does not say which of them), `log2_seconds`, `seconds`, `validation:3`
    (after a round), `threshold:0.2` (known, where C(r) has this T), `max` and so on of distances."""
    runs: Runs
    paper: float | None = None
    paper_std: float | None = None
    by_level: Mapping[int, tuple[float, float]] = field(default_factory=dict, hash=False)
    """The paper's figure and ± at single levels, where it is a mean over levels that its plots show."""
    doubt: str = ""
    """Why ours and the paper's cannot be compared even where both are there."""
    missing: str = ""
    """What this library lacks to make it."""
    whole: tuple[int, ...] = ()
    """All levels of the paper's mean, where `runs` has been narrowed to fewer."""
    panel: str = ""
    """Of a figure: where the point is drawn."""
    x: float | str = 0.0


@dataclass(frozen=True)
class Study:
    """A table or a figure of the paper."""

    name: str
    title: str
    protocol: str
    """How it is made here, and what the paper leaves open."""
    kind: Literal["table", "figure", "description"] = "table"
    places: tuple[Place, ...] = ()
    drawn: Literal["", "lines", "samples", "maps"] = ""
    x_label: str = ""
    levelled: bool = False
    """Whether levels are what it goes over, so that few of them give an early view."""
    rows_are_methods: bool = False
    """Whether methods that the paper does not have may be put in as rows."""
    seeds: tuple[int, ...] = FOLDS
    smoke: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings that differ where a run must last a second."""

    @property
    def short(self) -> str:
        """The name without its kind: a file name."""
        return self.name.partition(":")[2]

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets in the order in which the paper has them."""
        return tuple(dict.fromkeys(place.runs.dataset for place in self.places))
