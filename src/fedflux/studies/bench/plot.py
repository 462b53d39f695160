"""The rows of a benchmark as a picture."""

from io import BytesIO
from pathlib import Path
from typing import Any

from fedflux.files import written_whole


def save_plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Throughput by runner, one panel a number of clients: bars are medians, dots the repeats."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(row["clients"] for row in rows))
    most = max(sum(row["clients"] == size for row in rows) for size in sizes)
    figure = Figure(figsize=(6.0, len(sizes) * (0.9 + 0.35 * most)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, size in enumerate(sizes):
        axes = figure.add_subplot(len(sizes), 1, place + 1)
        shown = [row for row in rows if row["clients"] == size]
        for height, row in enumerate(shown):
            ours = row["runner"] not in ("naive", "flower-ray", "pfl")
            axes.barh(height, row["samples_per_second"], color="#0072b2" if ours else "#999999", height=0.7)
            speeds = [row["samples"] / seconds for seconds in row["seconds_of_repeats"]]
            axes.plot(speeds, [height] * len(speeds), "o", color="#e69f00", ms=3.5, mew=0)
        axes.set_yticks(range(len(shown)), [_label(row) for row in shown])
        axes.invert_yaxis()
        axes.set_title(f"{size} clients", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("samples per second: median, and every repeat")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    with written_whole(path) as handle:
        handle.write(buffer.getvalue())


def _label(row: dict[str, Any]) -> str:
    ratio = row["ratio_to_loop"]
    return row["runner"] if ratio is None else f"{row['runner']} ({ratio:.2f}×)"
