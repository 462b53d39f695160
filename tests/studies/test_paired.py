"""Paired differences against pandas, scipy, enumeration and numbers computed by hand."""

from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, wilcoxon
from tests.studies.rows import full_grids, only, row

from fedflux.studies.summary import holm, paired, signed_rank


def against(differences: list[float], algorithm: str = "flux", reference: float = 50.0) -> list[dict[str, Any]]:
    """Rows of `fedavg` and of an algorithm that differs from it so, seed by seed."""
    return [
        made
        for seed, difference in enumerate(differences)
        for made in (
            row("fedavg", "px", 3, seed, known=reference),
            row(algorithm, "px", 3, seed, known=reference + difference),
        )
    ]


@settings(deadline=None)
@given(full_grids())
def test_pairs_agree_with_pandas_and_scipy(rows: list[dict[str, Any]]) -> None:
    wide = pd.DataFrame(rows).pivot_table(index=["shift", "level", "seed"], columns="algorithm", values="known")
    differences = (wide["flux"] - wide["fedavg"]).to_numpy()
    line = only(paired(rows, "fedavg"))
    assert (line["algorithm"], line["reference"], line["pairs"]) == ("flux", "fedavg", len(differences))
    assert line["mean"] == pytest.approx(differences.mean(), abs=1e-9)
    if differences.std() > 1e-6:
        interval = ttest_1samp(differences, 0.0).confidence_interval(0.95)
        assert (line["low"], line["high"]) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)
    assert (line["p"] is None) == (len(differences) < 6)


def test_an_interval_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, t(0.975; 2) = 4.3027, so 2 ± 4.3027 / √3."""
    line = only(paired(against([1.0, 2.0, 3.0]), "fedavg"))
    assert (line["pairs"], line["mean"]) == (3, pytest.approx(2))
    assert (line["low"], line["high"]) == pytest.approx((2 - 4.302653 / sqrt(3), 2 + 4.302653 / sqrt(3)))
    assert (line["p"], line["p_holm"], line["mark"]) == (None, None, "")


def test_one_pair_has_a_mean_and_nothing_else() -> None:
    line = only(paired(against([1.5]), "fedavg"))
    assert [line[key] for key in ("pairs", "mean", "low", "high", "p", "p_holm", "mark")] == [
        1, 1.5, None, None, None, None, "",
    ]  # fmt: skip


def test_unmatched_and_missing_cells_are_left_out() -> None:
    rows = [
        *against([1.0, 3.0]),
        row("flux", "px", 6, 0, known=99.0),
        row("fedavg", "py", 3, 0, known=1.0),
        row("flux", "pxgy", 3, 0, known=None),
        row("fedavg", "pxgy", 3, 0, known=1.0),
        row("flux", "pxgy", 6, 0, known=99.0),
        row("fedavg", "pxgy", 6, 0, known=None),
    ]
    line = only(paired(rows, "fedavg"))
    assert (line["pairs"], line["mean"]) == (2, pytest.approx(2))
    assert only(paired(rows, "fedavg", "test"))["pairs"] == 0


@pytest.mark.parametrize(
    ("differences", "p", "mark"),
    [
        ([1, 2, 3, 4, 5], None, ""),  # five pairs cannot reach 0.05
        ([1, 2, 3, 4, 5, 6], 2 / 64, "better"),
        ([-1, -2, -3, -4, -5, -6], 2 / 64, "worse"),
        ([-1, 2, 3, 4, 5, 6], 4 / 64, ""),  # as extreme: no rank, or rank 1, on one side
        ([0, 0, 0, 0, 0, 0], 1.0, ""),
        ([0, 1, 2, 3, 4, 5, 6], 2 / 64, "better"),  # the zero is left out
        ([0, 0, 0, 1, 2, 3], 2 / 8, ""),
        ([1, 1, 1, 1, 1, 1], 2 / 64, "better"),
    ],
)
def test_significance_by_hand(differences: list[float], p: float | None, mark: str) -> None:
    line = only(paired(against(differences), "fedavg"))
    assert line["p"] == (None if p is None else pytest.approx(p))
    assert line["p_holm"] == line["p"]  # one algorithm, nothing to correct
    assert line["mark"] == mark


def test_nothing_is_marked_where_ranks_and_mean_disagree() -> None:
    """Ahead by little in 19 cells, one collapse: significant by ranks, behind on average."""
    differences = [0.1 + seed / 100 for seed in range(19)] + [-60.0]
    line = only(paired(against(differences), "fedavg"))
    assert line["p"] < 0.05
    assert line["mean"] < 0
    assert line["mark"] == ""


def test_equal_differences_are_ties_in_spite_of_rounding_errors() -> None:
    """±0.1 is 0.1 off 50 and off 90, but not bit for bit: six equal sizes, three up and three down, have p = 1."""
    rows = [*against([0.1, -0.1, 0.1]), *({**r, "level": 6} for r in against([-0.1, 0.1, -0.1], reference=90.0))]
    assert only(paired(rows, "fedavg"))["p"] == 1.0


def test_holm_by_hand() -> None:
    """0.005·4, 0.01·3, 0.03·2, and 0.04·1 raised to the 0.06 before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([]) == []


def test_correction_is_for_the_tested_algorithms_of_one_group() -> None:
    """2/64 alone would be marked; beside a second tested one it is 4/64. One with too few pairs does not count."""
    alone = against([1, 2, 3, 4, 5, 6])
    both = alone + against([-1, -2, -3, -4, -5, -6], "ifca")
    few = alone + against([1, 2], "ifca")
    apart = alone + [{**r, "group": "h"} for r in against([-1, -2, -3, -4, -5, -6], "ifca")]
    assert [(line["p_holm"], line["mark"]) for line in paired(both, "fedavg")] == [(4 / 64, ""), (4 / 64, "")]
    assert [(line["p_holm"], line["mark"]) for line in paired(few, "fedavg")] == [(2 / 64, "better"), (None, "")]
    assert [(line["p_holm"], line["mark"]) for line in paired(apart, "fedavg")] == [
        (2 / 64, "better"),
        (2 / 64, "worse"),
    ]


@settings(deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_signed_ranks_against_all_choices_of_signs(differences: list[int]) -> None:
    """Many ties and zeros: the p-value is the share of the signs whose rank sum is at least as far from the middle."""
    sizes = np.abs([d for d in differences if d])
    ranks = [(np.sum(sizes < size) + np.sum(sizes <= size) + 1) / 2 for size in sizes]
    observed = sum(rank * np.sign(d) for rank, d in zip(ranks, filter(None, differences), strict=True))
    every = [
        sum(s * rank for s, rank in zip(signs, ranks, strict=True)) for signs in product((-1, 1), repeat=len(ranks))
    ]
    statistic, p = signed_rank(differences)
    assert statistic == pytest.approx(observed)
    assert p == pytest.approx(np.mean(np.abs(every) >= abs(observed)))


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=1, max_size=40, unique_by=abs))
def test_signed_ranks_agree_with_scipy_where_nothing_is_tied(differences: list[int]) -> None:
    assert signed_rank(differences)[1] == pytest.approx(wilcoxon(differences, method="exact").pvalue)
