"""How records count: less where they belong together, and once where they have several labels."""

from pathlib import Path

import numpy as np
from docs.pictures.look import CLUSTERS, GRID, INK, PALE, page, place
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedflux.data.tasks.kinds import kinds, rarest_first
from fedflux.descriptors.descriptor import effective_counts

RECORDS, ALIKE = 120, (0.0, 0.1, 0.3, 1.0)
SIZES = (1, 2, 3, 4, 6, 8, 12, 20, 30)


def groups(_: Path) -> Figure:
    """What 120 records are worth in groups of so many, by how much alike those of a group are."""
    figure = page(9.6, 2.9)
    axes = place(figure, 0.07, 0.2, 0.6, 0.66)
    rows = np.arange(RECORDS)
    for alike, colour in zip(ALIKE, CLUSTERS, strict=False):
        worth = [float(effective_counts(rows, None, None, rows // size, overall=alike)[0]) for size in SIZES]
        axes.plot(SIZES, worth, marker="o", markersize=4, color=colour, label=f"ρ = {alike:g}")
    axes.set(xscale="log", ylim=(0, RECORDS + 6))
    axes.set_xticks(SIZES, list(map(str, SIZES)))
    axes.minorticks_off()
    axes.set_xlabel("records of one patient, recording or device", fontsize=9)
    axes.set_title(f"what {RECORDS} records are worth, in independent ones", fontsize=10, loc="left")
    axes.grid(color=GRID)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.03, 1.0))
    words = "ρ: how much alike\nrecords of a group are,\nestimated by each client\nfrom its own latents"
    figure.text(0.7, 0.22, words, fontsize=9, color=PALE)
    return figure


def several_labels(_: Path) -> Figure:
    """Thirty made-up records with five labels of different frequency, and the one kind that each counts as."""
    held = np.random.default_rng(1).random((30, 5)) < np.array([0.08, 0.15, 0.25, 0.4, 0.6])
    labels = held.astype(np.int64)
    counted = kinds(labels, rarest_first(labels.sum(axis=0)))
    figure = page(9.6, 2.3)
    _records(place(figure, 0.11, 0.13, 0.68, 0.72), labels, counted)
    axes = place(figure, 0.83, 0.13, 0.155, 0.72)
    numbers = np.bincount(counted, minlength=labels.shape[1] + 1)
    axes.barh(range(len(numbers)), numbers, color=[*CLUSTERS[: labels.shape[1]], PALE], height=0.7)
    axes.invert_yaxis()
    axes.set(yticks=[], ylim=(len(numbers) - 0.5, -0.5))
    axes.set_title("records of each kind", fontsize=9, loc="left")
    return figure


def _records(axes: Axes, labels: NDArray[np.int64], counted: NDArray[np.int64]) -> None:
    count = labels.shape[1]
    for row in range(len(labels)):
        for label in np.flatnonzero(labels[row]):
            mine = label == counted[row]
            face = CLUSTERS[label] if mine else "white"
            axes.scatter(row, label, s=52, facecolor=face, edgecolor=CLUSTERS[label] if mine else PALE, linewidths=1)
        if counted[row] == count:
            axes.scatter(row, count, s=52, facecolor=PALE, edgecolor=PALE)
    names = [f"label {k + 1}: {n} of {len(labels)}" for k, n in enumerate(labels.sum(axis=0))]
    axes.set_yticks(range(count + 1), [*names, "no label"], fontsize=8)
    axes.set(xticks=[], xlim=(-0.7, len(labels) - 0.3), ylim=(count + 0.5, -0.5))
    axes.set_title("each record's labels (○), and the one it counts as (●)", fontsize=10, loc="left", color=INK)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
