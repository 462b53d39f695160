"""A line of the round log: what one round did, as it is written and summed up later."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedflux.algorithms import RoundMetrics
from fedflux.files import jsonable


def round_record(round: int, metrics: RoundMetrics) -> dict[str, Any]:
    """Percentages, clients by id."""
    record: dict[str, Any] = jsonable(
        {
            "round": round,
            "validation": {k: 100 * v for k, v in metrics.validation.items()},
            "bytes_up": metrics.up,
            "bytes_down": metrics.down,
            "seconds": metrics.seconds,
            "work": metrics.work,
            **({"parts": metrics.parts} if metrics.parts else {}),
            "events": metrics.events,
        }
    )
    return record


def mean_validation(record: Mapping[str, Any]) -> float:
    """The mean validation score, in percent, of those who took part in a round; NaN where nobody can be scored."""
    scores = [score for score in record["validation"].values() if score is not None]
    return float(np.mean(scores)) if scores else float("nan")
