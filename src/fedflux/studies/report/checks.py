"""What the files of a run must hold to be shown; files that a person or a fault has changed are told by one line."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.runs.storage.folder import CONFIG_FILE, RESULT_FILE, ROUNDS_FILE, SAMPLES_FILE
from fedflux.studies.summary import WORK

TEXTS = ("algorithm", "dataset", "shift", "group")
PLACES = ("level", "seed")
PLACED_BY = ("distances", "posterior")
"""What a client is placed by: runs have one of them, or both."""
FIGURES = (
    *("known", "known_worst", "known_quantile10", "test", "test_worst", "test_quantile10", "pairs_right", "ari", "nmi"),
    *("unseen", "unseen_worst", "unseen_quantile10"),
    *("clusters_found", "clusters_true", "cluster_round", "bytes_up", "bytes_down", *WORK),
    *("seconds", "seconds_training", "seconds_descriptor", "seconds_clustering"),
)


def checked_result(result: dict[str, Any] | None, clients: Any) -> dict[str, Any]:
    """A result whose figures are numbers and whose lists have an entry a client."""
    if result is None:
        raise FedfluxError(f"{RESULT_FILE} is no JSON object")
    for key in FIGURES:
        if result.get(key) is not None and not _is_number(result[key]):
            raise FedfluxError(f"{RESULT_FILE}: {key} is no number")
    assignment = result.get("assignment")
    if not _is_list(assignment, int) or not assignment:
        raise FedfluxError(f"{RESULT_FILE} has no assignment of clients to clusters")
    count = clients if isinstance(clients, int) else len(assignment)
    whole, scores = ("assignment", "truth", "test_truth"), ("known_per_client", "test_per_client")
    for key, kind in (*((key, int) for key in whole), *((key, float) for key in scores)):
        values = result.get(key)
        if values is not None and not (_is_list(values, kind) and len(values) == count):
            raise FedfluxError(f"{RESULT_FILE}: {key} has not one number for each of {count} clients")
    _check_names(result, "client_names", count)
    _check_names(result, "class_names", None)
    for key in ("score", "no_test_phase"):
        if not isinstance(result.get(key), str | None):
            raise FedfluxError(f"{RESULT_FILE}: {key} is no text")
    _check_placements(result, "test_placements", range(count))
    _check_placements(result, "unseen_placements", range(count, count + _held_out(result)))
    return result


def _check_names(result: dict[str, Any], key: str, count: int | None) -> None:
    names = result.get(key)
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FedfluxError(f"{RESULT_FILE}: {key} is no list of names")
    if count is not None and len(names) != count:
        raise FedfluxError(f"{RESULT_FILE}: {len(names)} {key} for {count} clients")


def _held_out(result: dict[str, Any]) -> int:
    """How many clients were held out of training; all that is said of them one by one has as many entries."""
    kinds: dict[str, tuple[type, ...]] = {"per_client": (int, float), "truth": (int,), "names": (str,)}
    told = {f"unseen_{name}": kind for name, kind in kinds.items() if result.get(f"unseen_{name}") is not None}
    for key, kind in told.items():
        if not isinstance(result[key], list) or not all(v is None or type(v) in kind for v in result[key]):
            raise FedfluxError(f"{RESULT_FILE}: {key} is no list with an entry for each client that was held out")
    counts = {key: len(result[key]) for key in told}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{count} in {key}" for key, count in counts.items())
        raise FedfluxError(f"{RESULT_FILE}: clients that were held out are {words}")
    return next(iter(counts.values()), 0)


def _check_placements(result: dict[str, Any], key: str, clients: range) -> None:
    """Every client is placed in one of the clusters that it has distances to, or probabilities of."""
    placed = result.get(key)
    if placed is None:
        return
    if not isinstance(placed, list) or not all(isinstance(place, dict) for place in placed):
        raise FedfluxError(f"{RESULT_FILE}: {key} is no list of placements")
    kinds = {tuple(name for name in PLACED_BY if name in place) for place in placed}
    lengths = {len(place[name]) for place in placed for name in PLACED_BY if isinstance(place.get(name), list)}
    for place in placed:
        fault = _placement_fault(place, clients)
        if fault is None and (len(kinds) > 1 or len(lengths) > 1):
            fault = "is placed among other clusters than the others"
        if fault is not None:
            raise FedfluxError(f"{RESULT_FILE}: {key}: client {place.get('client')!r} {fault}")


def _placement_fault(place: dict[str, Any], clients: range) -> str | None:
    """What is wrong with where a client was placed; whoever did not answer has nothing in place of numbers."""
    if type(place.get("client")) is not int or place["client"] not in clients:
        return f"is none of {clients.start} to {clients.stop - 1}" if len(clients) else "is none of those held out"
    told = [place[name] for name in PLACED_BY if name in place]
    if not told or not all(_is_list(values, float) for values in told):
        return "has neither distances nor a posterior"
    if type(place.get("cluster")) is not int or not 0 <= place["cluster"] < min(map(len, told)):
        return f"is placed in cluster {place.get('cluster')!r}, which is none"
    known = [value for value in place.get("posterior", ()) if value is not None]
    least = 0.0 if "distances" in place else 0.9  # among a few clusters, all far away, nothing may be left of it
    if known and not (min(known) >= 0 and least <= sum(known) < 1.1):
        return "has a posterior that is no distribution"
    if not all(type(place.get(name, True)) is bool for name in ("novel", "calibrated")):
        return "is neither novel nor not"
    scores = [place.get(name) for name in ("novelty_score", "confidence") if "novel" in place]
    return None if all(score is None or _is_number(score) for score in scores) else "has a score that is no number"


def checked_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the summaries that says which cell it is."""
    for key in TEXTS:
        if not isinstance(row[key], str):
            raise FedfluxError(f"{CONFIG_FILE} has no {key}")
    for key in PLACES:
        if not _is_number(row[key]):
            raise FedfluxError(f"{CONFIG_FILE} has no {key}")
    for key in ("clients", "participation"):
        if row[key] is not None and not _is_number(row[key]):
            raise FedfluxError(f"{CONFIG_FILE}: {key} is no number")
    return row


