"""The paper's tables: figures typed from its text, tables that agree, and scopes that claim no more than it says."""

import json
from collections import Counter
from dataclasses import FrozenInstanceError
from importlib.resources import files
from typing import Any

import pytest
from tests.runs.making import strict_json

from fedflux.clustering import CLUSTERERS
from fedflux.data.shifts import levels
from fedflux.data.shifts.patterns import MIXES, SHIFTS
from fedflux.studies.paper import Figure, every_figure, figures

ALGORITHMS = {
    *("fedavg", "ifca", "fesem", "cfl", "fedem", "fedrc", "feddrift", "apfl", "pfedme", "atp", "haccs"),
    *("flux", "flux-prior", "flux-soft"),
}
SHIFTED = ("mnist", "fmnist", "cifar10", "cifar100")
DATASETS = (*SHIFTED, "chexpert", "officehome")
FOUR = ("px", "py", "pygx", "pxgy")
THREE = ("px", "py", "pxgy")
FIXED = {"px": 3, "py": 7, "pygx": 5, "pxgy": 6}
LINES = {  # lines × cells of each printed table
    "tab:dataset_comparison": 12 * 6,
    "tab:comparison_haccs": 4 * 3 * 4,
    "tab:n_client_5": 12 * 4,
    "tab:n_client_25": 12 * 4,
    "tab:n_client_50": 12 * 4,
    "tab:n_client_100": 12 * 4,
    "tab:n_client_all": 12 * 4,
    "tab:m11": 12 * 4,
    "tab:m12": 12 * 4,
    "tab:m13": 12 * 4,
    "tab:scaling_1200": 2 * 4,
    "tab:partial_participation": 2 * 5,
    "tab:dp_effect": 5,
    "tab:flux_soft": 12,
    "tab:datasize_combined": 10 * 4,
    "tab:lowdata_combined": 2 * 4,
    "tab:main_chex": 11 * 3,
    "tab:ablation_clustering_mnist": 4,
    "tab:ablation_clustering_cifar": 2,
    "tab:ablation_random": 8 * 3,
    "tab:ablation": 12,
}


def one(table: str, algorithm: str, **wanted: Any) -> Figure:
    """The only figure of a table that fits."""
    found = [
        figure
        for figure in every_figure()
        if (figure.table, figure.algorithm) == (f"tab:{table}", algorithm)
        and all(figure.as_dict()[key] == value for key, value in wanted.items())
    ]
    assert len(found) == 1
    return found[0]


def scores(figure: Figure) -> tuple[float | None, ...]:
    return figure.known, figure.known_std, figure.test, figure.test_std


