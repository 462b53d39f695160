"""Scores against numbers counted by hand."""

from math import isnan, log
from typing import Any

import numpy as np
import pytest

from fedflux.runs.metrics import Measured
from fedflux.runs.scores import client_scores, cluster_scores


def test_cluster_scores_of_five_clients_counted_by_hand() -> None:
    """Pairs together: truth {01, 23}, labels {01, 23, 24, 34}; both: {01, 23}."""
    truth, labels = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1])
    scores = cluster_scores(labels, truth)
    both, in_truth, in_labels, pairs = 2, 2, 4, 10
    apart_in_both = pairs - in_truth - in_labels + both
    expected = in_truth * in_labels / pairs
    of_labels = -(2 / 5 * log(2 / 5) + 3 / 5 * log(3 / 5))
    of_truth = -(2 * 2 / 5 * log(2 / 5) + 1 / 5 * log(1 / 5))
    assert (scores["clusters_found"], scores["clusters_true"]) == (2, 3)
    assert scores["pairs_right"] == pytest.approx((both + apart_in_both) / pairs) == pytest.approx(0.8)
    assert scores["ari"] == pytest.approx((both - expected) / ((in_truth + in_labels) / 2 - expected))
    # the labels follow from the truth, so what they share is the labels' entropy
    assert scores["nmi"] == pytest.approx(2 * of_labels / (of_labels + of_truth))


def test_one_pair_of_three_right() -> None:
    """Truth {01}, labels {12}: only the pair 02, apart in both, is right; ARI = (0 − 1/3) / (1 − 1/3)."""
    scores = cluster_scores(np.array([0, 1, 1]), np.array([0, 0, 1]))
    assert scores["pairs_right"] == pytest.approx(1 / 3)
    assert scores["ari"] == pytest.approx(-1 / 2)


def test_names_of_clusters_do_not_matter() -> None:
    scores = cluster_scores(np.array([5, 5, 2, 9]), np.array([0, 0, 1, 2]))
    assert [scores[k] for k in ("ari", "nmi", "pairs_right")] == pytest.approx([1, 1, 1])


def test_one_cluster_for_all_scores_zero_beyond_chance() -> None:
    scores = cluster_scores(np.zeros(4, np.int64), np.array([0, 0, 1, 1]))
    assert scores["ari"] == pytest.approx(0)
    assert scores["nmi"] == pytest.approx(0)
    assert scores["pairs_right"] == pytest.approx(2 / 6)


def test_without_truth_only_the_count_is_known() -> None:
    scores = cluster_scores(np.array([0, 3, 3]), None)
    assert scores.pop("clusters_found") == 2
    assert set(scores.values()) == {None}


def test_client_scores_leave_out_clients_without_data() -> None:
    scores = client_scores(np.array([1.0, np.nan, 0.5]), "known")
    assert scores["known"] == pytest.approx(75)
    assert scores["known_worst"] == pytest.approx(50)
    assert scores["known_quantile10"] == pytest.approx(55)  # 50 + 0.1 · (100 − 50)
    first, second, third = scores["known_per_client"]
    assert (first, third) == (100, 50)
    assert isnan(second)


@pytest.mark.parametrize("accuracies", [None, np.full(3, np.nan)])
def test_nobody_with_data_has_no_score(accuracies) -> None:
    scores = client_scores(accuracies, "test")
    assert set(scores) == {"test", "test_per_client", "test_worst", "test_quantile10"}
    assert set(scores.values()) == {None}


def test_a_metric_that_nobody_has_is_null() -> None:
    """As every score is, and without a warning of numpy's."""
    found = {"test": np.array([np.nan, np.nan]), "known": np.array([np.nan, 0.5])}
    engine: Any = None
    told = Measured({}, engine, 2, {"own": found}).by_name()["own"]
    assert told["test"] is None
    assert told["known"] == 0.5
