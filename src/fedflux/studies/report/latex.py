"""LaTeX tables (package booktabs) of comparable runs, each with a caption that says what the numbers are."""

from collections.abc import Mapping, Sequence
from typing import Any

MARKS = {
    "\\": r"\textbackslash{}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
}
SHIFTS = {"px": "$P(X)$", "py": "$P(Y)$", "pygx": r"$P(Y\mid X)$", "pxgy": r"$P(X\mid Y)$"}
SCORES = {
    "known": "known association",
    "test": "test phase",
    "known_worst": "known association, worst client",
    "test_worst": "test phase, worst client",
}
VERDICTS = {"better": "better", "worse": "worse", "": "--"}


def block_tables(block: Mapping[str, Any], score: str = "accuracy") -> dict[str, str]:
    """File name → LaTeX: by shift, over all shifts, and the paired differences."""
    where = str(block["group"] or block["dataset"])
    tables = {"by-shift": _means(block["by_shift"], where, score, by_shift=True)}
    if len(block["shifts"]) > 1:
        tables["overall"] = _means(block["overall"], where, score, by_shift=False)
    if block["paired"]:
        tables["paired"] = _paired(block["paired"], where)
    return tables


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(MARKS.get(character, character) for character in text)


def _means(lines: Sequence[Mapping[str, Any]], where: str, score: str, by_shift: bool) -> str:
    held_out = any(line["unseen_mean"] is not None for line in lines)
    scores = ["Known", "worst", "Test", "worst", *(["Unseen", "worst"] if held_out else []), "Pairs right"]
    heads = ["Algorithm", *(["Shift"] if by_shift else []), *scores, "Over"]
    rows = [
        [
            escape(line["algorithm"]),
            *([_shift(line["shift"])] if by_shift else []),
            _spread(line["known_mean"], line["known_std"]),
            _spread(line["known_worst_mean"]),
            _spread(line["test_mean"], line["test_std"]),
            _spread(line["test_worst_mean"]),
            *(_unseen(line) if held_out else []),
            _spread(None if line["pairs_right_mean"] is None else 100 * line["pairs_right_mean"]),
            escape(line["scope"]),
        ]
        for line in lines
    ]
    caption = (
        f"{escape(where)}: {score} on the clients' test parts in percent, mean over clients; $\\pm$ is the deviation "
        "over seeds. Worst: the worst client of a run. Pairs right: client pairs rightly put together or apart."
    )
    return _table(heads, rows, "l" * (2 if by_shift else 1) + "r" * len(scores) + "l", caption)


def _unseen(line: Mapping[str, Any]) -> list[str]:
    return [_spread(line["unseen_mean"], line["unseen_std"]), _spread(line["unseen_worst_mean"])]


def _paired(lines: Sequence[Mapping[str, Any]], where: str) -> str:
    heads = ["Algorithm", "Score", "Difference", r"95\,\% interval", "Pairs", "$p$ (Holm)", "Verdict"]
    rows = [
        [
            escape(line["algorithm"]),
            SCORES[line["score"]],
            _signed(line["mean"]),
            "--" if line["low"] is None else f"{_signed(line['low'])} to {_signed(line['high'])}",
            str(line["pairs"]),
            "--" if line["p_holm"] is None else f"{line['p_holm']:.3f}",
            VERDICTS[line["mark"]],
        ]
        for line in lines
    ]
    caption = (
        f"{escape(where)}: difference to {escape(lines[0]['reference'])} in percentage points over runs of the same "
        "shift, level and seed; $t$ interval; exact Wilcoxon signed-rank test, corrected by Holm."
    )
    return _table(heads, rows, "llrrrrl", caption)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: str, caption: str) -> str:
    body = "\n".join(" & ".join(cells) + r" \\" for cells in rows)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
        f"\\caption{{{caption}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{' & '.join(heads)} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _spread(mean: float | None, deviation: float | None = None) -> str:
    if mean is None:
        return "--"
    return f"${mean:.1f}$" if deviation is None else f"${mean:.1f} \\pm {deviation:.1f}$"


def _signed(value: float | None) -> str:
    return "--" if value is None else f"${value:+.1f}$"


def _shift(name: str) -> str:
    return " + ".join(SHIFTS.get(part, escape(part)) for part in name.split("+"))