@pytest.mark.parametrize(
    ("table", "algorithm", "wanted", "printed"),
    [
        ("dataset_comparison", "flux", {"dataset": "mnist"}, (92.5, 2.9, 94.0, 2.2)),
        ("dataset_comparison", "pfedme", {"dataset": "cifar10"}, (42.4, 1.1, None, None)),
        ("dataset_comparison", "atp", {"dataset": "officehome"}, (None, None, 37.9, 0.9)),
        ("dataset_comparison", "flux-prior", {"dataset": "chexpert"}, (79.3, 0.3, 78.5, 0.9)),
        ("comparison_haccs", "flux", {"dataset": "mnist", "shift": "px"}, (95.5, 0.5, 95.0, 1.5)),
        ("comparison_haccs", "haccs", {"dataset": "fmnist", "shift": "pygx"}, (66.0, 3.0, None, None)),
        ("comparison_haccs", "feddrift", {"dataset": "cifar10", "shift": "pxgy"}, (37.0, 1.1, 36.8, 1.3)),
        ("n_client_25", "fesem", {"shift": "py"}, (87.67, 5.64, 79.03, 2.75)),
        ("n_client_100", "flux-prior", {"shift": "pxgy"}, (88.11, 0.49, 82.28, 1.47)),
        ("n_client_100", "cfl", {"shift": "px"}, (None, None, None, None)),
        ("n_client_all", "apfl", {"clients": 50}, (89.35, 0.67, 72.10, 2.16)),
        ("m11", "flux", {"levels": [4]}, (88.89, 6.08, 86.78, 4.10)),
        ("m12", "ifca", {"levels": [3]}, (80.38, 8.16, 58.52, 18.12)),
        ("m13", "cfl", {"levels": [6]}, (51.66, 3.06, 51.66, 3.06)),
        ("scaling_1200", "fedavg", {"shift": "pxgy"}, (86.5, 4.2, None, None)),
        ("dp_effect", "flux", {"epsilon": 0.01}, (90.06, 1.80, 57.46, 13.26)),
        ("dp_effect", "flux", {"epsilon": None}, (92.86, 2.02, 94.36, 1.33)),
        ("datasize_combined", "fedavg", {"data_fraction": 0.32,
         "setting": "mean over shifts at mid-high heterogeneity"}, (62.0, 3.3, 62.0, 3.3)),
        ("lowdata_combined", "flux", {"shift": "pygx"}, (49.2, 6.9, None, None)),
        ("main_chex", "fedrc", {"setting": "medium heterogeneity"}, (58.08, 0.48, 56.78, 0.48)),
        ("ablation_clustering_mnist", "flux", {"clusterer": "hdbscan"}, (90.5, 7.7, 92.9, 2.6)),
        ("ablation_clustering_cifar", "flux", {"clusterer": "adaptive-dbscan"}, (41.7, 11.0, 41.3, 7.8)),
        ("ablation_random", "flux", {"dataset": "cifar100", "shift": "py", "assignment": "random"},
         (None, None, 15.9, 3.9)),
        ("ablation", "flux", {"descriptor": ["mean", "class means"], "length": 5}, (90.25, 2.48, 94.92, 1.26)),
    ],
)  # fmt: skip
def test_figures_typed_from_the_text(
    table: str, algorithm: str, wanted: dict[str, Any], printed: tuple[float | None, ...]
) -> None:
    assert scores(one(table, algorithm, **wanted)) == printed


@pytest.mark.parametrize(
    ("table", "algorithm", "wanted", "printed"),
    [
        ("partial_participation", "flux", {"participation": 0.4}, (87.9, 2.5)),
        ("partial_participation", "fedavg", {"participation": 1.0}, (76.7, 2.0)),
        ("flux_soft", "flux-soft", {}, (86.5, 1.3)),
        ("flux_soft", "fesem", {}, (66.0, 6.0)),
    ],
)
def test_tables_that_do_not_say_the_phase_claim_none(
    table: str, algorithm: str, wanted: dict[str, Any], printed: tuple[float, float]
) -> None:
    figure = one(table, algorithm, **wanted)
    assert (figure.accuracy, figure.accuracy_std) == printed
    assert scores(figure) == (None,) * 4
    assert "phase not stated" in figure.scope


def test_every_table_is_whole() -> None:
    assert Counter(figure.table for figure in every_figure()) == LINES


def test_names_and_numbers_are_in_range() -> None:
    for figure in every_figure():
        assert figure.algorithm in ALGORITHMS
        assert figure.dataset in (*DATASETS, None)
        assert figure.shift in (*SHIFTS, *MIXES, None)
        assert figure.more.get("clusterer", "hdbscan") in CLUSTERERS
        assert set(figure.levels) <= set(levels.LEVELS)
        assert 0 < figure.participation <= 1
        for value, spread in ((figure.known, figure.known_std), (figure.test, figure.test_std)):
            assert (value is None) == (spread is None)
            assert value is None or 0 < value < 100
            assert spread is None or 0 <= spread < 25


def test_the_file_holds_strict_json_with_every_number_in_0_to_100() -> None:
    text = files("fedflux.studies.paper").joinpath("tables.json").read_text(encoding="utf-8")
    content = strict_json(text)
    assert set(content["tables"]) == set(LINES)
    for entry in content["figures"]:
        for key in ("known", "known_std", "test", "test_std", "accuracy", "accuracy_std"):
            assert 0 <= (entry.get(key) or 0) <= 100
    assert json.loads(json.dumps([figure.as_dict() for figure in every_figure()]))


def test_a_figure_of_one_level_comes_from_a_table_of_single_levels() -> None:
    """By shift the paper prints means over levels 1 to 8; only mixes and numbers of clients have single levels."""
    for figure in every_figure():
        if len(figure.levels) == 1:
            assert figure.shift in MIXES or (figure.clients != 10 and figure.levels[0] == FIXED[str(figure.shift)])
            assert figure.table.startswith(("tab:m1", "tab:n_client_", "tab:scaling_1200"))
        if figure.table in ("tab:dataset_comparison", "tab:comparison_haccs") and figure.dataset in SHIFTED:
            assert figure.levels == tuple(levels.LEVELS)
    for dataset in DATASETS:
        for figure in figures(dataset, 10, shifts=FOUR):
            assert len(figure.levels) != 1
            assert "level 3" not in figure.scope


