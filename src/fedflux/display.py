"""What people see in the terminal: a progress bar while a run lasts, tables afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedflux.errors import FedfluxError
from fedflux.experiments.runner import Progress as RoundProgress

stdout = Console()
stderr = Console(stderr=True)


@contextmanager
def rounds_bar(title: str, rounds: int) -> Iterator[Callable[[RoundProgress], None]]:
    """A bar on stderr with round, accuracy, clusters and time left; events are printed above it."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr) as bar:
        task = bar.add_task(title, total=rounds, state="starting")

        def show(progress: RoundProgress) -> None:
            state = f"validation {progress.accuracy:.1f} %  clusters {progress.clusters}"
            bar.update(task, completed=progress.round, state=state)
            for event in progress.events:
                bar.console.print(f"  {event}", highlight=False)

        try:
            yield show
        except FedfluxError:
            bar.live.transient = True  # the bar goes, so that bad input is answered by its one line alone
            bar.live.stop()
            bar.disable = True
            raise


def show_run(result: dict[str, Any]) -> None:
    """The figures of one run, each saying what it is."""
    table = Table(title="Accuracy on the clients' test parts (mean over clients)", title_justify="left")
    for column in ("", "mean", "worst client", "10 % quantile"):
        table.add_column(column, justify="left" if not column else "right")
    for name, words in (("known", "known association"), ("test", "test phase (unlabelled)")):
        table.add_row(words, *(_percent(result[key]) for key in (name, f"{name}_worst", f"{name}_quantile10")))
    stdout.print(table)
    stdout.print(_cluster_line(result), highlight=False)
    _show_why(result["why"])
    seconds = ", ".join(f"{p} {result[f'seconds_{p}']:.2f}" for p in ("training", "descriptor", "clustering"))
    stdout.print(
        f"{result['seconds']:.1f} s ({seconds}) on {result['device']}, engine {result['engine']}; "
        f"{_bytes(result['bytes_up'])} up, {_bytes(result['bytes_down'])} down",
        highlight=False,
    )
    show_line(f"saved in {result['run_dir']}")


def show_line(text: str) -> None:
    """Plain text on one line: brackets in a path are no markup, and a long path is not broken."""
    stdout.print(text, markup=False, highlight=False, soft_wrap=True)


def show_clusters(result: dict[str, Any]) -> None:
    """Who sits in which cluster."""
    table = Table(title=f"{result['clusterer']}: {_cluster_line(result)}", title_justify="left")
    table.add_column("cluster", justify="right")
    table.add_column("clients")
    for label in sorted(set(result["labels"])):
        members = [str(c) for c, m in zip(result["clients"], result["labels"], strict=True) if m == label]
        table.add_row(str(label), ", ".join(members))
    stdout.print(table)
    _show_why(result["why"])


def _show_why(pairs: list[dict[str, Any]] | None, most: int = 6) -> None:
    for pair in (pairs or [])[:most]:
        stdout.print(f"  {pair['words']}", highlight=False, markup=False)
    if pairs and len(pairs) > most:
        stdout.print(f"  and {len(pairs) - most} more pairs (--json lists them)", highlight=False)


def show_checks(checks: list[dict[str, Any]]) -> None:
    """One line a check."""
    table = Table(title="fedflux doctor", title_justify="left")
    for column in ("", "check", "detail"):
        table.add_column(column)
    for check in checks:
        mark = "[green]ok" if check["ok"] else "[red]missing" if check["needed"] else "[yellow]absent"
        table.add_row(mark, check["check"], escape(check["detail"]))
    stdout.print(table)


def _cluster_line(result: dict[str, Any]) -> str:
    if result["clusters_found"] is None:
        return "no clusters"
    line = f"{result['clusters_found']} clusters found"
    if result["clusters_true"] is not None:
        line += f", {result['clusters_true']} true; pairs right {result['pairs_right']:.3f}, ARI {result['ari']:.3f}"
    return line


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
