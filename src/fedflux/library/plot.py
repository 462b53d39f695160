"""The picture of a result: how validation went, and what every client came to."""

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from fedflux.library.result import Result

NAMED = 40
"""Clients up to which each is named on the axis."""


LETTERS = 18
"""Of a client's name on the axis."""


class Picture(Figure):
    """A figure that a notebook shows even where nobody has turned matplotlib on there."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def _plain(name: str) -> str:
    """A name with room for it, in which nothing is mathematics."""
    cut = name if len(name) <= LETTERS else f"{name[: LETTERS - 1].rstrip()}…"
    return cut.replace("$", r"\$")


def plot_result(result: "Result") -> Figure:
    """Two panels; nothing of a caller's matplotlib is changed."""
    figure = Picture(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    rounds, clients = result.rounds, result.clients
    if len(rounds):
        left.plot(rounds.index, rounds["validation"], marker="o", markersize=3, color="#1f6feb")
    found = result.get("cluster_round")
    if found is not None:
        left.axvline(found, linestyle=":", color="#888888")
        near = {"xycoords": ("data", "axes fraction"), "xytext": (-3, 0), "textcoords": "offset points", "ha": "right"}
        left.annotate("clusters", (found, 0.6), **near, rotation=90, color="#555555")
    left.set(xlabel="round", ylabel=f"validation {result.get('score') or 'accuracy'}, %", title="Rounds")
    if "cluster" in clients:
        clients = clients.sort_values("cluster", kind="stable")
    places = np.arange(len(clients))
    for offset, (column, colour) in enumerate((("known", "#1f6feb"), ("test", "#e8833a"))):
        if column in clients:
            right.bar(places + 0.4 * offset, clients[column], width=0.4, label=column, color=colour)
    if "cluster" in clients:
        for edge in np.flatnonzero(np.diff(clients["cluster"].to_numpy())):
            right.axvline(edge + 0.7, color="#888888", linewidth=0.8)
    if len(clients) <= NAMED:
        names = [_plain(str(name)) for name in clients.index]
        right.set_xticks(places + 0.2, names, rotation=90, fontsize=7)
    right.set(ylabel="%")
    right.set_title("Clients, cluster by cluster", loc="left")
    if right.get_legend_handles_labels()[0]:
        right.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)
    return figure
