"""Pages of results, made from the CSV files of finished cells alone: whoever has these can make them anew."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedflux.errors import FedfluxError
from fedflux.files import write_bytes
from fedflux.studies.paper.contents import STUDIES
from fedflux.studies.paper.reading import DATASETS
from fedflux.studies.paper.study import Study
from fedflux.studies.reproduce.asking import DISTANCES, PRESETS
from fedflux.studies.reproduce.layout import WHOSE, best_method, digits_of, laid_out, number, printed
from fedflux.studies.reproduce.outcome import Outcome, outcomes
from fedflux.studies.reproduce.rows import Row, read_rows
from fedflux.studies.reproduce.tiers import STAND_INS, Wanted, narrowed
from fedflux.studies.reproduce.writing import counted
from fedflux.studies.summary import level_words

OVERVIEW = "README.md"
KINDS = ("better", "same", "worse", "not comparable", "missing")
NOTE = "Made by `fedflux reproduce --results` from the CSV files in this folder; do not edit."
SUBSTITUTES = tuple(name for name in STAND_INS if name != "digits")
"""Data that takes the place of other data on pages, too, in columns of its own."""


def write_pages(folder: Path) -> list[Path]:
    """Make all pages of a folder anew; those of what has no finished cell any more go."""
    made = pages(read_rows(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.md"):
            if old.name not in made and NOTE in old.read_text(encoding="utf-8"):
                old.unlink()
        for name, text in made.items():
            write_bytes(folder / name, text.encode())
    except OSError as error:
        raise FedfluxError(f"cannot write pages to {folder}: {error.strerror}") from error
    return [folder / name for name in made]


def pages(rows: Mapping[str, Row]) -> dict[str, str]:
    """Every page by its file name: an overview, and one for each table or figure that has a finished cell."""
    found: dict[str, list[Outcome]] = {}
    made: dict[str, str] = {}
    for study in STUDIES.values():
        if study.kind == "description" or study.drawn == "samples":
            continue
        shown = _with_what_there_is(study, rows)
        found[study.name] = outcomes(shown, PRESETS, rows.get)
        if any(one.ours is not None for one in found[study.name]):
            made[f"{study.short}.md"] = _page(shown, found[study.name])
    return {OVERVIEW: _overview(found, rows), **made}


def _with_what_there_is(study: Study, rows: Mapping[str, Row]) -> Study:
    """With rows of methods that the paper has not, and with data that stands in, where cells of these are finished."""
    methods = {row["algorithm"] for row in rows.values()} - {DISTANCES}
    shown = study
    if study.rows_are_methods:
        own = {place.runs.algorithm for place in study.places}
        others = narrowed(study, Wanted("full", algorithms=tuple(sorted(methods - own)))) if methods - own else None
        shown = replace(study, places=(*study.places, *(others.places if others else ())))
    there = {row["dataset"] for row in rows.values()}
    instead = tuple(name for name in SUBSTITUTES if name in there and STAND_INS[name] in study.datasets)
    if instead:
        more = narrowed(shown, Wanted("full", datasets=instead)).places
        renamed = [replace(place, column=f"{place.column} ({DATASETS[place.runs.dataset]})") for place in more]
        shown = replace(shown, places=(*shown.places, *renamed))
    return shown


def _overview(found: Mapping[str, Sequence[Outcome]], rows: Mapping[str, Row]) -> str:
    lines = ["# Where we stand with the paper's tables and figures", "", NOTE, ""]
    lines += ["A number is one cell of a table, or one point of a plot, under one preset, over the levels and seeds"]
    lines += ["that are finished: its page says which, often fewer than the paper's. *Same*: within 0.5 points, or"]
    lines += ["within two standard errors of the difference. *Not comparable*: the page of it says why. *Missing*: not"]
    lines += ["all of its runs are finished, or the library lacks what it needs.", ""]
    lines += [f"{len(rows)} finished cells: {_cells(rows)}.", ""]
    lines += ["| table or figure | better | same | worse | not comparable | missing |", "|---|---|---|---|---|---|"]
    for name, study in STUDIES.items():
        if study.kind == "description":
            continue
        if name not in found:
            lines.append(f"| `{name}` {study.title} | shows images alone: `fedflux reproduce {study.short}` | | | | |")
            continue
        counts = counted([one.as_dict(name) for one in found[name]])
        link = f"[`{name}`]({study.short}.md)" if any(one.ours is not None for one in found[name]) else f"`{name}`"
        lines.append(f"| {link} {_plain(study.title)} | {' | '.join(str(counts[kind]) for kind in KINDS)} |")
    names = ", ".join(f"`{name}`" for name, study in STUDIES.items() if study.kind == "description")
    lines += ["", f"Described in words, nothing to reproduce: {names}.", ""]
    return "\n".join(lines)


def _cells(rows: Mapping[str, Row]) -> str:
    """How many of each dataset, and what they ran on."""
    counts: dict[str, int] = {}
    for row in rows.values():
        counts[row["dataset"]] = counts.get(row["dataset"], 0) + 1
    places = sorted({str(row["device"]) for row in rows.values()})
    data = ", ".join(f"{count} of {DATASETS.get(name, name)}" for name, count in sorted(counts.items()))
    return f"{data}; on {', '.join(places)}" if rows else "none"


def _page(study: Study, found: Sequence[Outcome]) -> str:
    layout = laid_out(study, found)
    lines = [f"# `{study.name}`: {study.title}", "", NOTE, "", study.protocol, ""]
    lines += ["Percent; ± of ours is the deviation over seeds, the paper does not say what its is over. In brackets:"]
    lines += ["what its plots show at the levels of ours, where these are fewer.", ""]
    lines += [f"| | {' | '.join(map(_plain, layout.columns))} |", f"|---|{'---|' * len(layout.columns)}"]
    for row in layout.rows:
        firsts = [layout.first(row, column) for column in layout.columns]
        lines.append(f"| {_plain(row)}, the paper | {' | '.join(map(printed, firsts))} |")
        for preset in layout.presets_of(row):
            ours = [layout.at.get((row, column, preset)) for column in layout.columns]
            if any(one is not None and one.ours is not None for one in ours):
                lines.append(f"| {_plain(row)}, {WHOSE[preset]} | {' | '.join(map(_ours, ours))} |")
    lines += ["", *_best(study, found, layout.columns), *_details(found)]
    return "\n".join(lines)


def _ours(one: Outcome | None) -> str:
    if one is None:
        return ""
    mark = {"better": " ▲", "worse": " ▼", "same": " ="}.get(one.verdict, "")
    return number(one.ours, one.std, digits_of(one.place.score)) + mark if one.ours is not None else "missing"


def _best(study: Study, found: Sequence[Outcome], columns: Sequence[str]) -> list[str]:
    """Where FLUX by default is not the best of what we ran."""
    lines = []
    for column in columns:
        best = best_method(study, found, column)
        flux = [one for one in found if one.place.column == column and one.place.runs.algorithm == "flux"]
        ours = next((one.ours for one in flux if one.preset == PRESETS[0] and one.ours is not None), None)
        if best is not None and ours is not None and best.ours is not None and best.ours > ours:
            lines.append(f"- {_plain(column)}: {_plain(best.place.row)} ({best.ours:.1f}; FLUX {ours:.1f})")
    return ["**Where FLUX by default is not the best of the methods that were run:**", "", *lines, ""] if lines else []


def _details(found: Sequence[Outcome]) -> list[str]:
    """Every number that is there, with what it is over and the verdict; what is missing, counted by reason."""
    there = [one for one in found if one.ours is not None]
    lines = ["| row | column | ours | seeds | levels | the paper's | verdict |", "|---|---|---|---|---|---|---|"]
    for one in there:
        digits = digits_of(one.place.score)
        levels = level_words(one.levels) if any(one.levels) else ""
        name = one.place.row if one.preset == PRESETS[0] else f"{one.place.row}, --preset paper"
        values = [name, one.place.column, number(one.ours, one.std, digits), ", ".join(map(str, one.seeds)), levels]
        values += [number(one.paper, None, digits), one.verdict]
        lines.append(f"| {' | '.join(map(_plain, values))} |")
    reasons: dict[str, int] = {}
    for one in found:
        if one.ours is None:
            words = one.verdict.partition(": ")[2]
            words = "runs that are not finished" if "cells are finished" in words else words
            reasons[words] = reasons.get(words, 0) + 1
    missing = [f"- {count} × {_plain(words)}" for words, count in sorted(reasons.items())]
    return [*lines, "", *(["**Missing:**", "", *missing, ""] if missing else [])]


def _plain(text: str) -> str:
    """A bar would end a column."""
    return text.replace("|", "\\|")
