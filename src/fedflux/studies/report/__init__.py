"""Reports: run folders as one self-contained HTML page, with PNG, SVG and LaTeX beside it on request."""

from fedflux.studies.report.collect import collect, without_timings
from fedflux.studies.report.folders import find_runs
from fedflux.studies.report.page import write_report

__all__ = ["collect", "find_runs", "without_timings", "write_report"]
