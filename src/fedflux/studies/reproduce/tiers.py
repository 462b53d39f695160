"""How much of a study is run: tiers, and what somebody asks for instead."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedflux.algorithms import ALGORITHMS
from fedflux.errors import FedfluxError, unknown
from fedflux.studies.paper.reading import DATASETS, NAMES
from fedflux.studies.paper.study import KNOWN_FREE, TEST_FREE, Place, Runs, Study
from fedflux.studies.reproduce.asking import DISTANCES, PRESETS

TIERS = ("smoke", "quick", "full")
EARLY = (4, 8)
"""Levels of an early view."""
TINY: dict[str, Any] = {"clients": 6, "rounds": 4}
TINY_SHIFTS = frozenset({"px", "pxgy"})
TINY_METHODS = frozenset({"fedavg", "flux", "flux-soft", "flux-dynamic", DISTANCES})
TINY_DATA = "digits"
SHIFTED = frozenset({"mnist", "fmnist", "cifar10", "cifar100"})
STAND_INS = {"nih-cxr": "chexpert", "digits": "mnist"}
"""Data that takes the place of other data, when it is asked for."""


@dataclass(frozen=True)
class Wanted:
    """What of a study is asked for; None is what the tier says."""

    tier: str = "quick"
    datasets: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] | None = None
    levels: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    presets: tuple[str, ...] = PRESETS
    rows: tuple[str, ...] | None = None
    """Words, one of which the name of a row has."""

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("tier", (self.tier,), TIERS),
            ("preset", self.presets, PRESETS),
            ("algorithm", self.algorithms or (), ALGORITHMS),
            ("dataset", self.datasets or (), DATASETS),
        ):
            for name in given:
                if name not in known:
                    raise unknown(kind, name, known)


def narrowed(study: Study, wanted: Wanted) -> Study:
    """The study with the places, levels and seeds that are asked for, saying of each place what is not the paper's."""
    places: Iterable[Place] = study.places
    if wanted.algorithms is not None and study.rows_are_methods:
        places = [*places, *_other_methods(study, wanted.algorithms)]
    places = [place for place in places if _is_wanted(place, study, wanted)]
    places = [_on_data(place, wanted) for place in places]
    levels = _levels(study, wanted)
    if levels is not None:
        places = [_at_levels(place, levels) for place in places if set(place.runs.levels) & set(levels)]
    if wanted.tier == "smoke":
        places = [_tiny(place, study) for place in places]
    seeds = wanted.seeds or (study.seeds if wanted.tier == "full" else study.seeds[:1])
    if study.kind != "description" and not places:
        raise FedfluxError(f"{study.name} has nothing of what is asked for: leave out a flag")
    return replace(study, places=tuple(places), seeds=seeds)


def _other_methods(study: Study, algorithms: tuple[str, ...]) -> list[Place]:
    """Rows of methods that the paper does not have here, as its own FLUX is run."""
    there = {place.runs.algorithm for place in study.places}
    return [
        replace(
            place,
            row=NAMES[name],
            runs=replace(place.runs, algorithm=name),
            paper=None,
            paper_std=None,
            by_level={},
        )
        for name in algorithms
        if name not in there and name in NAMES
        for place in study.places
        if place.runs.algorithm == "flux"
        and not (place.score == "test" and name in TEST_FREE)
        and not (place.score == "known" and name in KNOWN_FREE)
    ]


def _is_wanted(place: Place, study: Study, wanted: Wanted) -> bool:
    runs, tiny = place.runs, wanted.tier == "smoke"
    if wanted.algorithms is not None and runs.algorithm != DISTANCES and runs.algorithm not in wanted.algorithms:
        return False
    if wanted.algorithms is None and tiny and runs.algorithm not in TINY_METHODS:
        return False
    if wanted.rows is not None and not any(words in place.row for words in wanted.rows):
        return False
    if wanted.datasets is not None:
        return runs.dataset in {STAND_INS.get(name, name) for name in wanted.datasets} | set(wanted.datasets)
    return not tiny or runs.dataset == study.datasets[0]


def _on_data(place: Place, wanted: Wanted) -> Place:
    """On data that takes the place of the paper's."""
    asked = {STAND_INS[name]: name for name in wanted.datasets or () if name in STAND_INS}
    if wanted.tier == "smoke" and place.runs.dataset in SHIFTED and wanted.datasets is None:
        asked[place.runs.dataset] = TINY_DATA
    instead = asked.get(place.runs.dataset)
    if instead is None or place.runs.dataset in (wanted.datasets or ()):
        return place
    words = f"{DATASETS[instead]} in place of {DATASETS[place.runs.dataset]}"
    return replace(place, runs=replace(place.runs, dataset=instead), doubt=_and(words, place.doubt), by_level={})


def _levels(study: Study, wanted: Wanted) -> tuple[int, ...] | None:
    """The levels to which a study is narrowed; None where it is not."""
    if wanted.levels is not None or wanted.tier == "full" or not study.levelled:
        return wanted.levels
    there = sorted({level for place in study.places for level in place.runs.levels})
    usual = [level for level in (EARLY[:1] if wanted.tier == "smoke" else EARLY) if level in there]
    ends = there[:1] if wanted.tier == "smoke" else [there[0], there[-1]]
    return tuple(usual or dict.fromkeys(ends))


def _at_levels(place: Place, levels: tuple[int, ...]) -> Place:
    """Shifts that have several levels keep those that are asked for; one without a level stays."""
    grid = tuple((shift, level) for shift, level in place.runs.grid if level in levels)
    return place if grid == place.runs.grid else _over(place, grid)


def _tiny(place: Place, study: Study) -> Place:
    """A run of a second: fewer clients, rounds and shifts."""
    grid = tuple(one for one in place.runs.grid if one[0] in TINY_SHIFTS) or place.runs.grid
    settings = {**dict(place.runs.settings), **TINY, **study.smoke}
    runs = Runs(place.runs.dataset, place.runs.algorithm, grid, tuple(sorted(settings.items())))
    return replace(place, runs=runs, doubt=_and("tier smoke", place.doubt), whole=place.whole or place.runs.levels)


def _over(place: Place, grid: tuple[tuple[str, int], ...]) -> Place:
    return replace(place, runs=replace(place.runs, grid=grid), whole=place.whole or place.runs.levels)


def _and(first: str, second: str) -> str:
    return "; ".join(filter(None, (first, second)))
