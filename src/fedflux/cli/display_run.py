"""What people see of one run: its figures, why there may be no test phase, who sits in which cluster, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedflux.cli.display import percent, show_line, stdout

MOST_WHY = 6
MOST_CLUSTERS = 12
"""Rows of the table of clusters."""
MOST_MEMBERS = 8
"""Clients named in a row."""


def show_run(result: dict[str, Any]) -> None:
    """The figures of one run, each saying what it is."""
    score = str(result.get("score") or "accuracy")
    title = f"{score[0].upper()}{score[1:]} on the clients' test parts (mean over clients)"
    table = Table(title=title, title_justify="left")
    for column in ("", "mean", "worst client", "10 % quantile"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {"known": "known association", "test": "test phase (unlabelled)"}
    rows |= {} if result.get("unseen") is None else {"unseen": "unseen clients (held out)"}
    for name, words in rows.items():
        worst = percent(result[f"{name}_worst"]) + _whose(result, name)
        table.add_row(words, percent(result[name]), escape(worst), percent(result[f"{name}_quantile10"]))
    stdout.print(table)
    if result.get("no_test_phase"):
        show_line(f"no test phase: {result['no_test_phase']}")
    stdout.print(cluster_line(result), highlight=False)
    if result.get("novel"):
        show_line(f"test phase: {100 * result['novel']:.1f} % of clients are like no cluster (novel)")
    if result.get("unseen_truth") is not None:
        new = sum(cluster is not None and cluster not in result["truth"] for cluster in result["unseen_truth"])
        held_out = len(result["unseen_truth"])
        show_line(f"held out: {held_out} clients, {new} of them with a distribution that no training client has")
    if result.get("verdict") is not None:
        show_line(result["verdict"])
    _show_members(result)
    _show_why(result["why"])
    seconds = ", ".join(f"{p} {result[f'seconds_{p}']:.2f}" for p in ("training", "descriptor", "clustering"))
    stdout.print(
        f"{result['seconds']:.1f} s ({seconds}) on {result['device']}, engine {result['engine']}; "
        f"{_bytes(result['bytes_up'])} up, {_bytes(result['bytes_down'])} down",
        highlight=False,
    )
    show_line(f"saved in {result['run_dir']}")


def show_clusters(result: dict[str, Any]) -> None:
    """Who sits in which cluster."""
    table = Table(title=f"{result['clusterer']}: {cluster_line(result)}", title_justify="left")
    table.add_column("cluster", justify="right")
    table.add_column("clients")
    names = result.get("client_names") or ()
    for label in sorted(set(result["labels"])):
        members = [c for c, m in zip(result["clients"], result["labels"], strict=True) if m == label]
        named = [str(names[c] if c < len(names) else c) for c in members]
        table.add_row(str(label), escape(", ".join(named)))
    stdout.print(table)
    _show_why(result["why"])


def cluster_line(result: Mapping[str, Any]) -> str:
    """How many clusters, and how that compares with the truth."""
    found = result["clusters_found"]
    if found is None:
        return "no clusters"
    line = f"{found} {'cluster' if found == 1 else 'clusters'} found"
    if result["clusters_true"] is not None:
        line += f", {result['clusters_true']} true; pairs right {result['pairs_right']:.3f}, ARI {result['ari']:.3f}"
    return line


def _whose(result: Mapping[str, Any], phase: str) -> str:
    """The name of the lowest client, where clients have names."""
    names = result.get("unseen_names" if phase == "unseen" else "client_names")
    scores = [(score, k) for k, score in enumerate(result.get(f"{phase}_per_client") or ()) if score is not None]
    if not names or not scores or result[f"{phase}_worst"] is None:
        return ""
    name = str(names[min(scores)[1]])
    return f" ({f'client {name}' if name.isdecimal() else _short(name)})"


def _show_members(result: Mapping[str, Any]) -> None:
    """Named clients by cluster, the largest clusters first."""
    names, assignment = result.get("client_names"), result.get("assignment")
    members: dict[int, list[int]] = {}
    for client, cluster in enumerate(assignment or ()):
        members.setdefault(cluster, []).append(client)
    if not names or not 1 < len(members) < len(names):
        return
    table = Table(title="Who is in which cluster", title_justify="left")
    for column in ("cluster", "clients", "", "known"):
        table.add_column(column, justify="left" if not column else "right")
    order = sorted(members, key=lambda cluster: (cluster < 0, -len(members[cluster]), cluster))
    for cluster in order[:MOST_CLUSTERS]:
        own = members[cluster]
        left = len(own) - MOST_MEMBERS
        words = ", ".join(_short(str(names[k])) for k in own[:MOST_MEMBERS]) + (f" and {left} more" if left > 0 else "")
        label = "none" if cluster < 0 else str(cluster)
        table.add_row(label, str(len(own)), escape(words), percent(_mean(result.get("known_per_client"), own)))
    stdout.print(table)
    if len(order) > MOST_CLUSTERS:
        show_line(f"  and {len(order) - MOST_CLUSTERS} more clusters (the report and --json list them)")


def _mean(scores: Sequence[float | None] | None, members: Sequence[int]) -> float | None:
    held = [score for k in members if scores is not None and (score := scores[k]) is not None]
    return sum(held) / len(held) if held else None


def _short(name: str, most: int = 32) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _show_why(pairs: list[dict[str, Any]] | None) -> None:
    for pair in (pairs or [])[:MOST_WHY]:
        show_line(f"  {pair['words']}")
    if pairs and len(pairs) > MOST_WHY:
        show_line(f"  and {len(pairs) - MOST_WHY} more pairs (the report and --json list them)")


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
