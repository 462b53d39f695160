"""A line of the round log: what one round did, as it is written and summed up later."""

from typing import Any

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
