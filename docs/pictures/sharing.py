"""What clusters share: whose model answers, round by round, under each shift."""

from pathlib import Path

import numpy as np
from docs.pictures.look import FLUX, GRID, PALE, WARM, page, place
from docs.pictures.overview import SHIFTS
from docs.pictures.runs import finished
from matplotlib.figure import Figure

LEVEL = 4
COLOURS = {"own": FLUX, "trunk": WARM, "general": "#3f5fb0"}
WORDS = {"own": "the cluster's own model", "trunk": "shared trunk, own last layer", "general": "one model for all"}


def sharing(runs: Path) -> Figure:
    """Needs the runs of `make demo`; parts are voted on by members' validation images."""
    figure = page(9.6, 2.9)
    seen: set[str] = set()
    for column, (shift, (name, _)) in enumerate(SHIFTS.items()):
        run = finished(runs, shift=shift, algorithm="flux", level=LEVEL)[0]
        axes = place(figure, 0.06 + column * 0.24, 0.19, 0.2, 0.56)
        rounds = [(line["round"], line["parts"]) for line in run.rounds if line.get("parts")]
        branches = [branch for branch in COLOURS if any(branch in parts for _, parts in rounds)]
        heights = [[100 * parts.get(branch, 0.0) for _, parts in rounds] for branch in branches]
        x = np.array([number for number, _ in rounds])
        for branch, low, high in zip(branches, *_stacked(np.array(heights)), strict=True):
            words = WORDS[branch] if branch not in seen else None
            axes.bar(x, high - low, bottom=low, width=0.86, color=COLOURS[branch], label=words)
            seen.add(branch)
        axes.set(xlim=(0.4, 10.6), ylim=(0, 100))
        axes.set_xticks([1, 5, 10])
        axes.set_yticks([0, 50, 100], ["0", "50", "100 %"] if column == 0 else ["", "", ""])
        axes.set_title(name, fontsize=11, loc="left", weight="bold")
        axes.set_xlabel("round", fontsize=9)
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
    figure.legend(loc="upper left", bbox_to_anchor=(0.055, 1.0), ncols=3, frameon=False, fontsize=9)
    figure.text(0.008, 0.47, "part in the answers", rotation=90, va="center", fontsize=9, color=PALE)
    return figure


def _stacked(heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = heights.cumsum(axis=0)
    return high - heights, high
