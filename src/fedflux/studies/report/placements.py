"""Where clients without labels were put: those that trained, asked once more, and those that were held out."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.studies.report.rounding import digits, percent

MOST_PLACED = 120
"""Rows of the table of clients by clusters."""
MOST_COLUMNS = 40
"""Its columns."""
MOST_UNSEEN = 300
"""Held-out clients listed one by one."""


def tested(
    listed: list[dict[str, Any]] | None,
    everyone: dict[str, NDArray[Any]] | None,
    found: NDArray[np.int64],
    truth: Sequence[int] | None,
    met: Sequence[int] | None,
    redrawn: bool,
) -> dict[str, Any] | None:
    """Where the test phase put clients, what every cluster is to them, and how often that was right.

    `listed` is everyone, or in a large federation the first clients, and `everyone` the arrays of all of them. `met` is
    the truth that the test phase meets; where patterns were redrawn for it, clients need not go where they trained.
    """
    if not listed:
        return None
    client = np.array([p["client"] for p in listed]) if everyone is None else everyone["client"]
    chosen = np.array([p["cluster"] for p in listed]) if everyone is None else everyone["cluster"]
    return {
        "count": len(client),
        "own": None if redrawn and (truth is None or met != truth) else int((chosen == found[client]).sum()),
        "right": None if truth is None or met is None else placed_right(chosen, np.array(met)[client], found, truth),
        **_table(listed[:MOST_PLACED]),
        **_novelty(listed, everyone),
    }


def unseen(result: dict[str, Any], found: NDArray[np.int64], truth: Sequence[int] | None) -> dict[str, Any] | None:
    """Held-out clients, one by one; None where nobody was held out, or the method has no answer to them."""
    scores, listed = result.get("unseen_per_client"), result.get("unseen_placements")
    if scores is None and not listed:
        return None
    own, names = result.get("unseen_truth"), result.get("unseen_names")
    count = len(next(one for one in (scores, own, names, listed) if one is not None))
    shown = min(count, MOST_UNSEEN)
    return {
        "count": count,
        "clients": list(range(len(found), len(found) + shown)),
        "names": None if names is None else list(names[:shown]),
        "truth": None if own is None else list(own[:shown]),
        "new": None if own is None or truth is None else [c is not None and c not in truth for c in own[:shown]],
        "scores": None if scores is None else percent(scores[:shown]),
        "placements": None if not listed else _unseen_placements(listed, found, truth, own),
    }


def _unseen_placements(
    listed: list[dict[str, Any]],
    found: NDArray[np.int64],
    truth: Sequence[int] | None,
    own: Sequence[int | None] | None,
) -> dict[str, Any]:
    """The same as of the test phase; right can be only those whose distribution somebody trained on."""
    judged = {"right": None, "comparable": 0}
    if truth is not None and own is not None:
        pairs = [(p["cluster"], own[p["client"] - len(found)]) for p in listed]
        pairs = [(cluster, mine) for cluster, mine in pairs if mine in truth]
        chosen, mine = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        judged = {"right": placed_right(chosen, mine, found, truth), "comparable": len(pairs)}
    return {"count": len(listed), **judged, **_table(listed[:MOST_PLACED]), **_novelty(listed, None)}


def _table(shown: list[dict[str, Any]]) -> dict[str, Any]:
    """Clients by clusters: distances where clients were placed by them, else posteriors."""
    by = "distances" if "distances" in shown[0] else "posterior"
    return {
        "clients": [int(p["client"]) for p in shown],
        "chosen": [int(p["cluster"]) for p in shown],
        "by": by,
        "values": [digits(list(p[by])[:MOST_COLUMNS], 4) for p in shown],
        "clusters": len(shown[0][by]),
    }


def _novelty(listed: list[dict[str, Any]], everyone: dict[str, NDArray[Any]] | None) -> dict[str, Any]:
    """How many fit no cluster, and who, and how sure the placements are; nothing in runs that did not ask.

    Where a verdict is not calibrated it says nothing, and neither does its score.
    """
    if "novel" not in listed[0]:
        return {}
    flags, judged = (
        everyone[name] if everyone is not None and name in everyone else [p.get(name, otherwise) for p in listed]
        for name, otherwise in (("novel", False), ("calibrated", True))
    )
    shown = listed[:MOST_PLACED]
    calibrated = [bool(p.get("calibrated", True)) for p in shown]
    return {
        "novel": int(np.sum(flags)),
        "judged": int(np.sum(judged)),
        "is_novel": [bool(p.get("novel")) if k else None for p, k in zip(shown, calibrated, strict=True)],
        "score": [digits(p.get("novelty_score"), 3) if k else None for p, k in zip(shown, calibrated, strict=True)],
        "confidence": [None if p.get("confidence") is None else percent(100 * p["confidence"]) for p in shown],
    }


def placed_right(
    chosen: NDArray[np.int64], own: NDArray[np.int64], found: NDArray[np.int64], truth: Sequence[int]
) -> int:
    """Clients put in a cluster where in training no true cluster was more frequent than their own of now."""
    trained = np.array(truth)
    counts = {cluster: Counter(trained[found == cluster].tolist()) for cluster in np.unique(chosen).tolist()}
    most = {cluster: max(there.values(), default=0) for cluster, there in counts.items()}
    pairs = zip(chosen.tolist(), own.tolist(), strict=True)
    return sum(mine in counts[cluster] and counts[cluster][mine] == most[cluster] for cluster, mine in pairs)
