"""What a comparison is asked for: the grid, from flags over a config file over defaults, each part checked."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import fullmatch
from typing import Any, TypeVar

from fedflux.algorithms import ALGORITHMS
from fedflux.algorithms.registry import is_offered
from fedflux.data.shifts.patterns import MIXES, SHIFTS
from fedflux.errors import FedfluxError
from fedflux.runs.config import read_config_file
from fedflux.runs.presets import usual

T = TypeVar("T")
SIMULATED = "px,py,pygx,pxgy"
OF_OWN_DATA = "none"
"""The shifts of data that is not to be shifted."""
DEFAULTS: dict[str, Any] = {
    "algorithms": "fedavg,flux",
    "shifts": None,
    "levels": "4",
    "seeds": "42",
    "jobs": 1,
    "reference": None,
    "out": "runs/compare",
}


FOR_SOME_MODELS = frozenset(name for name, kind in ALGORITHMS.items() if kind.needs_batch_norm)
"""Methods that cannot train every model: `all` is without them, so that it can be asked of any; they are named."""


@dataclass(frozen=True)
class Comparison:
    """Algorithms × shifts × levels × seeds, and how to run them."""

    algorithms: list[str]
    shifts: list[str]
    levels: list[int]
    seeds: list[int]
    jobs: int
    reference: str
    out: Path


def comparison(
    given: Mapping[str, Any], told: Mapping[str, Any], config_file: Path | None
) -> tuple[Comparison, dict[str, Any]]:
    """The grid, and the settings that all its runs share."""
    from_file = read_config_file(config_file) if config_file else {}
    flags = {key: value for key, value in given.items() if value is not None}
    grid = {**DEFAULTS, **{key: value for key, value in from_file.items() if key in DEFAULTS}, **flags}
    others = {**{key: value for key, value in from_file.items() if key not in DEFAULTS}, **told}
    if grid["shifts"] is None:
        plain = usual(others.get("dataset"), others.get("preset"))["shift"] == OF_OWN_DATA
        grid["shifts"] = OF_OWN_DATA if plain else SIMULATED
    algorithms = names(grid["algorithms"], list(ALGORITHMS), "algorithms", is_offered, left_out=FOR_SOME_MODELS)
    if not isinstance(grid["jobs"], int) or grid["jobs"] < 1:
        raise FedfluxError(f"--jobs {grid['jobs']}: give 1 or more")
    return Comparison(
        algorithms,
        names(grid["shifts"], [*SHIFTS, *MIXES], "shifts"),
        numbers(grid["levels"], "levels"),
        numbers(grid["seeds"], "seeds"),
        grid["jobs"],
        pick_reference(grid["reference"], algorithms),
        Path(grid["out"]),
    ), others


def names(
    told: str | list[str],
    known: Sequence[str],
    kind: str,
    others: Callable[[str], bool] = lambda name: False,
    left_out: Collection[str] = (),
) -> list[str]:
    """`a,b` or `all` or `all,c` or a list, each checked, none twice; `others` are known by other means."""
    everything = [name for name in known if name not in left_out]
    given = [name.strip() for name in (told if isinstance(told, list) else told.split(",")) if name.strip()]
    chosen = [one for name in given for one in (everything if name == "all" else [name])]
    for name in chosen:
        if name not in known and not others(name):
            raise FedfluxError(f"--{kind} '{name}' is unknown: choose from {', '.join(known)}, or all")
    return _once(chosen, kind)


def numbers(told: str | int | list[int], kind: str) -> list[int]:
    """`42`, `42-46`, `1,3,5-8`, or a list."""
    text = ",".join(map(str, told)) if isinstance(told, list) else str(told)
    chosen: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        match = fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None:
            raise FedfluxError(f"--{kind} '{text}' does not fit: give numbers and ranges such as 1,3 or 42-46")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise FedfluxError(f"--{kind} '{part}' is no range: give the lower number first")
        if high - low >= 10_000:
            raise FedfluxError(f"--{kind} '{part}': give 10,000 at most")
        chosen += range(low, high + 1)
    return _once(chosen, kind)


def _once(chosen: list[T], kind: str) -> list[T]:
    unique = list(dict.fromkeys(chosen))
    if not unique:
        raise FedfluxError(f"--{kind} is empty")
    return unique


def pick_reference(told: str | None, algorithms: Sequence[str]) -> str:
    """The algorithm that others are compared with: the one asked for, else fedavg, else the first."""
    if told is not None and told not in algorithms:
        raise FedfluxError(f"--reference {told} is not among the algorithms {', '.join(algorithms)}")
    return told or ("fedavg" if "fedavg" in algorithms else algorithms[0])
