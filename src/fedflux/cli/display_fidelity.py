"""What people see of `fedflux fidelity`: a bar while it lasts, then its table beside the paper's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedflux.cli.display import show_line, stderr, stdout
from fedflux.errors import FedfluxError


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr with what is being done, and time left."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[s]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=stderr) as bar:
        task = bar.add_task(title, total=1.0, s="starting")
        try:
            yield lambda words, share: bar.update(task, completed=share, s=words)
        except FedfluxError:
            bar.live.transient = True
            bar.live.stop()
            bar.disable = True
            raise


def show_fidelity(answer: dict[str, Any]) -> None:
    """One line a level and a kind of W2, the paper's below ours; then the proposition's bounds."""
    title = f"{answer['dataset']}, {answer['shift']}: |descriptor distance − W2|, {answer['points']} points a client"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("level", "W2 of"):
        table.add_column(column, no_wrap=True)
    for column in ("pairs", "max", "min", "mean", "std", "mean W2", "error", "corr."):
        table.add_column(column, justify="right", no_wrap=True)
    for row in answer["levels"]:
        kinds = {
            "points": row,
            "· same round": row["same_round"],
            "Gaussians": row["gaussian"],
            "marginal": row["marginal"],
        }
        for place, (name, line) in enumerate((n, k) for n, k in kinds.items() if k is not None):
            figures = [_short(line[key]) for key in ("max", "min", "mean", "std", "w2_mean")]
            share = "–" if line["relative"] is None else f"{line['relative']:.1%}"
            correlation = "–" if line["correlation"] is None else f"{line['correlation']:.3f}"
            level = "" if place else str(row["level"])
            table.add_row(level, name, f"{line['pairs']:,}", *figures, share, correlation)
        if row["paper"] is not None:
            paper = [_short(row["paper"][key]) for key in ("max", "min", "mean", "std")]
            table.add_row("", "[dim]the paper", "–", *paper, "–", "–", "–")
        table.add_section()
    stdout.print(table)
    show_line("error: mean |ξ| over mean W2; corr.: of descriptor distance and W2; marginal: points, without labels")
    if any(row["paper"] for row in answer["levels"]):
        show_line("the paper's figures (tab:eps_R1) are in a unit of latents that it does not state")
    for row in answer["levels"]:
        show_line(_bounds_line(row))
    if "path" in answer:
        show_line(f"saved in {answer['path']}, with a picture")


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _bounds_line(row: dict[str, Any]) -> str:
    words = []
    for key, name in (("full", "Gaussians"), ("diagonal", "diagonal Gaussians"), ("points", "points")):
        found = row["bounds"][key]
        words.append(f"{name} {found['below']:,} below, {found['above']:,} above")
    low, high = row["bounds"]["constants"]
    top = "∞" if high is None else f"{high:.3g}"
    floor = "" if row["floor"] is None else f"; the points' own error {row['floor']:.3g}"
    return (
        f"level {row['level']}: pairs outside c₋Δ ≤ W2 ≤ c₊Δ: {'; '.join(words)} (constants of the whole level "
        f"{low:.3g} and {top}){floor}"
    )
