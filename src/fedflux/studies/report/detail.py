"""One run as plain data: its clients and clusters, curves, test-time placements and costs.

Everything is capped, so that a federation of thousands of clients still makes a page that opens at once; what was left
out is counted, and the page says so.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.shifts.drift import Drift
from fedflux.errors import FedfluxError
from fedflux.files import read_lines
from fedflux.runs.storage.folder import (
    CONFIG_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    PLACEMENTS_FILE,
    RESULT_FILE,
    ROUNDS_FILE,
    SAMPLES_FILE,
)
from fedflux.studies.report import placements
from fedflux.studies.report.checks import checked_result, checked_rounds, checked_row, checked_samples
from fedflux.studies.report.descriptor_map import descriptor_map
from fedflux.studies.report.folders import Folder, Kept
from fedflux.studies.report.rounding import digits, percent
from fedflux.studies.report.sharing import sharing
from fedflux.studies.summary import SPREAD, WORK, WORST

READ = (CONFIG_FILE, RESULT_FILE, ROUNDS_FILE, EVENTS_FILE, DESCRIPTOR_FILE, SAMPLES_FILE, PLACEMENTS_FILE)
"""The files that are looked at; a person may take the others away."""
MOST_CLIENTS = 300
"""Clients listed one by one."""
MOST_NAMES = 2000
"""Clients known by name; of more, nobody reads it."""
MOST_LINES = 50
"""Above this many clients the curves are quantile bands and cluster means."""
MOST_CLUSTERS = 40
MOST_MEMBERS = 40
MOST_WHY = 300
BAND = (0.1, 0.25, 0.75, 0.9)
PHASES = ("training", "descriptor", "clustering")
SCORES = tuple(f"{name}{part}" for name in SPREAD for part in ("", "_worst", "_quantile10"))
CLUSTERING = ("clusters_found", "clusters_true", "ari", "nmi", "pairs_right", "cluster_round")
ROW = (
    *("algorithm", "dataset", "shift", "level", "seed", "group", "clients", "participation"),
    *(*SPREAD, *WORST, "pairs_right", "clusters_found", "clusters_true"),
    *("seconds", "bytes_up", "bytes_down", *WORK),
)
"""What summaries are made from."""
DROPPED = ("out", "command")
"""Settings that say where a run was put, not what it is."""


@dataclass(frozen=True)
class Run:
    """A finished run as the page shows it, as a row of summaries, and the group that each client is shown in."""

    name: str
    detail: dict[str, Any]
    row: dict[str, Any]
    groups: NDArray[np.int64]
    samples: dict[str, NDArray[Any]] | None
    """The images that it kept."""


def read_run(kept: Kept) -> Run:
    """Everything about one finished run."""
    config = kept.config
    result = checked_result(kept.result, config.get("clients"))
    named = {"algorithm": config.get("label") or config["algorithm"], "group": config.get("group") or ""}
    named |= {key: result.get(key) for key in (*SPREAD, *WORST)}  # `unseen` is a setting, too: how many are held out
    row = checked_row({key: named.get(key, config.get(key, result.get(key))) for key in ROW})
    by_round = {line["round"]: line for line in checked_rounds(kept.rounds)}
    rounds = [by_round[number] for number in sorted(by_round)]
    descriptors = kept.arrays.get(DESCRIPTOR_FILE)
    found = np.array(result["assignment"], dtype=np.int64)
    truth = result.get("truth")
    redrawn = "test" in str(config.get("drift") or "")
    grouped_by, groups = _groups(found, truth, clustered=descriptors is not None)
    detail = {
        "name": kept.name,
        "missing": kept.missing,
        "score": str(result.get("score") or "accuracy"),
        "images": result.get("holds_images", True) is True,
        "no_test_phase": result.get("no_test_phase"),
        "client_names": names if (names := result.get("client_names")) is None else names[:MOST_NAMES],
        "class_names": result.get("class_names"),
        "row": {key: percent(value) if key in SCORES else digits(value, 4) for key, value in row.items()},
        "config": {k: v for k, v in config.items() if k not in DROPPED and not isinstance(v, dict | list)},
        "ran_on": config.get("ran_on") or {},
        "command": str(config["command"]),
        "scores": {key: percent(result.get(key)) for key in SCORES},
        "clustering": {key: digits(result.get(key), 4) for key in CLUSTERING},
        "grouped_by": grouped_by,
        "clients": _clients(result, found, truth, groups),
        "clusters": _clusters(result, groups, truth),
        "curves": _curves(rounds, groups),
        "sharing": sharing(result, rounds),
        "drifts": _drifts(config.get("drift"), max(by_round, default=0)),
        "map": _map(descriptors),
        "placements": placements.tested(
            result.get("test_placements"),
            kept.arrays.get(PLACEMENTS_FILE),
            found,
            truth,
            result.get("test_truth") if redrawn else truth,
            redrawn,
        ),
        "unseen": placements.unseen(result, found, truth),
        "verdict": told if isinstance(told := result.get("verdict"), str) else None,
        "why": _why(result.get("why")),
        "costs": _costs(result, rounds),
        "timings": {
            "seconds": digits(result.get("seconds"), 4),
            "phases": {p: digits(result.get(f"seconds_{p}"), 3) for p in PHASES},
            "by_round": {p: [digits(r.get("seconds", {}).get(p, 0.0), 3) for r in rounds] for p in PHASES},
            "events": [
                {"time": str(e.get("time")), "event": str(e.get("event"))} for e in kept.events if isinstance(e, dict)
            ],
        },
        "round_events": [str(words) for line in rounds for words in line.get("events", ())],
    }
    samples = checked_samples(kept.arrays.get(SAMPLES_FILE), len(found))
    return Run(kept.name, detail, row, groups, samples)


def _map(descriptors: dict[str, NDArray[Any]] | None) -> dict[str, Any] | None:
    try:
        return descriptor_map(descriptors)
    except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
        raise FedfluxError(f"{DESCRIPTOR_FILE} makes no map ({type(fault).__name__}: {fault})") from fault


def _groups(found: NDArray[np.int64], truth: Sequence[int] | None, clustered: bool) -> tuple[str, NDArray[np.int64]]:
    """What clients are coloured and grouped by: found clusters, or true ones where the method makes no clusters."""
    none_made = not clustered and len(np.unique(found)) in (1, len(found))
    return ("truth", np.array(truth, dtype=np.int64)) if none_made and truth is not None else ("found", found)


def unfinished_detail(folder: Folder, config: dict[str, Any]) -> dict[str, Any]:
    """What there is to say of a run that has no result."""
    numbers = [line["round"] for line in checked_rounds(read_lines(folder.path / ROUNDS_FILE))]
    keys = ("algorithm", "dataset", "shift", "level", "seed", "group", "rounds")
    return {
        "name": folder.name,
        **{key: config.get(key) for key in keys},
        "rounds_done": max(numbers, default=0),
        "command": str(config["command"]),
    }


def _clients(
    result: dict[str, Any], found: NDArray[np.int64], truth: Sequence[int] | None, groups: NDArray[np.int64]
) -> dict[str, Any]:
    """Client by client, the first few hundred."""
    shown = min(len(found), MOST_CLIENTS)
    return {
        "count": len(found),
        "shown": shown,
        "found": found[:shown].tolist(),
        "truth": None if truth is None else list(truth[:shown]),
        "group": groups[:shown].tolist(),
        **{
            name: None if result.get(f"{name}_per_client") is None else percent(result[f"{name}_per_client"][:shown])
            for name in ("known", "test")
        },
    }


def _clusters(result: dict[str, Any], groups: NDArray[np.int64], truth: Sequence[int] | None) -> dict[str, Any]:
    """Who sits in each cluster and how its members fare."""
    labels, sizes = np.unique(groups, return_counts=True)
    rows = []
    for label, size in list(zip(labels.tolist(), sizes.tolist(), strict=True))[:MOST_CLUSTERS]:
        members = np.flatnonzero(groups == label)
        rows.append(
            {
                "cluster": label,
                "size": size,
                "members": members[:MOST_MEMBERS].tolist(),
                "truth": None if truth is None else sorted(Counter(truth[m] for m in members.tolist()).items()),
                **{name: _mean(result.get(f"{name}_per_client"), members) for name in ("known", "test")},
            }
        )
    return {"count": len(labels), "rows": rows}


def _mean(scores: Sequence[float | None] | None, members: NDArray[np.int64]) -> float | None:
    held = [score for m in members if scores is not None and (score := scores[m]) is not None]
    return percent(float(np.mean(held))) if held else None


def _drifts(spec: Any, rounds: int) -> list[int]:
    """Rounds in which clients met new patterns; none where the run's drift cannot be read."""
    try:
        return Drift.parse(spec).changes(rounds) if isinstance(spec, str) else []
    except FedfluxError:
        return []


