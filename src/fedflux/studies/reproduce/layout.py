"""Outcomes in the paper's layout: its rows and columns, each with the paper's figure and ours under each preset."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedflux.studies.paper.study import Study
from fedflux.studies.reproduce.asking import PRESETS
from fedflux.studies.reproduce.outcome import Outcome

WHOSE = {"default": "ours", "paper": "ours, --preset paper"}


@dataclass(frozen=True)
class Layout:
    """Rows and columns in the paper's order, and what stands where they meet."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    presets: tuple[str, ...]
    at: dict[tuple[str, str, str], Outcome]
    """By row, column and preset."""

    def first(self, row: str, column: str) -> Outcome | None:
        """Any outcome there: all have the paper's figure."""
        found = [self.at[row, column, name] for name in PRESETS if (row, column, name) in self.at]
        return found[0] if found else None

    def presets_of(self, row: str) -> tuple[str, ...]:
        """The presets under which a row was run."""
        return tuple(p for p in self.presets if any((row, column, p) in self.at for column in self.columns))


def laid_out(study: Study, found: Sequence[Outcome]) -> Layout:
    """The table of a study."""
    return Layout(
        tuple(dict.fromkeys(place.row for place in study.places)),
        tuple(dict.fromkeys(place.column for place in study.places)),
        tuple(name for name in PRESETS if any(one.preset == name for one in found)),
        {(one.place.row, one.place.column, one.preset): one for one in found},
    )


def number(mean: float | None, deviation: float | None = None, digits: int = 1) -> str:
    """`92.5 ± 2.9`; a dash where there is none."""
    if mean is None:
        return "–"
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def printed(one: Outcome | None) -> str:
    """The paper's figure; in brackets what its plots show at our levels, where these are fewer."""
    if one is None:
        return ""
    text = number(one.place.paper, one.place.paper_std, digits_of(one.place.score))
    return text if one.paper == one.place.paper else f"{text} ({number(one.paper)})"


def digits_of(score: str) -> int:
    """Decimals that a score is shown with: distances are small numbers."""
    return 3 if score in ("max", "min", "mean", "std") else 1


def best_method(study: Study, found: Sequence[Outcome], column: str) -> Outcome | None:
    """The method that is best in a column as we ran it, if the column has several and they are comparable."""
    if not study.rows_are_methods:
        return None
    own = [one for one in found if one.place.column == column and one.ours is not None and one.preset == PRESETS[0]]
    own = [one for one in own if one.place.score in ("known", "test", "accuracy")]
    scopes = {(one.levels, one.seeds) for one in own}
    return max(own, key=lambda one: one.ours or 0.0) if len(own) > 1 and len(scopes) == 1 else None
