"""The page: template, style, scripts, data and plotly in one file that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from json import dumps
from pathlib import Path
from re import sub
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import written_whole
from fedflux.studies.report.collect import collect
from fedflux.studies.report.exports import export_all, make_export_folder

SCRIPTS = (
    *("dom.js", "charts.js", "overview.js", "compare.js", "runs.js"),
    *("run_charts.js", "run_tables.js", "run.js", "page.js"),
)
REPORT_FILE = "report.html"


def write_report(
    paths: Sequence[Path], out: Path | None, export: Path | None = None, reference: str | None = None
) -> Path:
    """One HTML file about all runs at or below `paths`; with `export`, figures and tables as files of their own too."""
    data = collect(paths, reference)
    first = paths[0] if paths[0].is_dir() else paths[0].parent
    target = out or first / REPORT_FILE
    content = render(data, _title(data, paths)).encode()
    if export is not None:
        make_export_folder(export)  # where it cannot be made, there is no half of a report
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as handle:
            handle.write(content)
    except OSError as error:
        raise FedfluxError(f"cannot write the report to {target}: {error.strerror}") from error
    if export is not None:
        export_all(data, export)
    return target


def render(data: Mapping[str, Any], title: str) -> str:
    """The page as text. Nothing in a run can end the script element with the data: its `<` are written as escapes."""
    parts = {
        "title": escape(title),
        "version": escape(str(data["fedflux"])),
        "style": _resource("page.css"),
        "data": dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "script": f'(() => {{\n"use strict";\n{"".join(map(_resource, SCRIPTS))}\n}})();',
        "plotly": _plotly(),
    }
    return sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _resource("page.html"))


def _title(data: Mapping[str, Any], paths: Sequence[Path]) -> str:
    if len(data["runs"]) == 1:
        return str(data["runs"][0]["name"])
    names = ", ".join(dict.fromkeys(path.resolve().name for path in paths[:3]))
    return names + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _resource(name: str) -> str:
    return files("fedflux.studies.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise FedfluxError("reports need plotly: pip install plotly") from error
    return str(get_plotlyjs())
