"""What clustering came to, in words."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedflux.clustering.variation import UNKNOWN, Variation
from fedflux.runs.verdict import unfinished, variation_figures, verdict


def told(assignment: list[int], why: list[str], parts: dict[str, float] | None = None, **natural: Any) -> str:
    variation = Variation(estimated=True, **natural) if natural else UNKNOWN
    described: Any = SimpleNamespace(labels=np.array(assignment), clusters=SimpleNamespace(variation=variation))
    pairs = [{"shift": shift} for shift in why]
    return verdict(described, pairs, None if parts is None else {"mean": parts}, tested=True)


def test_one_cluster_is_said_to_need_one_model() -> None:
    words = told([0, 0, 0, 0, 0], [], along=0.0025)
    assert words.startswith("One cluster: nothing sets these 5 clients apart")
    assert "class means by 0.05 deviations" in words


def test_every_client_alone_is_called_local_training() -> None:
    words = told([0, 1, 2], ["P(X)", "P(X) + P(Y)", "P(X)"], {"own": 0.37, "trunk": 0.63})
    assert "is local training" in words
    assert "P(X) in all 3 pairs, P(Y) in 1 of 3 pairs" in words
    assert words.endswith("What clusters share has 63 % of the answers.")
    assert "by nature" not in words


def test_pairs_that_nobody_looked_at_are_not_spoken_of() -> None:
    assert "P(X) in 2 of the first 2 pairs" in told([0, 1, 2], ["P(X)", "P(X)"])


@pytest.mark.parametrize(
    ("labels", "words"), [([0, 1, 2, 3, 3], "3 of them alone"), ([0, 0, 1, 1, 2], "1 of them alone")]
)
def test_clients_alone_are_counted(labels: list[int], words: str) -> None:
    assert words in told(labels, ["P(Y)"])
    assert ("nearly local training" in told(labels, ["P(Y)"])) == (labels[2] == 2)


def test_what_is_not_known_is_said() -> None:
    assert "Too little is known" in told([0, 0, 1], ["P(X)"])
    assert "no more than chance" in told([0, 0, 1], ["P(X)"], floor=0.0)
    assert "label shares by 0.02" in told([0, 0, 1], ["P(X)"], labels=0.02)


def test_figures_are_null_where_nothing_was_estimated() -> None:
    assert variation_figures(UNKNOWN) == {"estimated": False, "means": None, "labels": None, "floor": 0.02}
    known = variation_figures(Variation(estimated=True, along=0.01, floor=0.0))
    assert known == {"estimated": True, "means": pytest.approx(0.1), "labels": 0.0, "floor": 0.0}


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ([10, 20, 30, 40, 50, 61], "Validation gained 21.0 points in the last 2 rounds: more rounds or a higher"),
        ([10, 50, 58], "Validation gained 8.0 points in the last round:"),
        ([10, 50, 80, 88, 89, 90], ""),
        ([10, 50, 80, 88, 60, 55], ""),
        ([10, 90], ""),
        ([10, 50, float("nan")], ""),
        ([], ""),
    ],
)
def test_a_run_that_ends_too_early_is_told_so(validation: list[float], words: str) -> None:
    assert unfinished(validation).startswith(words)
    assert bool(unfinished(validation)) == bool(words)