def checked_rounds(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """Lines of the round log, each with its number and numbers by client."""
    for place, line in enumerate(lines, start=1):
        whole = isinstance(line, dict) and isinstance(line.get("round"), int)
        if not whole or not all(
            _is_table(line.get(key, {})) for key in ("validation", "bytes_up", "bytes_down", "seconds")
        ):
            raise FedfluxError(f"{ROUNDS_FILE}: line {place} is no round")
        if not all(key.isdecimal() for key in line.get("validation", {})):
            raise FedfluxError(f"{ROUNDS_FILE}: line {place} names a client that is none")
    return list(lines)


def checked_samples(arrays: dict[str, NDArray[Any]] | None, clients: int) -> dict[str, NDArray[Any]] | None:
    """Images (uint8, height × width × 1 or 3) with client and label each."""
    if arrays is None:
        return None
    missing = [key for key in ("client", "label", "image") if key not in arrays]
    if missing:
        raise FedfluxError(f"{SAMPLES_FILE} has no {', '.join(missing)}")
    owner, label, image = arrays["client"], arrays["label"], arrays["image"]
    if image.ndim != 4 or image.dtype != np.uint8 or image.shape[-1] not in (1, 3):
        raise FedfluxError(f"{SAMPLES_FILE} holds no images")
    if not owner.shape == label.shape == image.shape[:1] or {owner.dtype.kind, label.dtype.kind} - set("iu"):
        raise FedfluxError(f"{SAMPLES_FILE} has not one client and one label for each image")
    if len(owner) and not 0 <= owner.min() <= owner.max() < clients:
        raise FedfluxError(f"{SAMPLES_FILE} holds images of client {owner.max()}, but there are {clients} clients")
    return arrays


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(values: Any, kind: type) -> bool:
    """Whether it is a list of whole numbers, or of numbers and nothing."""
    if not isinstance(values, list):
        return False
    return all(type(v) is int if kind is int else v is None or _is_number(v) for v in values)


def _is_table(values: Any) -> bool:
    return isinstance(values, Mapping) and all(v is None or _is_number(v) for v in values.values())
