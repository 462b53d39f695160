"""What people see in the terminal: a progress bar while a run lasts, tables afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from statistics import mean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedflux.errors import FedfluxError
from fedflux.runs.session import Progress as RoundProgress
from fedflux.studies.compare import Status

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
            accuracy = "–" if isnan(progress.accuracy) else f"{progress.accuracy:.1f} %"
            state = f"validation {accuracy}  clusters {progress.clusters}"
            bar.update(task, completed=progress.round, state=progress.after or state)
            for event in progress.events:
                bar.console.print(f"  {event}", highlight=False, markup=False)

        try:
            yield show
        except FedfluxError:
            bar.live.transient = True  # the bar goes, so that bad input is answered by its one line alone
            bar.live.stop()
            bar.disable = True
            raise


@contextmanager
def comparison_table() -> Iterator[Callable[[Status], None]]:
    """A table on stderr that fills in: known association by algorithm and shift, and what is running."""
    with Live(console=stderr, refresh_per_second=4) as live:
        told = 0

        def show(status: Status) -> None:
            nonlocal told
            for note in status.notes[told:]:
                live.console.print(f"  {note}", highlight=False, markup=False)
            told = len(status.notes)
            live.update(_filling(status))

        yield show


def _filling(status: Status) -> Group:
    done, planned = len(status.results), len(status.cells)
    table = Table(title=f"known association, mean over finished cells ({done} of {planned})", title_justify="left")
    shifts = list(dict.fromkeys(cell.config.shift for cell in status.cells))
    table.add_column("algorithm")
    for shift in shifts:
        table.add_column(shift, justify="right")
    for algorithm in dict.fromkeys(cell.config.algorithm for cell in status.cells):
        texts = []
        for shift in shifts:
            place = [
                index
                for index, cell in enumerate(status.cells)
                if (cell.config.algorithm, cell.config.shift) == (algorithm, shift)
            ]
            finished = [status.results[index]["known"] for index in place if index in status.results]
            known = [score for score in finished if score is not None]
            texts.append(f"{mean(known):.1f} [dim]{len(known)}/{len(place)}" if known else f"[dim]0/{len(place)}")
        table.add_row(algorithm, *texts)
    running = [Text(f"  {status.cells[index].name}: {state}") for index, state in sorted(status.running.items())]
    return Group(table, *running)


def show_comparison(answer: dict[str, Any]) -> None:
    """Per shift and over all: mean ± deviation over seeds, worst client, clusters, the paper's figures beside ours."""
    notes: dict[str, str] = {}
    printed = bool(answer["paper"])
    order = list(dict.fromkeys(line["shift"] for line in answer["shifts"]))
    by_shift = sorted(answer["shifts"], key=lambda line: order.index(line["shift"]))
    shifted = order != ["none"]
    tables = (
        [(by_shift, "by shift"), (answer["overall"], "over all shifts")] if shifted else [(by_shift, "not shifted")]
    )
    for lines, title in tables:
        table = Table(title=f"{answer['group']}: {title}, mean ± deviation over seeds", title_justify="left")
        for column in ("shift", "algorithm") if shifted else ("algorithm",):
            table.add_column(column)
        truth = any(line["pairs_right_mean"] is not None for line in lines)
        held_out = any(line["unseen_mean"] is not None for line in lines)
        unseen = ("unseen %", "worst client") if held_out else ()
        right = ("pairs right",) if truth else ()
        for column in ("known %", "worst client", "test phase %", "worst client", *unseen, *right):
            table.add_column(column, justify="right")
        if printed:
            table.add_column("paper known / test", justify="right")
        before = None
        for line in lines:
            shift = line.get("shift")
            if before not in (None, shift):
                table.add_section()
            before = shift
            table.add_row(
                *([shift or "all"] if shifted else []),
                line["algorithm"],
                _spread(line, "known"),
                percent(line["known_worst_mean"]),
                _spread(line, "test"),
                percent(line["test_worst_mean"]),
                *((_spread(line, "unseen"), percent(line["unseen_worst_mean"])) if held_out else ()),
                *([_share(line["pairs_right_mean"])] if truth else []),
                *([_beside(answer["paper"], line, notes)] if printed else []),
            )
        stdout.print(table)
        for scope in dict.fromkeys(line["scope"] for line in lines):
            stdout.print(f"  ours: {scope}", highlight=False)
    for line in answer["no_test_phase"] if not shifted else ():
        show_line(f"  no test phase of {line['algorithm']}: {line['words']}")
    for scope, letter in notes.items():
        stdout.print(f"  paper {letter}: {scope}", highlight=False)
    _show_differences(answer)
    stdout.print(
        f"{answer['planned']} cells: {answer['finished_before']} finished before, {answer['ran']} run now, "
        f"{len(answer['failed'])} failed",
        highlight=False,
    )
    for failure in answer["failed"]:
        show_line(f"  {failure['cell']}: {failure['why']}")
    show_line(f"kept in {answer['store']}; a page to look at: fedflux report {answer['out']}")