def test_the_fixed_settings_of_many_clients_are_these_levels() -> None:
    assert [look.rotation for look in levels.feature_looks(FIXED["px"])] == [0, 90, 180, 270]
    assert levels.kept_classes(FIXED["py"], 10) == 4
    assert levels.swapped_classes(FIXED["pygx"], 10) == 5
    assert levels.augmented_classes(FIXED["pxgy"], 10) == 6


@pytest.mark.parametrize("dataset", ["mnist", "fmnist", "cifar10"])
@pytest.mark.parametrize("algorithm", ["fedavg", "feddrift", "flux"])
def test_figures_by_shift_average_to_the_overall_ones(dataset: str, algorithm: str) -> None:
    """Known over four shifts, test over three: what `over` and `test_over` claim, to the printed digit."""
    by_shift = [one("comparison_haccs", algorithm, dataset=dataset, shift=shift) for shift in FOUR]
    whole = one("dataset_comparison", algorithm, dataset=dataset)
    test = [figure.test for figure in by_shift if figure.test is not None]
    assert whole.known == pytest.approx(sum(figure.known or 0 for figure in by_shift) / 4, abs=0.101)
    assert len(test) == 3
    assert whole.test == pytest.approx(sum(test) / 3, abs=0.101)
    assert (whole.over, whole.test_over) == (FOUR, THREE)


def test_means_over_shifts_agree_with_their_parts_or_say_that_they_do_not() -> None:
    for whole in (figure for figure in every_figure() if figure.table == "tab:n_client_all"):
        parts = [f for f in figures("mnist", whole.clients or 0, shifts=FOUR) if f.algorithm == whole.algorithm]
        for phase in ("known", "test"):
            values = [getattr(part, phase) for part in parts if part.shift and getattr(part, phase) is not None]
            assert (getattr(whole, phase) is None) == (not values)
            if values:
                fits = abs(sum(values) / len(values) - getattr(whole, phase)) < 0.0151
                assert fits != (f"the {phase} figures of tab:n_client_{whole.clients} average to" in whole.note)


def test_chexpert_overall_is_the_mean_of_its_settings() -> None:
    for whole in (f for f in figures("chexpert", 20) if f.table == "tab:dataset_comparison"):
        parts = [f for f in figures("chexpert", 20) if f.table == "tab:main_chex" and f.algorithm == whole.algorithm]
        assert len(parts) == 3
        assert whole.known == pytest.approx(sum(part.known or 0 for part in parts) / 3, abs=0.0601)


def test_no_single_shift_has_a_test_phase_under_pygx() -> None:
    under = [figure for figure in every_figure() if figure.shift == "pygx"]
    assert len(under) == 4 * 3 + 12 * 4 + 2 + 2
    assert {figure.test for figure in under} == {None}
    printed = one("m13", "flux", levels=[3])
    assert printed.test == 87.89
    assert "features cannot show P(Y|X)" in printed.scope


