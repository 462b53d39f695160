"""A comparison as it runs: validation accuracy by round, every client a line, under two methods."""

from pathlib import Path

import numpy as np
from docs.pictures.look import FEDAVG, FLUX, GRID, page, place
from docs.pictures.overview import SHIFTS
from docs.pictures.runs import finished
from matplotlib.figure import Figure

LEVEL = 6


def rounds(runs: Path) -> Figure:
    """Needs the runs of `make demo`: what their `rounds.jsonl` hold."""
    figure = page(9.6, 2.9)
    for column, (shift, (name, _)) in enumerate(SHIFTS.items()):
        axes = place(figure, 0.06 + column * 0.24, 0.19, 0.2, 0.58)
        for method, words, colour in (("fedavg", "FedAvg", FEDAVG), ("flux", "FLUX", FLUX)):
            lines = finished(runs, shift=shift, algorithm=method, level=LEVEL)[0].rounds
            x = [line["round"] for line in lines]
            y = np.array([list(line["validation"].values()) for line in lines])
            axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.7)
            axes.plot(x, y.mean(axis=1), color=colour, linewidth=2.4, label=words if column == 0 else None)
        axes.set(ylim=(0, 104))
        axes.set_xticks([1, 5, 10])
        axes.set_yticks([0, 50, 100], ["0", "50", "100 %"] if column == 0 else ["", "", ""])
        axes.set_title(name, fontsize=11, loc="left", weight="bold")
        axes.set_xlabel("round", fontsize=9)
        axes.grid(axis="y", color=GRID)
    figure.legend(loc="upper left", bbox_to_anchor=(0.055, 1.0), ncols=2, frameon=False, fontsize=9)
    figure.text(0.27, 0.945, "mean of ten clients, and each of them thin", fontsize=9, va="center")
    return figure
