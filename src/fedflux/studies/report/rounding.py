"""Numbers with as many digits as a reader can use: the page stays small, and equal runs give equal text."""

from math import isfinite
from typing import Any


def percent(value: Any) -> Any:
    """Two decimals, in lists too; what is no finite number becomes None."""
    if isinstance(value, list | tuple):
        return [percent(item) for item in value]
    if value is None or not isfinite(value):
        return None
    return round(float(value), 2) + 0.0


def digits(value: Any, count: int) -> Any:
    """Significant digits, in lists and mappings too; integers, words and None stay as they are."""
    if isinstance(value, dict):
        return {key: digits(item, count) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [digits(item, count) for item in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.{count}g}") + 0.0 if isfinite(value) else None
