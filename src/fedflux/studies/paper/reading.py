"""The paper's figures as places: what each is a mean of, read off its scope."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from fedflux.studies.paper import Figure, every_figure
from fedflux.studies.paper.study import KNOWN_FREE, TEST_FREE, UNLEVELLED, Grid, Place, Runs

NAMES = {
    **{
        "fedavg": "FedAvg",
        "ifca": "IFCA",
        "fedrc": "FedRC",
        "fedem": "FedEM",
        "fesem": "FeSEM",
        "feddrift": "FedDrift",
    },
    **{"cfl": "CFL", "pfedme": "pFedMe", "apfl": "APFL", "atp": "ATP", "haccs": "HACCS", "flux": "FLUX"},
    **{"flux-prior": "FLUX-prior", "flux-soft": "FLUX-soft", "oracle": "oracle", "local": "local"},
    **{
        "feroma": "FEROMA",
        "fedper": "FedPer",
        "fedrep": "FedRep",
        "ditto": "Ditto",
        "pacfl": "PACFL",
        "fedbn": "FedBN",
    },
}
DATASETS = {
    **{"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "digits"},
    **{"chexpert": "CheXpert", "officehome": "Office-Home", "nih-cxr": "NIH ChestX-ray14"},
}
SHIFTS = {"px": "P(X)", "py": "P(Y)", "pygx": "P(Y|X)", "pxgy": "P(X|Y)"}
PHASES = {"known": "known", "test": "test", "accuracy": "accuracy"}
NO_TEST = "features cannot show P(Y|X): there is no test phase here"
HETEROGENEITY = {"low": 1, "medium": 2, "high": 3}
"""The levels of radiographs."""

Words = Callable[[Figure], str]
Settings = Callable[[Figure], Mapping[str, Any]]
Levels = Callable[[Figure], tuple[int, ...]]


def method(figure: Figure) -> str:
    """The line of a method."""
    return NAMES[figure.algorithm]


def dataset(figure: Figure) -> str:
    """The column of a dataset."""
    return DATASETS[figure.dataset or "mnist"]


def shift(figure: Figure) -> str:
    """The column of a shift."""
    return SHIFTS[figure.shift or ""]


def one(figure: Figure) -> str:
    """The only column of a table."""
    return ""


def nothing(figure: Figure) -> Mapping[str, Any]:
    """As by default."""
    return {}


def its_own(figure: Figure) -> tuple[int, ...]:
    """The levels that the paper states."""
    return figure.levels


def places(
    table: str,
    row: Words = method,
    column: Words = one,
    settings: Settings = nothing,
    levels: Levels = its_own,
    doubt: Words = one,
    missing: Words = one,
) -> tuple[Place, ...]:
    """All of a table; `settings` may name another method, too."""
    return tuple(
        Place(
            row=row(figure),
            column=", ".join(filter(None, (column(figure), PHASES[score]))),
            score=score,
            runs=Runs(
                figure.dataset or "mnist",
                settings(figure).get("algorithm", figure.algorithm),
                _grid(figure, score, levels(figure)),
                tuple(sorted((name, value) for name, value in settings(figure).items() if name != "algorithm")),
            ),
            paper=getattr(figure, score),
            paper_std=getattr(figure, f"{score}_std"),
            by_level=_by_level(figure, score),
            doubt=doubt(figure),
            missing=missing(figure) or _without_test(figure, score),
        )
        for figure in every_figure()
        if figure.table == table
        for score in _scores(figure)
    )


def _scores(figure: Figure) -> Iterator[str]:
    """What the table shows of a line: N/A is of what the method or the shift does not have, or was not run."""
    if figure.accuracy is not None:
        yield "accuracy"
        return
    if figure.algorithm not in KNOWN_FREE and not (figure.known is None and figure.test is not None):
        yield "known"
    hidden = figure.test is None and "pygx" in (figure.shift or "").split("+")
    if figure.algorithm not in TEST_FREE and not hidden and not (figure.test is None and figure.known is not None):
        yield "test"


def _without_test(figure: Figure, score: str) -> str:
    """The paper prints a test phase of mixes with P(Y|X)."""
    return NO_TEST if score == "test" and "pygx" in (figure.shift or "").split("+") else ""


def _grid(figure: Figure, score: str, levels: tuple[int, ...]) -> Grid:
    if figure.dataset == "chexpert":
        named = [level for word, level in HETEROGENEITY.items() if figure.setting.startswith(word)]
        return tuple(("none", level) for level in named or HETEROGENEITY.values())
    if figure.dataset == "officehome":
        return (("none", UNLEVELLED),)
    over = figure.over or ("px", "py", "pygx", "pxgy")
    seen = figure.test_over or tuple(name for name in over if name != "pygx")
    shifts = (figure.shift,) if figure.shift else seen if score == "test" else over
    return tuple((name, level) for name in shifts for level in ((figure.at[name],) if figure.at else levels))


def _by_level(figure: Figure, score: str) -> dict[int, tuple[float, float]]:
    """What the plots show of a mean over shifts and levels."""
    if figure.table != "tab:dataset_comparison":
        return {}
    found = plotted()["levels"].get(figure.dataset, {}).get(score, {}).get(figure.algorithm)
    return {} if found is None else dict(enumerate(zip(found["mean"], found["std"], strict=True), start=1))


@cache
def plotted() -> dict[str, Any]:
    """The paper's plots as data."""
    found: dict[str, Any] = json.loads(
        files("fedflux.studies.paper").joinpath("levels.json").read_text(encoding="utf-8")
    )
    return found
