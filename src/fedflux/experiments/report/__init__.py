"""Reports: run folders as one self-contained HTML page, with PNG, SVG and LaTeX beside it on request."""

from fedflux.experiments.report.collect import collect, without_timings
from fedflux.experiments.report.folders import find_runs
from fedflux.experiments.report.page import write_report

__all__ = ["collect", "find_runs", "without_timings", "write_report"]
