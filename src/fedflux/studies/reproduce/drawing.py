"""A reproduced plot: the paper's curves dashed, ours drawn through beside them."""

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from fedflux.files import write_bytes
from fedflux.studies.paper.study import Study
from fedflux.studies.report.colours import palette
from fedflux.studies.report.exports import MARKERS, STYLE
from fedflux.studies.reproduce.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = {"default": "-", "paper": ":"}
ACROSS = 4
"""Panels beside each other."""


def draw_lines(study: Study, found: Sequence[Outcome], stem: Path) -> list[Path]:
    """A panel for each of the paper's, a colour a method; of FedAvg's curves also what each round gained."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(place.panel for place in study.places))
    rows = list(dict.fromkeys(place.row for place in study.places))
    gains = any(place.score.startswith("validation:") for place in study.places)
    across = min(len(panels), ACROSS)
    down = ceil(len(panels) / across) * (2 if gains else 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.0 + 2.7 * across, 0.9 + 2.3 * down), layout="constrained")
        axes = [figure.add_subplot(down, across, place + 1) for place in range(len(panels) * (2 if gains else 1))]
        colours = dict(zip(rows, palette(len(rows)), strict=True))
        for place, panel in enumerate(panels):
            own = [one for one in found if one.place.panel == panel]
            _curves(axes[place], own, rows, colours)
            axes[place].set_title(panel, loc="left", fontsize=9)
            axes[place].set_xlabel(study.x_label)
            if gains:
                _gains(axes[len(panels) + place], own)
                axes[len(panels) + place].set_xlabel(study.x_label)
        _legend(figure, rows, colours, [one.preset for one in found], any(one.place.paper is not None for one in found))
        return save(figure, study, stem)


def save(figure: "Figure", study: Study, stem: Path) -> list[Path]:
    """As PNG and SVG, the same bytes for the same picture; what all of it is not is written over it."""
    doubts = {place.doubt for place in study.places}
    if len(doubts) == 1 and (words := doubts.pop()):
        figure.suptitle(words, fontsize=8)
    written = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = BytesIO()
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
        written.append(stem.with_name(f"{stem.name}.{kind}"))
        write_bytes(written[-1], buffer.getvalue())
    return written


def _curves(axes: "Axes", found: Sequence[Outcome], rows: Sequence[str], colours: dict[str, str]) -> None:
    for row in rows:
        own = [one for one in found if one.place.row == row]
        printed = dict.fromkeys((_x(one), one.place.paper) for one in own if one.place.paper is not None)
        if printed:
            axes.plot(*zip(*printed, strict=True), "--", color=colours[row], lw=1.0, alpha=0.6)
        for preset, line in LINES.items():
            seen = [one for one in own if one.preset == preset and one.ours is not None]
            if seen:
                axes.errorbar(
                    [_x(one) for one in seen],
                    [one.ours or 0.0 for one in seen],
                    yerr=[one.std or 0.0 for one in seen],
                    fmt=f"{MARKERS[rows.index(row) % len(MARKERS)]}{line}",
                    color=colours[row],
                    lw=1.4,
                    ms=3.5,
                    capsize=2,
                )
    if {one.place.score for one in found} == {"seconds"}:
        axes.set_yscale("log")


def _gains(axes: "Axes", found: Sequence[Outcome]) -> None:
    """What every round added."""
    seen = [(_x(one), one.ours) for one in found if one.ours is not None]
    steps = [(x, after - before) for (_, before), (x, after) in pairwise(seen)]
    if steps:
        axes.plot(*zip(*steps, strict=True), "o-", ms=3.5, lw=1.4, color="#8a8f98")
    axes.set_title("gain a round", loc="left", fontsize=9)


def _x(outcome: Outcome) -> float:
    return float(outcome.place.x)


def _legend(
    figure: "Figure", rows: Sequence[str], colours: dict[str, str], presets: Sequence[str], printed: bool
) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colours[row], marker=MARKERS[place % len(MARKERS)], ms=3.5, label=row)
             for place, row in enumerate(rows)]  # fmt: skip
    if printed:
        lines.append(Line2D([], [], color="black", ls="--", lw=1.0, label="the paper"))
    if "paper" in presets:
        lines.append(Line2D([], [], color="black", ls=":", label="ours, --preset paper"))
    figure.legend(handles=lines, loc="outside lower center", ncols=min(len(lines), 6), fontsize=7)
