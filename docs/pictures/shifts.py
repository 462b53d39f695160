"""The four shifts on one federation each: what ten clients hold, framed in the colour of their distribution."""

from pathlib import Path

import numpy as np
from docs.pictures.look import CLUSTERS, INK, PALE, page, place
from docs.pictures.overview import SHIFTS
from docs.pictures.runs import Finished, finished
from matplotlib.figure import Figure
from numpy.typing import NDArray

LEVEL, CLIENTS, LABELS = 4, 6, (1, 4, 5, 6, 9)
EMPTY = 238


def shifts(runs: Path) -> Figure:
    """Six clients by shift, a row each; every run of a colour is one true distribution."""
    figure = page(9.6, 3.5)
    for column, (shift, (name, words)) in enumerate(SHIFTS.items()):
        run = finished(runs, shift=shift, algorithm="flux", level=LEVEL)[0]
        left, width = 0.055 + column * 0.24, 0.2
        figure.text(left, 0.94, name, fontsize=12, weight="bold", color=INK)
        figure.text(left, 0.885, words, fontsize=9, color=PALE)
        _rows(figure, run, left, width)
    figure.text(0.02, 0.4, "a row a client", rotation=90, va="center", fontsize=9, color=PALE)
    return figure


def _rows(figure: Figure, run: Finished, left: float, width: float) -> None:
    order = np.argsort(run.truth, kind="stable")[:CLIENTS]
    high = 0.78 / CLIENTS
    for row, client in enumerate(order):
        axes = place(figure, left, 0.82 - (row + 1) * high + 0.01, width, high - 0.02)
        axes.imshow(_strip(run, int(client)), aspect="auto", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["left"].set(color=CLUSTERS[int(run.truth[client]) % len(CLUSTERS)], linewidth=5)
    for column, label in enumerate(LABELS):
        centre = left + (column + 0.5) * width / len(LABELS)
        figure.text(centre, 0.83, f"“{label}”", fontsize=7, ha="center", color=INK)


def _strip(run: Finished, client: int) -> NDArray[np.uint8]:
    """A client's images of these labels side by side; pale where it has none."""
    parts = []
    for label in LABELS:
        image = run.image(client, label)
        shown = np.full((8, 8, 3), EMPTY, dtype=np.uint8) if image is None else np.broadcast_to(image, (8, 8, 3))
        parts.append(np.pad(shown, ((0, 0), (1, 1), (0, 0)), constant_values=255))
    return np.hstack(parts)