def _show_differences(answer: dict[str, Any]) -> None:
    for score, words in (("known", "known association"), ("test", "test phase")):
        for line in answer["differences"][score]:
            if line["mean"] is None:
                continue
            interval = "" if line["low"] is None else f", 95 % interval {line['low']:+.1f} to {line['high']:+.1f}"
            mark = f"; {line['mark']} (Wilcoxon, Holm: p = {line['p_holm']:.2g})" if line["mark"] else ""
            stdout.print(
                f"  {words}: {line['algorithm']} − {answer['reference']} = {line['mean']:+.1f} points over "
                f"{line['pairs']} pairs{interval}{mark}",
                highlight=False,
            )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _spread(line: dict[str, Any], score: str) -> str:
    middle, deviation = line[f"{score}_mean"], line[f"{score}_std"]
    if middle is None:
        return "–"
    return f"{middle:.1f}" if deviation is None else f"{middle:.1f} ± {deviation:.1f}"


def _beside(figures: list[dict[str, Any]], line: dict[str, Any], notes: dict[str, str]) -> str:
    """The paper's figures for a line, with a letter for what they are over; one level's only beside that level's."""
    fitting = [
        figure
        for figure in figures
        if (figure["algorithm"], figure["shift"]) == (line["algorithm"], line.get("shift"))
        and (list(figure["levels"]) == line["levels"] or len(figure["levels"]) != 1)
        and (figure["known"], figure["test"]) != (None, None)
    ]
    if not fitting:
        return "–"
    figure = next((one for one in fitting if list(one["levels"]) == line["levels"]), fitting[0])
    letter = notes.setdefault(figure["scope"], chr(ord("a") + len(notes)))
    return " / ".join("–" if figure[k] is None else f"{figure[k]:.1f}" for k in ("known", "test")) + f" {letter}"


def show_line(text: str) -> None:
    """Plain text on one line: brackets in a path are no markup, and a long path is not broken."""
    stdout.print(text, markup=False, highlight=False, soft_wrap=True)


def show_checks(checks: list[dict[str, Any]]) -> None:
    """One line a check."""
    table = Table(title="fedflux doctor", title_justify="left")
    for column in ("", "check", "detail"):
        table.add_column(column)
    for check in checks:
        mark = "[green]ok" if check["ok"] else "[red]missing" if check["needed"] else "[yellow]absent"
        table.add_row(mark, check["check"], escape(check["detail"]))
    stdout.print(table)


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """What is going on now, on one line of stderr; what was skipped stays."""
    with stderr.status("starting") as status:

        def tell(line: str) -> None:
            if "skipped" in line or "busy" in line or not stderr.is_terminal:
                stderr.print(line, markup=False, highlight=False, soft_wrap=True)
            status.update(escape(line))

        yield tell


def show_bench(answer: dict[str, Any]) -> None:
    """A table for each number of clients, one row a runner."""
    for clients in dict.fromkeys(row["clients"] for row in answer["rows"]):
        title = f"{clients} clients: rounds of FedAvg, median of {answer['repeats']}"
        table = Table(title=title, title_justify="left")
        table.add_column("runner", no_wrap=True)
        for column in ("samples/s", "× loop", "s/round", "spread", "start-up", "peak MB"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in (row for row in answer["rows"] if row["clients"] == clients):
            repeats, ratio = row["seconds_of_repeats"], row["ratio_to_loop"]
            table.add_row(
                *(row["runner"], f"{row['samples_per_second']:,.0f}", "–" if ratio is None else f"{ratio:.2f}"),
                *(f"{row['seconds']:.3f}", f"{(max(repeats) - min(repeats)) / row['seconds']:.0%}"),
                *(f"{row['startup_seconds']:.1f} s", f"{row['peak_mb']:,.0f}"),
            )
        stdout.print(table)
    machine = answer["machine"]
    stdout.print(f"{machine['processor']}, {machine['cores']} cores; {machine['device']}", highlight=False)
    for line in answer["skipped"]:
        show_line(f"{line['runner']}, {line['clients']} clients, skipped: {line['why']}")
    if "path" in answer:
        show_line(f"saved in {answer['path']}")


def percent(value: float | None) -> str:
    """One decimal; a dash where there is none."""
    return "–" if value is None else f"{value:.1f} %"
