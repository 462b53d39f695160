"""Declared studies say what the paper prints; verdicts, rows and pages are what their words say."""

from dataclasses import replace
from math import isclose
from typing import Any

import pytest

from fedflux.errors import FedfluxError
from fedflux.studies.paper import every_figure, fidelity_rows
from fedflux.studies.paper.contents import STUDIES, find_study
from fedflux.studies.paper.reading import plotted
from fedflux.studies.paper.study import Place, Runs, Study
from fedflux.studies.reproduce import listed
from fedflux.studies.reproduce.asking import PRESETS, ask, key, wanted_by
from fedflux.studies.reproduce.cells import wishes
from fedflux.studies.reproduce.outcome import Outcome, outcomes
from fedflux.studies.reproduce.tiers import EARLY, Wanted, narrowed

FLUX = Runs("mnist", "flux", (("px", 4), ("py", 4)))


def study(*places: Place, seeds: tuple[int, ...] = (42, 43)) -> Study:
    return Study("tab:made_up", "made up", "by hand", places=places, seeds=seeds)


def rows(runs: Runs, seeds: tuple[int, ...], **scores: Any) -> dict[str, dict[str, Any]]:
    """The same scores for every cell."""
    return {key(ask(runs, *one, seed)): {"validation": [], **scores} for seed in seeds for one in runs.grid}


def only(one: Study, kept: dict[str, dict[str, Any]]) -> Outcome:
    found = outcomes(one, PRESETS[:1], kept.get)
    assert len(found) == 1
    return found[0]


def test_all_tables_and_figures_are_listed() -> None:
    kinds = [one["kind"] for one in listed()]
    assert (kinds.count("table"), kinds.count("description"), kinds.count("figure")) == (22, 4, 9)
    assert len({one["name"] for one in listed()}) == 35


def test_every_printed_number_of_a_table_has_a_place() -> None:
    for name in {figure.table for figure in every_figure()}:
        printed = sorted(
            value
            for figure in every_figure()
            if figure.table == name
            for value in (figure.known, figure.test, figure.accuracy)
            if value is not None
        )
        own = [place for place in STUDIES[name].places if place.score != "log2_seconds"]
        assert sorted(place.paper for place in own if place.paper is not None) == printed, name
        assert len({(place.row, place.column) for place in STUDIES[name].places}) == len(STUDIES[name].places), name


def test_distances_and_times_have_places_too() -> None:
    printed = {value for data in ("mnist", "cifar10") for row in fidelity_rows(data, "pygx").values()
               for name, value in row.items() if name in ("max", "min", "mean", "std")}  # fmt: skip
    assert {place.paper for place in STUDIES["tab:eps_R1"].places} == printed
    times = [place for place in STUDIES["tab:n_client_all"].places if place.score == "log2_seconds"]
    assert {(place.row, place.column): place.paper for place in times}["FLUX", "100 clients, log2 seconds"] == 9.263
    assert len(times) == 12 * 4


def test_every_point_of_the_plots_has_a_place() -> None:
    points = sum(
        len(curve["mean"])
        for data in plotted()["levels"].values()
        for curves in data.values()
        for curve in curves.values()
    )
    assert len(STUDIES["fig:hetero"].places) == points
    for place in STUDIES["fig:stop_round"].places:
        assert place.paper == plotted()["cluster_round"][place.runs.dataset][int(place.x) - 1]
    means = [
        p.paper for p in STUDIES["fig:hetero"].places if (p.runs.dataset, p.score, p.row) == ("mnist", "test", "FLUX")
    ]
    assert isclose(sum(m for m in means if m) / 8, 94.0, abs_tol=0.05)  # tab:dataset_comparison


def test_a_place_is_a_mean_of_the_runs_that_its_scope_says() -> None:
    flux = {(p.column, p.row): p.runs for p in STUDIES["tab:dataset_comparison"].places}
    assert len(flux["MNIST, known", "FLUX"].grid) == 32
    assert {shift for shift, _ in flux["MNIST, test", "FLUX"].grid} == {"px", "py", "pxgy"}
    assert flux["CheXpert, known", "FLUX"].grid == (("none", 1), ("none", 2), ("none", 3))
    many = {(p.column, p.row): p.runs for p in STUDIES["tab:n_client_50"].places}["P(Y), test", "IFCA"]
    assert (many.grid, dict(many.settings)) == ((("py", 7),), {"clients": 50, "duplicate": 4})


def test_studies_share_cells() -> None:
    chosen = [narrowed(find_study(name), Wanted("full", presets=("default",))) for name in ("n_client_5", "N_clients")]
    apart, together = wishes(chosen[:1], ("default",)), wishes(chosen, ("default",))
    assert set(apart) <= set(together)
    assert len(together) < len(apart) + len(wishes(chosen[1:], ("default",)))


def test_the_papers_preset_is_a_column_of_flux_alone() -> None:
    found = wishes([narrowed(find_study("m11"), Wanted("full"))], PRESETS).values()
    assert {asked["algorithm"] for asked in found if "preset" in asked} == {"flux", "flux-prior"}
    assert len([a for a in found if a["algorithm"] == "flux"]) == 2 * len([a for a in found if a["algorithm"] == "cfl"])