def _curves(rounds: list[dict[str, Any]], groups: NDArray[np.int64]) -> dict[str, Any] | None:
    """Validation accuracy by round: a line a client, or bands over many; always the clusters' means."""
    if not rounds:
        return None
    table = np.full((len(groups), len(rounds)), np.nan)
    for column, line in enumerate(rounds):
        for client, score in line.get("validation", {}).items():
            if score is not None and int(client) < len(table):
                table[int(client), column] = score
    labels, sizes = np.unique(groups, return_counts=True)
    kept = sorted(labels[np.argsort(-sizes, kind="stable")][:MOST_CLUSTERS].tolist())
    many = len(groups) > MOST_LINES
    return {
        "rounds": [line["round"] for line in rounds],
        "clients": None if many else [percent(row.tolist()) for row in table],
        "bands": {str(q): _over_clients(table, q) for q in BAND} if many else None,
        "mean": _over_clients(table),
        "clusters": {str(label): _over_clients(table[groups == label]) for label in kept},
    }


def _over_clients(table: NDArray[np.float64], quantile: float | None = None) -> Any:
    """Mean or quantile of every round over the clients that took part in it."""
    answers: list[float | None] = []
    for column in table.T:
        there = column[~np.isnan(column)]
        value = None if not len(there) else np.mean(there) if quantile is None else np.quantile(there, quantile)
        answers.append(None if value is None else float(value))
    return percent(answers)


def _why(pairs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    if pairs is None:
        return None
    kept = [{key: pair[key] for key in ("clusters", "shift", "classes", "words")} for pair in pairs[:MOST_WHY]]
    kinds = Counter(str(pair["shift"]) for pair in pairs)
    return {"count": len(pairs), "kinds": kinds.most_common(), "pairs": kept}


def _costs(result: dict[str, Any], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes in all, by round, and what one member of one round moves on average."""
    sent = {way: [list(line.get(f"bytes_{way}", {}).values()) for line in rounds] for way in ("up", "down")}
    return {
        "rounds": len(rounds),
        **{f"bytes_{way}": result.get(f"bytes_{way}") for way in sent},
        **{f"{way}_by_round": [sum(values) for values in each] for way, each in sent.items()},
        **{f"{way}_per_member": round(sum(map(sum, each)) / max(1, sum(map(len, each)))) for way, each in sent.items()},
    }
