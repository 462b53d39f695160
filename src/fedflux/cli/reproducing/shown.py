"""What people see of `fedflux reproduce`: a bar with the time left, then ours beside the paper's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedflux.cli.display import show_line, stderr, stdout
from fedflux.studies.compare import Status
from fedflux.studies.reproduce import Plan, Watcher
from fedflux.studies.reproduce.asking import PRESETS
from fedflux.studies.reproduce.layout import digits_of, number

LONG = 3600.0
"""Seconds over which speed is taken, so that quick cells do not promise much of slow ones."""
COLOURS = {"better": "green", "same": "", "worse": "red"}


class _Cells(Watcher):
    def __init__(self, bar: Progress, plan: Plan) -> None:
        self._bar, self._told = bar, 0
        estimate = plan.estimate
        self._weights = {} if estimate is None else dict(estimate.seconds)
        total = sum(self._weights.get(cell.identity, 1.0) for cell in plan.unfinished)
        self._task = bar.add_task("cells", total=total, state="starting", cells=f"0/{len(plan.unfinished)}")
        self._left = {cell.identity for cell in plan.unfinished}

    def on_change(self, status: Status) -> None:
        for note in status.notes[self._told :]:
            self._bar.console.print(f"  {note}", highlight=False, markup=False)
        self._told = len(status.notes)
        ended = {status.cells[place].identity for place in (*status.results, *status.failed)} & self._left
        running = ", ".join(f"{status.cells[place].name} {words}" for place, words in sorted(status.running.items()))
        self._bar.update(
            self._task,
            completed=sum(self._weights.get(name, 1.0) for name in ended),
            state=running,
            cells=f"{len(ended)}/{len(self._left)}",
        )

    def on_distance(self, words: str, share: float) -> None:
        self._bar.update(self._task, state=f"distances, {words}")


@contextmanager
def cells_bar(plan: Plan) -> Iterator[Watcher]:
    """A bar on stderr, by the work that is done."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(20), TextColumn("{task.fields[cells]}"))
    times = (TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn())
    state = TextColumn("{task.fields[state]}", table_column=Column(ratio=1, no_wrap=True), markup=False)
    with Progress(*columns, *times, state, console=stderr, expand=True, speed_estimate_period=LONG) as bar:
        yield _Cells(bar, plan)


def show_list(answer: dict[str, Any]) -> None:
    """A line each."""
    kinds = {"table": "tables with results", "description": "tables that describe", "figure": "figures"}
    for kind, words in kinds.items():
        own = [study for study in answer["studies"] if study["kind"] == kind]
        table = Table(title=f"{len(own)} {words}", title_justify="left", box=SIMPLE_HEAD)
        table.add_column("name", no_wrap=True)
        for column in ("what it shows", "data"):
            table.add_column(column)
        for study in own:
            table.add_row(study["name"], Text(study["title"]), ", ".join(study["datasets"]))
        stdout.print(table)


def show_reproduced(answer: dict[str, Any]) -> None:
    """A table for each study, a line a number."""
    for study in answer["studies"]:
        own = [cell for cell in answer["cells"] if cell["table"] == study["name"]]
        notes: dict[str, str] = {}
        table = Table(title=f"{study['name']}: {study['title']}", title_justify="left", box=SIMPLE_HEAD)
        for column in ("row", "column"):
            table.add_column(column)
        for column in ("paper", "ours"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        paper = any(cell["preset"] == PRESETS[1] for cell in own)
        if paper:
            table.add_column("--preset paper", justify="right", no_wrap=True)
            table.add_column("verdict", no_wrap=True)
        for place in dict.fromkeys((cell["row"], cell["column"]) for cell in own):
            found = {cell["preset"]: cell for cell in own if (cell["row"], cell["column"]) == place}
            first = next(iter(found.values()))
            digits = digits_of(first["score"])
            same = first["paper_same_levels"]
            words = number(first["paper"], first["paper_std"], digits) + ("" if same is None else f" ({number(same)})")
            shown = [Text(words)]
            for preset in PRESETS[: 2 if paper else 1]:
                cell = found.get(preset)
                shown += [Text(""), Text("")] if cell is None else [
                    Text(number(cell["ours"], cell["std"], digits)),
                    Text(_noted(cell["verdict"], notes), style=COLOURS.get(cell["verdict"], "dim")),
                ]  # fmt: skip
            table.add_row(Text(place[0]), Text(place[1]), *shown)
        stdout.print(table)
        for words, letter in notes.items():
            show_line(f"  {letter}: {words}")
        show_line(f"  {study['protocol']} Seeds here: {', '.join(map(str, study['seeds']))}.")
        if study["missing"]:
            show_line(f"  not drawn: {study['missing']}")
        show_line(f"  {', '.join(study['files'])} in {study['path']}")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in answer["verdicts"].items() if count)
    show_line(f"{counts}; ± is the deviation over seeds; in brackets: the paper's plots at our levels")
    cells = "{planned} cells: {finished_before} finished before, {ran} run now".format(**answer)
    show_line(f"{cells}, {len(answer['failed'])} failed; kept in {answer['store']}")
    for failure in answer["failed"]:
        show_line(f"  {failure['cell']}: {failure['why']}")


def _noted(verdict: str, notes: dict[str, str]) -> str:
    """The verdict; where it has a reason, a letter for it, which stands below the table."""
    if ":" not in verdict:
        return verdict
    return f"({notes.setdefault(verdict, _letter(len(notes)))})"


def _letter(number: int) -> str:
    """a to z, then aa, ab, …"""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("a") + last)


def show_verified(answer: dict[str, Any]) -> None:
    """One line."""
    came = "the same bits" if answer["same_bits"] else f"{answer['difference']:.3g} points apart"
    words = "verified" if answer["verified"] else f"NOT verified ({answer['allowed']:g} allowed)"
    show_line(f"{answer['cell']} on {answer['device']}, run again: {came}; {words}")
