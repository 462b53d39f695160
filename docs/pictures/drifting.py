"""Drift: the digits of two clients, round by round, under three kinds of it."""

from pathlib import Path

import numpy as np
from docs.pictures.look import CLUSTERS, INK, PALE, page, place
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedflux.data import Federation
from fedflux.runs.config import make_config
from fedflux.runs.runner import build_federation

SPECS, ROUNDS, CLIENTS, IMAGES = ("after:4,7", "gradual:4-7", "recurring:3"), range(1, 11), (0, 3), 4


def drifting(_: Path) -> Figure:
    """What a client holds in each round; nothing is trained."""
    figure = page(9.6, 3.6)
    high = 0.86 / len(SPECS)
    for row, spec in enumerate(SPECS):
        wanted = make_config({"dataset": "digits", "shift": "px", "level": 6, "drift": spec, "algorithm": "fedavg"})
        federation, _decided = build_federation(wanted)
        top = 0.93 - row * high
        figure.text(0.01, top - 0.45 * high, spec, fontsize=9, family="monospace", color=INK, va="center")
        for line, client in enumerate(CLIENTS):
            y = top - (line + 1) * 0.42 * high
            for column, number in enumerate(ROUNDS):
                axes = place(figure, 0.155 + 0.083 * column, y, 0.076, 0.37 * high)
                axes.imshow(_strip(federation.at(number), client), aspect="auto", interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                for side in ("top", "right", "bottom"):
                    axes.spines[side].set_visible(False)
                axes.spines["left"].set(color=CLUSTERS[line], linewidth=3)
    for column, number in enumerate(ROUNDS):
        figure.text(0.193 + 0.083 * column, 0.955, f"round {number}", fontsize=8, ha="center", color=PALE)
    return figure


def _strip(stage: Federation, client: int) -> NDArray[np.uint8]:
    """Some of the client's training images side by side, evenly from first to last."""
    images = np.asarray(stage.inputs(client, "train"), dtype=np.uint8)
    chosen = images[np.linspace(0, len(images) - 1, IMAGES).astype(int)].transpose(0, 2, 3, 1)
    shown = np.broadcast_to(chosen, (*chosen.shape[:3], 3))
    return np.hstack([np.pad(image, ((0, 0), (0, 1), (0, 0)), constant_values=255) for image in shown])
