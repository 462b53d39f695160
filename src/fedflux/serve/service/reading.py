"""What callers send, read with suspicion: JSON as plain values, numbers that are finite, lists of the right length."""

from collections.abc import Mapping
from json import dumps, loads
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedflux.clustering.placement.misfit import Misfit
from fedflux.clustering.placement.offer import Scores
from fedflux.serve.service.gate import RefusedError, plain

HUGE = 1e12
"""Beyond any log-likelihood, count or misfit that data have."""


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        told = loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "the body is no JSON") from error
    if not isinstance(told, dict):
        raise RefusedError(400, "the body is no JSON object")
    return told


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def as_json(answer: Any) -> bytes:
    """An answer in ASCII, whatever names hold."""
    return dumps(answer, allow_nan=False, separators=(",", ":")).encode()


def number(told: Mapping[str, Any], name: str, least: float, most: float = HUGE) -> float:
    """A finite number within bounds."""
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise RefusedError(422, f"{name} must be a number from {least:g} to {most:g}")
    return float(value)


def scores_of(told: Any, clusters: int) -> Scores:
    """The scores that a client computed of its data."""
    if not isinstance(told, dict):
        raise RefusedError(422, "scores must be an object with likelihood, worth and misfit")
    misfit = told.get("misfit")
    if not isinstance(misfit, dict):
        raise RefusedError(422, "scores.misfit must be an object with mean, variance and count")
    found = (number(misfit, "mean", 0), number(misfit, "variance", 0), number(misfit, "count", 0))
    likelihood = _numbers(told.get("likelihood"), clusters)
    worth = number(told, "worth", 1e-6)
    return Scores(likelihood, worth, Misfit(*found))


def _numbers(values: Any, count: int) -> NDArray[np.float64]:
    if not isinstance(values, list) or len(values) != count:
        raise RefusedError(422, f"scores.likelihood must be a list of {count} numbers, one a cluster")
    return np.array([number({"likelihood": one}, "likelihood", -HUGE) for one in values], dtype=np.float64)


def scores_as_plain(scores: Scores) -> dict[str, Any]:
    """As a client sends them."""
    misfit = {name: getattr(scores.misfit, name) for name in ("mean", "variance", "count")}
    return {"likelihood": scores.likelihood.tolist(), "worth": scores.worth, "misfit": misfit}


def check_bundle(told: Mapping[str, Any], served: str) -> None:
    """Scores are of one bundle's clusters: those of another are not taken for this one's."""
    named = told.get("bundle")
    if named is not None and named != served:
        raise RefusedError(409, f"bundle {plain(named)} is not served any more: fetch {served} and score again")
