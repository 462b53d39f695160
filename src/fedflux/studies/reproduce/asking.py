"""What a cell is asked for: plain settings, and one line of text that names them whatever the data or the machine."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from fedflux.algorithms import READS
from fedflux.algorithms.flux.trigger import FIRST_ROUND, LAST_SHARE
from fedflux.studies.paper.study import UNLEVELLED, Place, Runs

DEFAULT, PAPER = "default", "paper"
PRESETS = (DEFAULT, PAPER)
MINDS = frozenset(name for name, read in READS.items() if "sharing" in read)
"""Methods that --preset paper makes another: FLUX in all its forms. It changes none of the baselines."""
DISTANCES = "fidelity"
"""What stands in the place of a method where distances are measured and nothing is compared."""
ROUNDS = 10
"""Of the datasets on which the threshold of C(r) is varied."""

Asked = Mapping[str, Any]


def presets_of(algorithm: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that a method has."""
    return tuple(name for name in wanted if algorithm in MINDS or name == DEFAULT)


def ask(runs: Runs, shift: str, level: int, seed: int, preset: str = DEFAULT) -> dict[str, Any]:
    """The settings of one run."""
    asked = {"dataset": runs.dataset, "algorithm": runs.algorithm, "shift": shift, **dict(runs.settings)}
    if level != UNLEVELLED:
        asked["level"] = level
    if preset == PAPER and runs.algorithm in MINDS:
        asked["preset"] = PAPER
    return {**asked, "seed": seed}


def key(asked: Asked) -> str:
    """`algorithm=flux dataset=mnist level=4 seed=42 shift=px`: the same for everyone who asks for the same."""
    return " ".join(f"{name}={_text(value)}" for name, value in sorted(asked.items()))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def wanted_by(place: Place, seed: int, preset: str) -> Iterator[dict[str, Any]]:
    """All runs that one seed of a place needs."""
    if place.missing or place.score == "samples":
        return
    for shift, level in place.runs.grid:
        if place.score.startswith("threshold:"):
            yield from (asked for _, asked in of_threshold(place.runs, shift, level, seed, preset))
        else:
            yield ask(place.runs, shift, level, seed, preset)


def of_threshold(runs: Runs, shift: str, level: int, seed: int, preset: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """FedAvg, as round 0, and FLUX with clusters after every round in which C(r) may fire."""
    settings = dict(runs.settings)
    fedavg = Runs(runs.dataset, "fedavg", runs.grid, runs.settings)
    yield 0, ask(fedavg, shift, level, seed)
    rounds = int(settings.get("rounds", ROUNDS))
    for round in range(FIRST_ROUND, max(FIRST_ROUND, ceil(LAST_SHARE * rounds)) + 1):
        stopped = Runs(runs.dataset, "flux", runs.grid, tuple(sorted({**settings, "cluster_round": round}.items())))
        yield round, ask(stopped, shift, level, seed, preset)
