"""The picture of a result: how validation went, and what every client came to."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from fedflux.library.result import Result

NAMED = 40
"""Clients up to which each is named on the axis."""


def plot_result(result: "Result") -> Figure:
    """Two panels; nothing of a caller's matplotlib is changed."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    rounds, clients = result.rounds, result.clients
    if len(rounds):
        left.plot(rounds.index, rounds["validation"], marker="o", markersize=3, color="#1f6feb")
    found = result.get("cluster_round")
    if found is not None:
        left.axvline(found, linestyle=":", color="#888888")
        left.annotate("clusters", (found, 0.02), xycoords=("data", "axes fraction"), rotation=90, color="#555555")
    left.set(xlabel="round", ylabel="validation accuracy, %", title="Rounds")
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
        right.set_xticks(places + 0.2, clients.index, rotation=90, fontsize=7)
    right.set(ylabel="%", title="Clients, cluster by cluster")
    if right.get_legend_handles_labels()[0]:
        right.legend(loc="lower right", fontsize=8)
    return figure
