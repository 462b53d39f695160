"""Figures as PNG and SVG, tables as LaTeX: the overview and every run, as files for a paper."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedflux.errors import FedfluxError
from fedflux.files import written_whole
from fedflux.studies.report.colours import FEW, palette
from fedflux.studies.report.latex import block_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^PXv*ph<>dH8"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedflux",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e9ec",
    "legend.frameon": False,
}
SHIFT_WORDS = {"px": "P(X)", "py": "P(Y)", "pygx": "P(Y|X)", "pxgy": "P(X|Y)"}


def make_export_folder(folder: Path) -> None:
    """The folder that exports go to."""
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedfluxError(f"cannot write exports to {folder}: {error.strerror}") from error


def export_all(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every figure and table of the page into `folder`; what was written."""
    make_export_folder(folder)
    try:
        written = []
        for block in data["overview"]["blocks"]:
            name = block["id"]
            scores = {run["score"] for run in data["runs"] if _is_of(run["row"], block)}
            for title, text in block_tables(block, " or ".join(sorted(scores))).items():
                written.append(_write(folder / f"{name}-{title}.tex", text.encode()))
            for score, words in (("known", "known association"), ("test", "test phase")):
                if any(line[f"{score}_mean"] is not None for line in block["by_shift"]):
                    figure = _comparison(data, block, score, words)
                    written += _figure(folder / f"{name}-{score}", figure, width=6.5)
        for run in data["runs"]:
            if run["curves"]:
                written += _figure(folder / "runs" / f"{run['id']}-accuracy", _accuracy(run))
            if run["map"]:
                written += _figure(folder / "runs" / f"{run['id']}-map", _map(run))
    except OSError as error:
        raise FedfluxError(f"cannot write exports to {folder}: {error.strerror}") from error
    return written


def _is_of(row: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    return (row["dataset"], row["group"]) == (block["dataset"], block["group"])


def _write(path: Path, content: bytes) -> Path:
    with written_whole(path) as handle:
        handle.write(content)
    return path


def _figure(stem: Path, draw: Callable[["Axes"], None], width: float = 4.5) -> list[Path]:
    """One chart in both formats, without a date in it, so that equal runs give equal files."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    written = []
    with rc_context(STYLE):
        figure = Figure(figsize=(width, 3.0), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.add_subplot())
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
            written.append(_write(stem.with_name(f"{stem.name}.{kind}"), buffer.getvalue()))
    return written


def _comparison(data: Mapping[str, Any], block: Mapping[str, Any], score: str, words: str) -> Callable[["Axes"], None]:
    """A dot a run, by shift and algorithm, with the mean of each."""
    runs = [run["row"] for run in data["runs"]]
    rows = [row for row in runs if _is_of(row, block)]
    names = [name for name in data["overview"]["algorithms"] if any(row["algorithm"] == name for row in rows)]

    def draw(axes: "Axes") -> None:
        width, colours = min(0.8 / len(names), 0.25), palette(len(names))
        for place, name in enumerate(names):
            for at, shift in enumerate(block["shifts"]):
                wanted = (name, shift)
                values = [r[score] for r in rows if (r["algorithm"], r["shift"]) == wanted and r[score] is not None]
                if not values:
                    continue
                centre = at + (place + 0.5 - len(names) / 2) * width
                axes.plot([centre] * len(values), values, "o", color=colours[place], alpha=0.6, ms=4, mew=0)
                mean = sum(values) / len(values)
                axes.plot([centre - 0.35 * width, centre + 0.35 * width], [mean, mean], color=colours[place], lw=2)
            axes.plot([], [], "o", color=colours[place], label=_plain(name))
        axes.set_xticks(range(len(block["shifts"])), [_shift(shift) for shift in block["shifts"]])
        axes.set_xlim(-0.6, len(block["shifts"]) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(f"{words}, %")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)

    return draw


def _accuracy(run: Mapping[str, Any]) -> Callable[["Axes"], None]:
    """Validation accuracy by round: clients thin or as bands, cluster means thick."""
    curves = run["curves"]
    colours = _cluster_colours(run)
    words = "true cluster" if run["grouped_by"] == "truth" else "cluster"

    def draw(axes: "Axes") -> None:
        rounds = curves["rounds"]
        if curves["bands"]:
            for low, high in (("0.1", "0.9"), ("0.25", "0.75")):
                low_line, high_line = (_numbers(curves["bands"][q]) for q in (low, high))
                axes.fill_between(rounds, low_line, high_line, color="#8a8f98", alpha=0.18, lw=0)
        for client, scores in enumerate(curves["clients"] or []):
            axes.plot(rounds, _numbers(scores), color=colours[run["clients"]["group"][client]], lw=0.6, alpha=0.5)
        for cluster, scores in curves["clusters"].items():
            axes.plot(rounds, _numbers(scores), color=colours[int(cluster)], lw=2, label=f"{words} {cluster}")
        if run["clustering"]["cluster_round"] is not None:
            axes.axvline(run["clustering"]["cluster_round"], color="#59636e", lw=0.8, ls=":")
        axes.set_xlabel("round")
        axes.set_ylabel(f"validation {run['score']}, %")
        if len(curves["clusters"]) <= len(FEW):
            axes.legend(fontsize=7)

    return draw


def _map(run: Mapping[str, Any]) -> Callable[["Axes"], None]:
    """Descriptors in two dimensions: colour is the found cluster, shape the true one."""
    points = run["map"]
    colours = _cluster_colours(run)
    kinds = sorted(set(points["truth"] or [0]))

    def draw(axes: "Axes") -> None:
        truth = points["truth"] or [0] * len(points["x"])
        for x, y, found, kind in zip(points["x"], points["y"], points["found"], truth, strict=True):
            marker = MARKERS[kinds.index(kind) % len(MARKERS)]
            axes.plot(x, y, marker=marker, ls="", color=colours[found], ms=6, mec="white", mew=0.5)
        first, second = (100 * share for share in points["explained"])
        axes.set_xlabel(f"first component ({first:.0f} % of the variance)")
        axes.set_ylabel(f"second component ({second:.0f} %)")

    return draw


def _cluster_colours(run: Mapping[str, Any]) -> Mapping[int, str]:
    """As in the page: by the order of the clusters; grey for those not listed and for clients without one."""
    labels = [row["cluster"] for row in run["clusters"]["rows"] if row["cluster"] >= 0]
    return defaultdict(lambda: "#8a8f98", zip(labels, palette(len(labels)), strict=True))


def _numbers(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _shift(name: str) -> str:
    return " + ".join(SHIFT_WORDS.get(part, part) for part in name.split("+"))


def _plain(text: str) -> str:
    """Text that matplotlib must not read as mathematics."""
    return text.replace("$", r"\$")
