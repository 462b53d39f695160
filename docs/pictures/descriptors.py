"""What clients send: descriptors as they are, and how they lie to each other."""

from pathlib import Path

import numpy as np
from docs.pictures.look import CLUSTERS, PALE, page, place
from docs.pictures.runs import Finished, finished
from matplotlib.figure import Figure
from numpy.typing import NDArray

LEVEL = 4


def descriptor(runs: Path) -> Figure:
    """Class means of ten clients under P(X): the numbers themselves, and their two main directions."""
    run = finished(runs, shift="px", algorithm="flux", level=LEVEL)[0]
    order = np.argsort(run.assignment, kind="stable")
    means = class_means(run)[order]
    figure = page(9.6, 3.3)
    axes = place(figure, 0.075, 0.2, 0.5, 0.64)
    limit = float(np.quantile(np.abs(means), 0.98))
    axes.imshow(means, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_yticks(range(len(order)), [f"client {k}" for k in order], fontsize=8)
    for label, client in zip(axes.get_yticklabels(), order, strict=True):
        label.set_color(CLUSTERS[int(run.assignment[client])])
    axes.set_xticks(np.arange(5, 105, 10), [f"“{k}”" for k in range(10)], fontsize=8)
    axes.set_xlabel("mean latent of each class, ten numbers a class", fontsize=9)
    axes.set_title("a part of what is sent: means over images", fontsize=10, loc="left")
    _map(figure, run)
    return figure


def class_means(run: Finished) -> NDArray[np.float64]:
    """(clients, classes × components), less the mean over clients."""
    with np.load(run.folder / "descriptors.npz") as sent:
        means = np.asarray(sent["mean"], dtype=np.float64)
    flat = means.reshape(len(means), -1)
    return np.asarray(flat - flat.mean(axis=0))


def _map(figure: Figure, run: Finished) -> None:
    means = class_means(run)
    left, size, _ = np.linalg.svd(means, full_matrices=False)
    points = left[:, :2] * size[:2]
    axes = place(figure, 0.67, 0.2, 0.31, 0.64)
    for client, (x, y) in enumerate(points):
        axes.scatter(x, y, s=46, color=CLUSTERS[int(run.assignment[client])], zorder=3)
        axes.annotate(str(client), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, color=PALE)
    axes.set_title(f"{len(set(run.assignment.tolist()))} clusters found, a colour each", fontsize=10, loc="left")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel("first direction in which clients differ", fontsize=9)
    axes.set_ylabel("second", fontsize=9)
    axes.margins(0.15)