@pytest.mark.parametrize(
    ("figure", "scope"),
    [
        (("comparison_haccs", "flux", {"dataset": "mnist", "shift": "px"}),
         "mean over levels 1–8, 10 clients (Table comparison_haccs)"),
        (("dataset_comparison", "flux", {"dataset": "mnist"}),
         "mean over four shifts and levels 1–8 (test over px, py and pxgy), 10 clients (Table dataset_comparison)"),
        (("dataset_comparison", "pfedme", {"dataset": "mnist"}),
         "mean over four shifts and levels 1–8, 10 clients (Table dataset_comparison)"),
        (("dataset_comparison", "atp", {"dataset": "mnist"}),
         "mean over three shifts and levels 1–8 (px, py and pxgy), 10 clients (Table dataset_comparison)"),
        (("dataset_comparison", "flux", {"dataset": "officehome"}),
         "four domains, number of clients not stated (Table dataset_comparison)"),
        (("dataset_comparison", "flux", {"dataset": "chexpert"}),
         "mean over low, medium and high heterogeneity, 20 clients, macro ROC AUC (Table dataset_comparison)"),
        (("n_client_25", "flux", {"shift": "pxgy"}),
         "level 6, 25 clients, local data repeated ×2 (Table n_client_25)"),
        (("n_client_50", "flux", {"shift": "py"}),
         "level 7, 50 clients, local data repeated ×4 (Table n_client_50)"),
        (("n_client_all", "flux", {"clients": 5}),
         "mean over four shifts at one level each (px 3, py 7, pygx 5, pxgy 6; test over px, py and pxgy), "
         "5 clients (Table n_client_all)"),
        (("m11", "flux", {"levels": [3]}), "level 3, number of clients not stated (Table m11)"),
        (("scaling_1200", "flux", {"shift": "px"}), "level 3, 1,200 clients, participation 0.2 (Table scaling_1200)"),
        (("partial_participation", "flux", {"participation": 0.2}),
         "mean over four shifts at one level each (px 3, py 7, pygx 5, pxgy 6), 20 clients (inferred), "
         "participation 0.2, phase not stated (Table partial_participation)"),
        (("lowdata_combined", "flux", {"shift": "px"}),
         "level not stated, 20 clients, data fraction 0.01, rounds 200 (Table lowdata_combined)"),
        (("dp_effect", "flux", {"epsilon": None}), "number of clients not stated, epsilon none (Table dp_effect)"),
    ],
)  # fmt: skip
def test_scopes_in_words(figure: tuple[str, str, dict[str, Any]], scope: str) -> None:
    table, algorithm, wanted = figure
    assert one(table, algorithm, **wanted).scope == scope


@pytest.mark.parametrize(
    ("dataset", "clients", "participation", "tables"),
    [
        ("mnist", 10, 1.0, {"dataset_comparison": 12, "comparison_haccs": 16, "m11": 48, "m12": 48, "m13": 48}),
        ("cifar100", 10, 1.0, {"dataset_comparison": 12, "ablation_random": 3}),
        ("mnist", 5, 1.0, {"n_client_5": 47, "n_client_all": 12}),  # ATP has nothing under P(Y|X)
        ("mnist", 100, 1.0, {"n_client_100": 39, "n_client_all": 10}),  # nor have FedDrift and CFL anything here
        ("mnist", 20, 0.8, {"partial_participation": 2}),
        ("mnist", 1200, 0.2, {"scaling_1200": 8}),
        ("chexpert", 20, 1.0, {"dataset_comparison": 11, "main_chex": 33}),
        ("officehome", 10, 1.0, {"dataset_comparison": 12}),
        ("mnist", 11, 1.0, {}),
        ("mnist", 10, 0.5, {}),
        ("digits", 10, 1.0, {}),
    ],
)
def test_what_a_plain_comparison_gets(dataset: str, clients: int, participation: float, tables: dict[str, int]) -> None:
    found = figures(dataset, clients, participation=participation)
    assert Counter(figure.table.removeprefix("tab:") for figure in found) == tables
    assert len({(f.algorithm, f.shift, f.levels, f.table, f.setting) for f in found}) == len(found)


def test_only_the_shifts_named() -> None:
    assert {figure.shift for figure in figures("mnist", 10, shifts=["py", "px"])} == {"px", "py"}
    assert {figure.shift for figure in figures("mnist", 10, shifts=iter(FOUR))} == {*FOUR, None}
    assert {figure.levels for figure in figures("mnist", 10, shifts=["pxgy+py"])} == {(3,), (4,), (5,), (6,)}
    assert {figure.table for figure in figures("officehome", 10, shifts=["none"])} == {"tab:dataset_comparison"}
    assert figures("mnist", 10, shifts=[]) == []


def test_as_dict_has_what_a_report_needs_and_figures_stay_as_they_are() -> None:
    figure = one("n_client_all", "flux", clients=100)
    told = figure.as_dict()
    wanted = {"algorithm", "dataset", "shift", "levels", "scope", "known", "test", "known_std", "test_std", "table"}
    assert wanted <= set(told)
    assert (told["scope"], told["time_log2_seconds"], told["shift"]) == (figure.scope, 9.263, None)
    assert "log2 seconds" in told["note"]
    with pytest.raises(FrozenInstanceError):
        figure.known = 99.0  # type: ignore[misc]
