"""What the report says of branches."""

from typing import Any

import pytest

from fedflux.studies.report.sharing import WORDS, sharing

ROUNDS: list[dict[str, Any]] = [
    {"round": 3},
    {"round": 4, "parts": {"own": 1.0, "trunk": 0.0}},
    {"round": 5, "parts": {"own": 0.25, "trunk": 0.75}},
    {"round": 6, "parts": {"trunk": 0.625, "general": 0.375}},
]
TOLD = {"kin": [0, 1, 0], "whole": True, "dropped": ["own"], "mean": {}, "by_cluster": []}


def test_parts_groups_and_what_was_dropped() -> None:
    found = sharing({"sharing_parts": TOLD}, ROUNDS)
    assert found == {
        "rounds": [4, 5, 6],
        "parts": {WORDS["own"]: [1.0, 0.25, 0], WORDS["trunk"]: [0, 0.75, 0.625], WORDS["general"]: [0, 0, 0.375]},
        "groups": [[0, 2], [1]],
        "whole": True,
        "dropped": [WORDS["own"]],
    }


@pytest.mark.parametrize(
    ("result", "rounds"),
    [
        ({}, ROUNDS),
        ({"sharing_parts": None}, ROUNDS),
        ({"sharing_parts": TOLD}, [{"round": 4, "parts": {"own": 1.0}}]),
        ({"sharing_parts": TOLD}, [{"round": 4, "parts": {"own": "much"}}]),
    ],
)
def test_nothing_is_said_where_one_branch_answered_or_the_file_is_odd(result: Any, rounds: Any) -> None:
    assert sharing(result, rounds) is None


def test_odd_groups_are_left_out() -> None:
    found = sharing({"sharing_parts": {**TOLD, "kin": ["a"], "whole": 1}}, ROUNDS)
    assert found is not None
    assert (found["groups"], found["whole"]) == ([], False)
