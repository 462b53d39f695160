"""A reproduced table as files: LaTeX in the paper's layout, and CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import write_bytes, write_json
from fedflux.studies.paper.study import Study
from fedflux.studies.report.latex import escape
from fedflux.studies.reproduce.layout import WHOSE, digits_of, laid_out, number, printed
from fedflux.studies.reproduce.outcome import Outcome
from fedflux.studies.reproduce.rows import table_text

COLUMNS = (
    *(
        "table",
        "row",
        "column",
        "preset",
        "dataset",
        "algorithm",
        "score",
        "paper",
        "paper_std",
        "paper_same_levels",
        "ours",
    ),
    *("std", "seeds", "levels", "verdict", "finished", "planned"),
)


def write(study: Study, found: Sequence[Outcome], folder: Path) -> list[Path]:
    """CSV, JSON and, of a table, LaTeX; what was written."""
    cells = [one.as_dict(study.name) for one in found]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{study.short}.csv", folder / f"{study.short}.json"]
        write_bytes(written[0], table_text(cells, COLUMNS).encode())
        write_json(written[1], {"table": study.name, "title": study.title, "protocol": study.protocol, "cells": cells})
        if study.kind == "table":
            written.append(folder / f"{study.short}.tex")
            write_bytes(written[-1], latex(study, found).encode())
    except OSError as error:
        raise FedfluxError(f"cannot write {study.name} to {folder}: {error.strerror}") from error
    return written


def latex(study: Study, found: Sequence[Outcome]) -> str:
    """The paper's rows, each followed by ours; the paper's columns."""
    layout = laid_out(study, found)
    lines = []
    for row in layout.rows:
        firsts = [layout.first(row, column) for column in layout.columns]
        lines.append([f"{row}, paper", *map(printed, firsts)])
        for preset in layout.presets_of(row):
            ours = [layout.at.get((row, column, preset)) for column in layout.columns]
            texts = ["" if one is None else number(one.ours, one.std, digits_of(one.place.score)) for one in ours]
            lines.append([f"{row}, {WHOSE[preset]}", *texts])
    heads = [" ", *layout.columns]
    body = "\n".join(" & ".join(map(escape, cells)) + r" \\" for cells in lines)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
        f"\\caption{{{escape(f'{study.title}. {study.protocol} ± of ours: deviation over seeds.')}}}\n"
        f"\\begin{{tabular}}{{l{'r' * len(layout.columns)}}}\n\\toprule\n{' & '.join(map(escape, heads))} \\\\\n"
        f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def counted(cells: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many cells there are of each verdict, reasons left out."""
    kinds = ("better", "same", "worse", "not comparable", "missing")
    return {kind: sum(cell["verdict"].partition(":")[0] == kind for cell in cells) for kind in kinds}
