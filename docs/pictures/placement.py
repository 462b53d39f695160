"""Placement: how many unlabelled records tell a newcomer's cluster, and when it is like nobody."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from docs.pictures.look import CLUSTERS, GRID, WARM, page, place
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import fedflux

TURNS, MEMBERS, DRAWS = 4, 3, 30
SIZES = (1, 2, 3, 5, 8, 12, 20, 30)


def placement(_: Path) -> Figure:
    """Twelve clients turn digits by 0°, 90°, 180° or 270°; newcomers turn them too, or hold negatives."""
    run, newcomers, strangers = trained()
    figure = page(9.6, 3.2)
    axes = place(figure, 0.07, 0.19, 0.4, 0.65)
    for turn, images in enumerate(newcomers):
        sure = [np.mean([_sure(run, images, turn, size, draw) for draw in range(DRAWS)]) for size in SIZES]
        axes.plot(SIZES, sure, marker="o", markersize=4, color=CLUSTERS[turn], label=f"turned by {90 * turn}°")
    axes.set(xscale="log", ylim=(0, 1.03))
    axes.set_xticks(SIZES, list(map(str, SIZES)))
    axes.minorticks_off()
    axes.set_yticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.set_xlabel("images that the newcomer has, none of them labelled", fontsize=9)
    axes.set_title("probability of the right cluster", fontsize=10, loc="left")
    axes.grid(color=GRID)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _novelty(place(figure, 0.57, 0.19, 0.41, 0.65), run, newcomers, strangers)
    return figure


@cache
def trained() -> tuple[fedflux.TrainedRun, list[NDArray[Any]], NDArray[Any]]:
    """A federation of four kinds of clients, and images of nobody in it: of each kind, and negatives."""
    x, y = shuffle(*load_digits(return_X_y=True), random_state=0)
    x, kept = x.reshape(-1, 8, 8), 1200
    kinds = [np.rot90(x, turn, axes=(1, 2)).reshape(len(x), -1) for turn in range(TURNS)]
    clients = {}
    for turn, images in enumerate(kinds):
        for k in range(MEMBERS):
            rows = slice(turn * MEMBERS + k, kept, TURNS * MEMBERS)  # an image for one client each
            clients[f"{90 * turn}° {k}"] = images[rows], y[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = fedflux.Federation.from_clients(clients)
        run = fedflux.run(federation, rounds=15, lr=0.1, batch_size=16, progress=False).load()
    return run, [kind[kept:] for kind in kinds], 16 - kinds[0][kept:]


def _drawn(images: NDArray[Any], size: int, draw: int) -> NDArray[Any]:
    return np.asarray(images[np.random.default_rng([size, draw]).choice(len(images), size, replace=False)])


def _sure(run: fedflux.TrainedRun, images: NDArray[Any], turn: int, size: int, draw: int) -> float:
    """The probability of the cluster that the members who turn as much are in."""
    home = run.clusters[f"{90 * turn}° 0"]
    return float(run.assign(_drawn(images, size, draw)).posterior[0, home])


def _novelty(axes: Axes, run: fedflux.TrainedRun, newcomers: list[NDArray[Any]], strangers: NDArray[Any]) -> None:
    size = SIZES[-1]
    rng = np.random.default_rng(0)
    rows = [*newcomers, strangers]
    names = [*(f"{90 * turn}°" for turn in range(TURNS)), "negatives"]
    for row, images in enumerate(rows):
        scores = [max(float(run.assign(_drawn(images, size, draw)).score[0]), 1e-6) for draw in range(DRAWS)]
        colour = CLUSTERS[row] if row < TURNS else WARM
        axes.scatter(scores, row + rng.uniform(-0.25, 0.25, len(scores)), s=9, color=colour, alpha=0.6, linewidths=0)
    axes.set(xscale="log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"p-value of “like some cluster” (10⁻⁶ or less), {size} images each", fontsize=9)
    axes.set_title("newcomers of four kinds, and of none", fontsize=10, loc="left")
    axes.grid(axis="x", color=GRID)
