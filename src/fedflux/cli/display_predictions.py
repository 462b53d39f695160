"""What people see of `fedflux predict`: where each new client belongs, and how sure that is."""

from typing import Any

from rich.markup import escape
from rich.table import Table

from fedflux.cli.display import show_line, stdout

SCORES = {"accuracy": "accuracy", "macro_auc": "macro AUC"}
LISTED = 30
"""Clients that are listed; the file has all."""


def show_predictions(result: dict[str, Any]) -> None:
    """A line a client."""
    clients = result["clients"]
    score = next((name for name in SCORES if any(client.get(name) is not None for client in clients)), None)
    table = Table(title="new clients", title_justify="left")
    table.add_column("client")
    for column in ("records", "cluster", "how sure", "new", *((SCORES[score],) if score else ())):
        table.add_column(column, justify="right")
    for client in clients[:LISTED]:
        sure = "–" if client["posterior"] is None else f"{100 * max(client['posterior']):.0f} %"
        novel = {None: "–", True: "like no cluster", False: "no"}[client["novel"]]
        right = "–" if score is None or client[score] is None else f"{client[score]:.1f} %"
        cluster = "–" if client["cluster"] is None else str(client["cluster"])
        cells = (str(client["records"]), cluster, sure, novel)
        table.add_row(escape(client["name"]), *cells, *((right,) if score else ()))
    stdout.print(table)
    if len(clients) > LISTED:
        show_line(f"and {len(clients) - LISTED} more clients")
    show_line(f"predictions written to {result['path']}")
