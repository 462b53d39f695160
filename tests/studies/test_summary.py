"""Summaries against pandas and numbers computed by hand."""

from math import sqrt
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from tests.studies.rows import full_grids, only, row

from fedflux.studies.summary import by_cell, by_shift, level_words, listed, overall, paired


def test_a_cell_by_hand() -> None:
    """Known 90, 92, 97: mean 93, squared deviations 9 + 1 + 16, variance 13. Test has one value only, unseen two."""
    rows = [
        row(
            "flux",
            "px",
            3,
            44,
            known=97.0,
            known_worst=80.0,
            test_worst=40.0,
            clusters_found=4,
            seconds=6.0,
            unseen=50.0,
        ),
        row("flux", "px", 3, 42, known=90.0, known_worst=70.0, test=88.0, clusters_found=5, pairs_right=0.5),
        row(
            "flux",
            "px",
            3,
            43,
            known=92.0,
            known_worst=90.0,
            bytes_up=10,
            forward_passes=3.0,
            unseen=54.0,
            unseen_worst=9.0,
        ),
    ]
    assert by_cell(rows) == [
        {
            **{"group": "g", "algorithm": "flux", "dataset": "mnist", "shift": "px", "level": 3, "seeds": [42, 43, 44]},
            **{"known_mean": 93.0, "known_std": pytest.approx(sqrt(13)), "test_mean": 88.0, "test_std": None},
            **{"known_worst_mean": 80.0, "known_worst_min": 70.0, "test_worst_mean": 40.0, "test_worst_min": 40.0},
            **{"unseen_mean": 52.0, "unseen_std": pytest.approx(sqrt(8))},
            **{"unseen_worst_mean": 9.0, "unseen_worst_min": 9.0},
            **{"pairs_right_mean": 0.5, "clusters_found_mean": 4.5, "clusters_true_mean": None, "seconds_mean": 6.0},
            **{"bytes_up_mean": 10.0, "bytes_down_mean": None, "models_up_mean": None, "models_down_mean": None},
            **{"forward_passes_mean": 3.0, "training_passes_mean": None},
        }
    ]


def test_a_shift_by_hand() -> None:
    """Seed 42 averages 85, seed 43 averages 91; seed 44 lacks level 6, which fedavg shows to be part of the grid."""
    rows = [
        row("flux", "px", 6, 42, known=80.0, known_worst=10.0),
        row("flux", "px", 3, 42, known=90.0, known_worst=50.0),
        row("flux", "px", 3, 43, known=94.0, known_worst=60.0),
        row("flux", "px", 6, 43, known=88.0, known_worst=40.0),
        row("flux", "px", 3, 44, known=10.0, known_worst=0.0),
        row("fedavg", "px", 3, 42, known=70.0),
    ]
    flux, fedavg = by_shift(rows)
    assert (flux["algorithm"], flux["seeds"], flux["levels"]) == ("flux", [42, 43], [3, 6])
    assert flux["known_mean"] == pytest.approx(88)
    assert flux["known_std"] == pytest.approx(sqrt(18))
    assert (flux["known_worst_mean"], flux["known_worst_min"]) == (pytest.approx(40), 10.0)
    assert (flux["test_mean"], flux["test_std"], flux["test_worst_min"]) == (None, None, None)
    assert flux["scope"] == "mean over levels 3 and 6, 2 seeds"
    assert (fedavg["known_mean"], fedavg["seeds"]) == (None, [])
    assert fedavg["scope"] == "mean over levels 3 and 6: no seed has them all"


def test_a_single_level_is_no_mean_over_levels() -> None:
    line = only(by_shift([row("flux", "px", 3, 42, known=90.0)]))
    assert (line["scope"], line["known_mean"], line["known_std"]) == ("level 3, 1 seed", 90.0, None)


def test_a_score_with_fewer_seeds_says_so() -> None:
    rows = [row("flux", "px", 3, seed, known=90.0, test=80.0 if seed < 43 else None) for seed in range(41, 45)]
    assert only(by_shift(rows))["scope"] == "level 3, 4 seeds (test: 2 seeds)"
    assert only(by_cell(rows))["seeds"] == [41, 42, 43, 44]


def test_overall_takes_each_score_over_the_shifts_that_have_it() -> None:
    """Known: (90 + 70 + 50) / 3. Test: pygx has none, so (80 + 60) / 2. ATP lacks test under py: no mean at all."""
    rows = [
        row("flux", "px", 3, 42, known=90.0, test=80.0),
        row("flux", "pygx", 3, 42, known=70.0),
        row("flux", "py", 3, 42, known=50.0, test=60.0),
        row("atp", "px", 3, 42, test=80.0),
        row("atp", "pygx", 3, 42),
        row("atp", "py", 3, 42),
    ]
    flux, atp = overall(rows)
    assert (flux["known_mean"], flux["test_mean"]) == (pytest.approx(70), pytest.approx(70))
    assert (flux["shifts"], flux["known_shifts"], flux["test_shifts"]) == (
        ["px", "pygx", "py"],
        ["px", "pygx", "py"],
        ["px", "py"],
    )
    assert flux["scope"] == "mean over px, pygx and py at level 3 (test over px and py), 1 seed"
    assert (atp["known_mean"], atp["test_mean"], atp["seeds"]) == (None, None, [42])


def test_overall_gives_every_shift_the_same_weight() -> None:
    """px averages 80 over two levels, py has 60 at one: 70, where the mean over cells would be 73.3."""
    rows = [
        row("flux", "px", 3, 42, known=90.0),
        row("flux", "px", 6, 42, known=70.0),
        row("flux", "py", 7, 42, known=60.0),
    ]
    line = only(overall(rows))
    assert line["known_mean"] == pytest.approx(70)
    assert line["levels"] == [3, 6, 7]
    assert line["scope"] == "mean over px at levels 3 and 6 and py at level 7, 1 seed"


