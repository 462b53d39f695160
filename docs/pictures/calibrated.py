"""The calibrated test: how surprising the difference of two clients would be if they held one distribution."""

from itertools import combinations
from pathlib import Path

import numpy as np
from docs.pictures.look import CLUSTERS, FLUX, GRID, WARM, page, place
from docs.pictures.runs import Finished, finished
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedflux.clustering.evidence.comparison import RULES, Pool, compare
from fedflux.clustering.variation import UNKNOWN
from fedflux.descriptors.wire import from_arrays

DEEPEST = 60.0
"""Powers of ten below which all p-values look alike."""
ALPHA = 0.01


def calibrated_test(runs: Path) -> Figure:
    """Every pair of clients of the P(X) runs: one distribution, or two?"""
    found = finished(runs, shift="px", algorithm="flux")
    figure = page(9.6, 3.4)
    _matrix(place(figure, 0.06, 0.14, 0.32, 0.7), found[0])
    _histogram(place(figure, 0.49, 0.17, 0.49, 0.67), found)
    return figure


def pair_evidence(run: Finished) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[tuple[int, int]]]:
    """−log₁₀ p of "one distribution" for each pair of clients, and whether it is one in truth."""
    with np.load(run.folder / "descriptors.npz") as sent:
        descriptors = from_arrays({name: sent[name] for name in sent.files})
    pairs = list(combinations(range(len(descriptors)), 2))
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    total = compare(Pool.of(descriptors), first, second, UNKNOWN, RULES).total
    return -total / np.log(10), run.truth[first] == run.truth[second], pairs


def _matrix(axes: Axes, run: Finished) -> None:
    evidence, _, pairs = pair_evidence(run)
    order = np.argsort(run.truth, kind="stable")
    place_of = {int(client): row for row, client in enumerate(order)}
    shown = np.zeros((len(order), len(order)))
    for (i, j), value in zip(pairs, evidence, strict=True):
        shown[place_of[i], place_of[j]] = shown[place_of[j], place_of[i]] = min(value, DEEPEST)
    axes.imshow(shown, cmap="YlOrBr", vmin=0, vmax=DEEPEST, interpolation="nearest")
    axes.set_xticks(range(len(order)), order, fontsize=8)
    axes.set_yticks(range(len(order)), order, fontsize=8)
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        for label, client in zip(ticks, order, strict=True):
            label.set_color(CLUSTERS[int(run.truth[client])])
    axes.set_title("every pair of ten clients: pale is “alike”", fontsize=10, loc="left")


def _histogram(axes: Axes, found: list[Finished]) -> None:
    values, alike = zip(*((evidence, same) for evidence, same, _ in map(pair_evidence, found)), strict=True)
    evidence, same = np.minimum(np.concatenate(values), DEEPEST), np.concatenate(alike)
    bins = np.linspace(0, DEEPEST, 31).tolist()
    for chosen, colour, words in ((same, FLUX, "one distribution"), (~same, WARM, "two distributions")):
        axes.hist(evidence[chosen], bins, color=colour, alpha=0.75, label=f"{words}: {chosen.sum()} pairs")
    axes.axvline(-np.log10(ALPHA), color="#22303c", linewidth=1, linestyle="--")
    axes.annotate("p = 1 %", (-np.log10(ALPHA), 0.95), xytext=(4, 0), xycoords=("data", "axes fraction"),
                  textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set_xticks([0, 20, 40, DEEPEST], ["1", "10⁻²⁰", "10⁻⁴⁰", "10⁻⁶⁰ or less"])
    axes.set_xlabel("p-value of “these two hold one distribution”", fontsize=9)
    axes.set_ylabel("pairs of clients", fontsize=9)
    axes.set_title("the same test in three runs, against the truth", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="upper center")
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
