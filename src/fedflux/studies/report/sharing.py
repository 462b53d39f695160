"""What clusters of a run shared: every branch's part in the answers by round, and who trained a trunk with whom."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedflux.studies.report.rounding import digits

WORDS = {"own": "clusters' own models", "trunk": "shared trunk, heads by cluster", "general": "one model for all"}


def sharing(result: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """None where a run trained one branch alone, or says nothing of branches."""
    told = result.get("sharing_parts")
    heard = [(line["round"], line["parts"]) for line in rounds if _is_mixture(line.get("parts"))]
    if not isinstance(told, dict) or not heard or all(len(parts) < 2 for _, parts in heard):
        return None
    names = [name for name in WORDS if any(name in parts for _, parts in heard)]
    return {
        "rounds": [number for number, _ in heard],
        "parts": {WORDS[name]: [digits(parts.get(name, 0.0), 3) for _, parts in heard] for name in names},
        "groups": _groups(told.get("kin")),
        "whole": told.get("whole") is True,
        "dropped": [WORDS[name] for name in told.get("dropped") or [] if name in WORDS],
    }


def _is_mixture(parts: Any) -> bool:
    return isinstance(parts, dict) and bool(parts) and all(isinstance(part, int | float) for part in parts.values())


def _groups(kin: Any) -> list[list[int]]:
    """Clusters that share a trunk, group by group."""
    if not isinstance(kin, list) or not all(type(one) is int for one in kin):
        return []
    return [[cluster for cluster, group in enumerate(kin) if group == number] for number in sorted(set(kin))]