def test_overall_needs_every_shift_of_the_group() -> None:
    rows = [
        row("flux", "px", 3, 42, known=90.0),
        row("flux", "py", 3, 42, known=70.0),
        row("fedavg", "px", 3, 42, known=99.0),
    ]
    assert only(overall(rows), algorithm="fedavg")["known_mean"] is None
    elsewhere = [{**rows[2], "group": "h"}]
    assert only(overall(rows[:2] + elsewhere), algorithm="fedavg")["known_mean"] == 99.0


def test_groups_and_datasets_are_never_mixed() -> None:
    rows = [
        row("flux", "px", 3, 42, known=90.0),
        {**row("flux", "px", 3, 42, known=50.0), "group": "h"},
        {**row("flux", "px", 3, 42, known=10.0), "dataset": "fmnist"},
        row("fedavg", "px", 3, 42, known=80.0),
        {**row("fedavg", "px", 3, 42, known=60.0), "group": "h"},
    ]
    for summary in (by_cell, by_shift, overall):
        means = {(line["group"], line["dataset"], line["algorithm"]): line["known_mean"] for line in summary(rows)}
        assert means == {
            ("g", "mnist", "flux"): 90.0,
            ("g", "fmnist", "flux"): 10.0,
            ("g", "mnist", "fedavg"): 80.0,
            ("h", "mnist", "flux"): 50.0,
            ("h", "mnist", "fedavg"): 60.0,
        }
    pairs = {(line["group"], line["dataset"]): (line["pairs"], line["mean"]) for line in paired(rows, "fedavg")}
    assert pairs == {("g", "mnist"): (1, 10.0), ("g", "fmnist"): (0, None), ("h", "mnist"): (1, -10.0)}


def test_order_is_of_first_appearance_with_levels_and_seeds_ascending() -> None:
    rows = [
        row("zeta", "py", 8, 9, known=1.0),
        row("alpha", "py", 2, 3, known=1.0),
        row("zeta", "px", 6, 1, known=1.0),
        row("zeta", "py", 1, 3, known=1.0),
        row("zeta", "py", 8, 4, known=1.0),
    ]
    order = [(line["algorithm"], line["shift"], line["level"], line["seeds"]) for line in by_cell(rows)]
    assert order == [
        ("zeta", "py", 1, [3]),
        ("zeta", "py", 8, [4, 9]),
        ("zeta", "px", 6, [1]),
        ("alpha", "py", 2, [3]),
    ]
    assert [(line["algorithm"], line["shift"]) for line in by_shift(rows)] == [
        ("zeta", "py"),
        ("zeta", "px"),
        ("alpha", "py"),
    ]


def test_of_two_rows_for_one_run_the_last_counts() -> None:
    rows = [row("flux", "px", 3, 42, known=90.0), row("flux", "px", 3, 42, known=80.0)]
    line = only(by_cell(rows))
    assert (line["known_mean"], line["seeds"]) == (80.0, [42])


def test_no_rows_no_lines() -> None:
    assert [by_cell([]), by_shift([]), overall([]), paired([], "flux")] == [[], [], [], []]


@settings(deadline=None)
@given(full_grids())
def test_full_grids_agree_with_pandas(rows: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame(rows)
    cells = frame.groupby(["algorithm", "shift", "level"])
    for line in by_cell(rows):
        cell = cells.get_group((line["algorithm"], line["shift"], line["level"]))
        assert line["known_mean"] == pytest.approx(cell.known.mean(), abs=1e-9)
        assert line["known_std"] == pytest.approx(cell.known.std(), abs=1e-6)
        assert line["known_worst_min"] == cell.known_worst.min()
        assert line["seeds"] == sorted(cell.seed)
    for line in by_shift(rows):
        part = frame[(frame.algorithm == line["algorithm"]) & (frame["shift"] == line["shift"])]
        by_seed = part.groupby("seed").known.mean()
        assert line["known_mean"] == pytest.approx(by_seed.mean(), abs=1e-9)
        assert line["known_std"] == pytest.approx(by_seed.std(), abs=1e-6)
        assert line["known_worst_min"] == part.known_worst.min()
        assert line["test_mean"] is None
    for line in overall(rows):
        by_seed = frame[frame.algorithm == line["algorithm"]].groupby("seed").known.mean()
        assert line["known_mean"] == pytest.approx(by_seed.mean(), abs=1e-9)
        assert line["known_std"] == pytest.approx(by_seed.std(), abs=1e-6)
    assert len(by_cell(rows)) == len(cells)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([3], "level 3"),
        ([3, 4], "levels 3 and 4"),
        ([2, 4, 6], "levels 2, 4 and 6"),
        ([2, 3, 4], "levels 2–4"),
        (range(1, 9), "levels 1–8"),
    ],
)
def test_levels_in_words(levels: list[int], words: str) -> None:
    assert level_words(levels) == words


def test_listed() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_no_level_is_named_where_nothing_is_shifted() -> None:
    rows = [row("flux", "none", level, 42, known=80.0) for level in (3, 4)]
    assert by_shift(rows)[0]["scope"] == overall(rows)[0]["scope"] == "1 seed"
    mixed = [*rows[:1], row("flux", "px", 3, 42, known=90.0)]
    assert overall(mixed)[0]["scope"] == "mean over none and px at level 3, 1 seed"


def test_a_level_is_named_where_it_says_by_what_clients_differ() -> None:
    rows = [{**row("flux", "none", level, 42, known=80.0), "dataset": "nih-cxr"} for level in (1, 3)]
    assert by_shift(rows)[0]["scope"] == "mean over levels 1 and 3, 1 seed"