def test_tiers_narrow_and_say_so() -> None:
    quick = narrowed(find_study("dataset_comparison"), Wanted("quick"))
    assert quick.seeds == (42,)
    assert {level for place in quick.places for level in place.runs.levels} >= set(EARLY)
    smoke = narrowed(find_study("dataset_comparison"), Wanted("smoke"))
    assert {place.runs.dataset for place in smoke.places} == {"digits"}
    assert all("digits in place of MNIST" in place.doubt for place in smoke.places)
    nih = narrowed(find_study("main_chex"), Wanted("full", datasets=("nih-cxr",), algorithms=("flux", "feroma")))
    assert {(p.runs.dataset, p.runs.algorithm) for p in nih.places} == {("nih-cxr", "flux"), ("nih-cxr", "feroma")}
    assert all(place.paper is None for place in nih.places if place.runs.algorithm == "feroma")
    with pytest.raises(FedfluxError, match="nothing of what is asked for"):
        narrowed(find_study("main_chex"), Wanted("full", datasets=("fmnist",)))
    with pytest.raises(FedfluxError, match="unknown tier"):
        Wanted("huge")


@pytest.mark.parametrize(
    ("known", "paper", "std", "verdict"),
    [
        ((90.0, 90.0), 89.6, None, "same"),  # within half a point
        ((90.0, 90.0), 89.0, None, "better"),
        ((90.0, 90.0), 91.0, None, "worse"),
        ((88.0, 92.0), 87.0, None, "same"),  # two standard errors: 2 · √8 / √2 = 4
        ((89.9, 90.1), 87.0, 5.0, "same"),  # 2 · 5 / √5 = 4.5
        ((89.9, 90.1), 87.0, 1.0, "better"),
    ],
)
def test_verdicts(known: tuple[float, float], paper: float, std: float | None, verdict: str) -> None:
    place = Place("FLUX", "known", "known", FLUX, paper, std)
    kept = {**rows(FLUX, (42,), known=known[0]), **rows(FLUX, (43,), known=known[1])}
    found = only(study(place), kept)
    assert (found.verdict, found.ours, found.seeds) == (verdict, sum(known) / 2, (42, 43))


def test_only_whole_seeds_count_and_the_rest_is_missing() -> None:
    place = Place("FLUX", "known", "known", FLUX, 90.0)
    kept = rows(FLUX, (42, 43), known=90.0)
    kept.pop(key(ask(FLUX, "py", 4, 43)))
    found = only(study(place), kept)
    assert (found.seeds, found.std, found.finished, found.planned) == ((42,), None, 3, 4)
    kept.pop(key(ask(FLUX, "px", 4, 42)))
    assert only(study(place), kept).verdict == "missing: 2 of 4 cells are finished"


def test_fewer_levels_are_no_mean_over_all_but_the_plots_have_them() -> None:
    runs = Runs("mnist", "flux", tuple((shift, level) for shift in ("px", "py") for level in (1, 2, 3)))
    some = {name: row for name, row in rows(runs, (42,), known=90.0).items() if "level=1" not in name}
    plain = Place("FLUX", "known", "known", runs, 80.0)
    found = only(study(plain), some)
    assert (found.levels, found.verdict) == (
        (2, 3), "not comparable: levels 2 and 3, the paper's is over levels 1–3",
    )  # fmt: skip
    shown = only(study(replace(plain, by_level={1: (60.0, 0.1), 2: (89.0, 0.1), 3: (91.0, 0.1)})), some)
    assert (shown.paper, shown.verdict) == (90.0, "same")
    above = only(study(replace(plain, paper_std=9.0, by_level={2: (88.0, 0.1), 3: (89.0, 0.1)})), some)
    assert (above.paper, above.verdict) == (88.5, "better")  # by the ± of these levels, not by that of all


def test_what_the_library_lacks_is_said() -> None:
    reasons = {place.missing for place in STUDIES["tab:ablation"].places}
    assert reasons == {"", "no setting leaves blocks out of the descriptor"}
    place = Place("FLUX", "known", "known", FLUX, 90.0, missing="no such setting")
    assert only(study(place), {}).verdict == "missing: no such setting"
    assert list(wanted_by(place, 42, "default")) == []


def test_a_threshold_is_read_off_fedavgs_curve() -> None:
    """C(r) fires after round 4, where A rises by less than T, and FLUX with clusters after round 4 is what counts."""
    runs = Runs("mnist", "flux", (("px", 5),))
    place = Place("FLUX", "T", "threshold:0.06", runs, 90.0)
    asked = list(wanted_by(place, 42, "default"))
    assert [one.get("cluster_round") for one in asked] == [None, 3, 4, 5, 6, 7, 8]
    kept: dict[str, dict[str, Any]] = {
        key(one): {"known": float(one.get("cluster_round", 0)), "validation": []} for one in asked
    }
    kept[key(asked[0])]["validation"] = [10.0, 30.0, 50.0, 55.0, 90.0, 90.0, 90.0, 90.0, 90.0, 90.0]
    assert only(study(place, seeds=(42,)), kept).ours == 4.0
    late = replace(place, score="threshold:0.0001")  # falls in round 6 first, where it gains nothing
    kept[key(asked[0])]["validation"][5] = 89.0
    assert only(study(late, seeds=(42,)), kept).ours == 6.0
