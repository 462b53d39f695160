"""What all pictures have in common: colours, letters, and files that are the same each time they are drawn."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

INK, PALE, GRID = "#22303c", "#6b7a88", "#dfe5ea"
FEDAVG, FLUX, WARM = "#8a97a3", "#0f7b6c", "#c4572b"
CLUSTERS = (
    "#0f7b6c",
    "#c4572b",
    "#3f5fb0",
    "#b08a1e",
    "#8a3f8f",
    "#4b8f29",
    "#a33b5a",
    "#4a9bb5",
    "#7a6248",
    "#5c5c8a",
)
"""A colour for each cluster, in order."""

STYLE = Path(__file__).with_name("documents.mplstyle")
MOST_BYTES = 150_000
"""A picture that is larger does not belong into a repository."""


def page(width: float, height: float) -> Figure:
    """An empty figure in the documents' look; sizes in inches."""
    with mpl.rc_context(fname=STYLE):
        return Figure(figsize=(width, height))


def save(figure: Figure, path: Path) -> Path:
    """Write an SVG that holds no date, so that drawing it again changes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(fname=STYLE):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    if path.stat().st_size > MOST_BYTES:
        raise RuntimeError(f"{path} has {path.stat().st_size} bytes: draw less")
    return path


def place(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Axes at a place in shares of the figure."""
    with mpl.rc_context(fname=STYLE):
        return figure.add_axes((x, y, width, height))


def thumbnail(axes: Axes, image: NDArray[Any] | None, frame: str = GRID) -> None:
    """One small image of a client, or an empty frame where it has none."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=frame, linewidth=0.8)
    if image is None:
        axes.set_facecolor("#f5f7f9")
        return
    shown = np.asarray(image, dtype=np.uint8)
    axes.imshow(np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown, interpolation="nearest")
