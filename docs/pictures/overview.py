"""Four shifts and what they do: images of three clients each, and the accuracy of every client under two methods."""

from pathlib import Path

import numpy as np
from docs.pictures.look import FEDAVG, FLUX, GRID, INK, PALE, page, place, thumbnail
from docs.pictures.runs import Finished, finished, scores
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SHIFTS = {
    "px": ("P(X)", "images look different"),
    "py": ("P(Y)", "some labels are missing"),
    "pygx": ("P(Y|X)", "one thing, several names"),
    "pxgy": ("P(X|Y)", "some classes look different"),
}
LEVEL, CLIENTS, LABELS = 6, 3, 4
"""Whose images are shown, of how many clients, and how many labels of each."""
LEFT, WIDTH, GAP = 0.075, 0.2, 0.035


def overview(runs: Path) -> Figure:
    """Needs the runs of `make demo`."""
    figure = page(9.6, 4.7)
    for column, (shift, (name, words)) in enumerate(SHIFTS.items()):
        left = LEFT + column * (WIDTH + GAP)
        figure.text(left, 0.955, name, fontsize=12, weight="bold", color=INK)
        figure.text(left, 0.915, words, fontsize=9, color=PALE)
        images_of(figure, finished(runs, shift=shift, algorithm="flux", level=LEVEL)[0], left)
        axes = place(figure, left, 0.09, WIDTH, 0.34)
        _dots(axes, *(scores(finished(runs, shift=shift, algorithm=name)) for name in ("fedavg", "flux")))
        axes.set_yticks([0, 50, 100], ["0", "50", "100 %"] if column == 0 else ["", "", ""])
    for height, words in ((0.675, "three clients"), (0.26, "accuracy of every client")):
        figure.text(0.012, height, words, rotation=90, va="center", fontsize=9, color=PALE)
    return figure


def images_of(figure: Figure, run: Finished, left: float, top: float = 0.84, size: float = 0.11) -> None:
    """A row for each of three clients of different clusters, a column for each label."""
    firsts = [int(np.flatnonzero(run.truth == kind)[0]) for kind in np.unique(run.truth)]
    clients, labels = firsts[:CLIENTS], _labels(run, firsts[:CLIENTS])
    width = WIDTH / LABELS
    for column, label in enumerate(labels):
        centre = left + (column + 0.5) * width
        figure.text(centre, top + 0.01, f"“{label}”", fontsize=8, ha="center", color=INK)
        for row, client in enumerate(clients):
            box = place(
                figure, left + column * width + 0.004, top - (row + 1) * size + 0.008, width - 0.008, size - 0.016
            )
            thumbnail(box, run.image(client, label))


def _labels(run: Finished, clients: list[int]) -> list[int]:
    """Those in which these clients' images differ most: a missing one counts most."""
    gaps = {}
    for label in range(10):
        images = [run.image(client, label) for client in clients]
        there = [image.astype(float) for image in images if image is not None]
        spread = np.std(there, axis=0).mean() if there else 0.0
        gaps[label] = 1e3 * (0 < len(there) < len(images)) + float(spread)
    return sorted(sorted(gaps, key=lambda label: -gaps[label])[:LABELS])


def _dots(axes: Axes, fedavg: np.ndarray, flux: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    for x, values, colour in ((0, fedavg, FEDAVG), (1, flux, FLUX)):
        axes.scatter(x + rng.uniform(-0.22, 0.22, len(values)), values, s=9, color=colour, alpha=0.55, linewidths=0)
        axes.plot([x - 0.3, x + 0.3], [values.mean()] * 2, color=colour, linewidth=2)
        axes.text(x + 0.34, values.mean(), f"{values.mean():.0f}", va="center", color=colour, weight="bold")
    axes.set(xlim=(-0.5, 1.65), ylim=(0, 104))
    axes.set_xticks([0, 1], ["FedAvg", "FLUX"])
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
