"""The pairs as a picture: the descriptor's distance against W2 above, the proposition's bounds below."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedflux.files import written_whole
from fedflux.studies.fidelity.compared import Pairs

ACROSS, WITHIN, LINE = "#bbbbbb", "#0072b2", "#d55e00"


def save_plot(found: Mapping[int, Pairs], rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """One column a level; points of pairs within a round lie above those across rounds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.6 + 3.4 * len(found), 6.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(found), squeeze=False)
    for column, ((level, pairs), row) in enumerate(zip(found.items(), rows, strict=True)):
        _against_points(axes[0][column], level, pairs, row)
        _bounds(axes[1][column], pairs, row["bounds"]["constants"])
        for one in axes[:, column]:
            one.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("W2 of points")
    axes[1][0].set_ylabel("W2 of Gaussians")
    axes[0][0].legend(loc="upper left", frameon=False, fontsize=8, markerscale=4)
    axes[1][0].legend(loc="upper left", frameon=False, fontsize=8, markerscale=4)
    figure.suptitle(f"{title}: pairs of client-rounds", fontsize=11, x=0.01, ha="left")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    with written_whole(path) as handle:
        handle.write(buffer.getvalue())


def _dots(axes: Any, x: Any, y: Any, within: Any) -> None:
    axes.plot(x[~within], y[~within], ".", color=ACROSS, ms=1.5, mew=0, rasterized=True, label="across rounds")
    axes.plot(x[within], y[within], ".", color=WITHIN, ms=2, mew=0, rasterized=True, label="within a round")


def _against_points(axes: Any, level: int, pairs: Pairs, row: Mapping[str, Any]) -> None:
    _dots(axes, pairs.descriptor_points, pairs.points, pairs.same_round)
    top = float(max(pairs.descriptor_points.max(), pairs.points.max()))
    axes.plot([0, top], [0, top], color=LINE, lw=1, label="equal")
    if row["floor"] is not None:
        axes.axhline(row["floor"], color="black", lw=0.8, ls=":", label="same client, other points")
    correlation = "" if row["correlation"] is None else f", correlation {row['correlation']:.3f}"
    axes.set_title(f"level {level}: mean |ξ| {row['mean']:.3g}{correlation}", fontsize=9, loc="left")
    axes.set_xlabel("descriptor distance")


def _bounds(axes: Any, pairs: Pairs, constants: Sequence[float | None]) -> None:
    shown = (pairs.delta > 0) & (pairs.gaussian > 0)
    _dots(axes, pairs.delta[shown], pairs.gaussian[shown], pairs.same_round[shown])
    if shown.any():
        ends = np.array([pairs.delta[shown].min(), pairs.delta[shown].max()])
        for factor, name in zip(constants, ("c₋Δ", "c₊Δ"), strict=True):
            if factor is not None:
                axes.plot(ends, factor * ends, color=LINE, lw=1, ls="-" if name == "c₊Δ" else "--", label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("Δ: means and covariances")
