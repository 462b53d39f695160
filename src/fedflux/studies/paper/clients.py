"""Numbers of clients: the tables of 5 to 100, of 1,200, participation, and the plot of accuracy and time."""

from collections.abc import Iterator
from dataclasses import replace
from math import log2
from typing import Any

from fedflux.studies.paper import Figure
from fedflux.studies.paper.figure import TIME
from fedflux.studies.paper.reading import NAMES, places, plotted, shift
from fedflux.studies.paper.study import Place, Runs, Study

FIXED = {"px": 3, "py": 7, "pygx": 5, "pxgy": 6}
"""One level for each shift: 4 rotations, 4 classes, a pool of 5, 6 classes."""
REPEATED = {5: 1, 25: 2, 50: 4, 100: 8}
SEEN = ("px", "py", "pxgy")
OTHER_MACHINE = "seconds of another machine"
PROTOCOL = "MNIST; P(X) of 4 rotations, P(Y) of 4 classes, P(Y|X) of a pool of 5, P(X|Y) of 6 classes"


def settings(figure: Figure) -> dict[str, Any]:
    """Clients and how often each holds its data."""
    found: dict[str, Any] = {"clients": figure.clients}
    return {**found, "duplicate": figure.repeated} if figure.repeated > 1 else found


def by_number() -> tuple[Place, ...]:
    """tab:n_client_all with its columns of times."""
    found = places("tab:n_client_all", column=lambda figure: f"{figure.clients} clients", settings=settings)
    times = {(f.algorithm, f.clients): f.more.get(TIME) for f in _figures()}
    slow = [
        replace(
            place,
            column=place.column.replace("known", "log2 seconds").replace("test", "log2 seconds"),
            score="log2_seconds",
            paper=times[place.runs.algorithm, dict(place.runs.settings)["clients"]],
            paper_std=None,
            doubt=OTHER_MACHINE,
        )
        for place in found
        if place.score == ("test" if place.runs.algorithm == "atp" else "known")
    ]
    return (*found, *slow)


def _figures() -> list[Figure]:
    from fedflux.studies.paper import every_figure

    return [figure for figure in every_figure() if figure.table == "tab:n_client_all"]


def plot() -> Iterator[Place]:
    """Accuracy and seconds by number of clients."""
    numbers, titles = plotted()["clients"]["numbers"], {"known": "known association", "test": "test phase"}
    for score, curves in ((key, plotted()["clients"][key]) for key in ("known", "test", "seconds")):
        for method, curve in curves.items():
            for clients, mean, std in zip(numbers, curve["mean"], curve["std"], strict=True):
                over = SEEN if score == "test" or method == "atp" else tuple(FIXED)
                more = (("duplicate", REPEATED[clients]),) if REPEATED[clients] > 1 else ()
                yield Place(
                    row=NAMES[method],
                    column=f"{clients} clients, {score}",
                    score=score,
                    runs=Runs("mnist", method, tuple((s, FIXED[s]) for s in over), (("clients", clients), *more)),
                    paper=mean,
                    paper_std=std,
                    doubt=OTHER_MACHINE if score == "seconds" else "",
                    panel=titles.get(score, "seconds"),
                    x=clients,
                )


def _table(clients: int, name: str, smoke: int = 6) -> Study:
    copies = f", local data held {REPEATED[clients]} times" if REPEATED[clients] > 1 else ""
    return Study(
        name,
        f"All methods, {clients} clients, by shift",
        f"{PROTOCOL}; {clients} clients{copies}; seeds 42 to 46.",
        places=places(name, column=shift, settings=settings),
        smoke={"clients": smoke, "duplicate": 1},
        rows_are_methods=True,
    )


def _large(figure: Figure) -> str:
    return "how many rounds, and how often clients hold their data, is not stated"


def _small(figure: Figure) -> str:
    return "the paper states neither the phase nor the number of clients"


STUDIES = (
    Study(
        "tab:n_client_all",
        "All methods, 5 to 100 clients, means over shifts, and time",
        f"{PROTOCOL}; test phases over three of them; local data held 1, 2, 4, 8 times; seeds 42 to 46. "
        f"Times are log2 of the seconds of a run (FLUX, 100 clients: {2 ** log2(517):.0f} seconds in the plot's data).",
        places=by_number(),
        smoke={"clients": 6, "duplicate": 1},
        rows_are_methods=True,
    ),
    _table(5, "tab:n_client_5"),
    _table(25, "tab:n_client_25"),
    _table(50, "tab:n_client_50"),
    _table(100, "tab:n_client_100", 12),
    Study(
        "tab:scaling_1200",
        "FedAvg and FLUX, 1,200 clients, a fifth of them a round",
        f"{PROTOCOL}; 1,200 clients, participation 0.2; here 10 rounds, and the 50 images of a client held 96 times, "
        "so that all have about 4,800 as in the other tables.",
        places=places(
            "tab:scaling_1200",
            column=shift,
            settings=lambda figure: {"clients": 1200, "participation": figure.participation, "duplicate": 96},
            doubt=_large,
        ),
        smoke={"clients": 30, "duplicate": 1},
        rows_are_methods=True,
    ),
    Study(
        "tab:partial_participation",
        "FLUX and FedAvg with fewer clients a round",
        f"{PROTOCOL}; here 20 clients (the paper's 'about 4' at 0.2), each holding its data twice, and known "
        "association.",
        places=places(
            "tab:partial_participation",
            row=lambda figure: f"participation {figure.participation:g}",
            column=lambda figure: NAMES[figure.algorithm],
            settings=lambda figure: {"clients": 20, "participation": figure.participation, "duplicate": 2},
            doubt=_small,
        ),
        smoke={"clients": 8, "duplicate": 1},
    ),
    Study(
        "fig:N_clients",
        "Accuracy and time by number of clients",
        f"{PROTOCOL}; local data held 1, 2, 4, 8 times; seeds 42 to 46. Seconds of a run; the paper's are of A6000 "
        "cards.",
        kind="figure",
        places=tuple(plot()),
        drawn="lines",
        x_label="clients",
        smoke={"clients": 6, "duplicate": 1},
        rows_are_methods=True,
    ),
)
