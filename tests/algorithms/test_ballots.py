"""What clusters share is decided by votes on mixtures of branches, and by whose updates point the same way."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedflux.algorithms.flux.sharing.ballots import AGAIN, LITTLE, MEMORY, PRIOR, SETTLED, SPARED, Ballot, mixtures_of
from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, TRUNK, Branches
from fedflux.algorithms.flux.sharing.kin import agree, cosines, find_kin
from fedflux.engine import Stack

PAIR = (OWN, TRUNK)
MEMBERS, VOTES = 8, 10.0
ONLY_OWN, ONLY_TRUNK = 0, 4
"""The mixtures of the two that have one branch alone."""
TRUNK_HELPS = (0.2, 0.4, 0.6, 0.8, 0.9)
"""Accuracies of the five mixtures where own models only harm."""


def cast(ballot: Ballot, scores: Sequence[float] | np.ndarray, times: int = 1) -> Ballot:
    """Ballots of eight members in two clusters; one accuracy a mixture for all of them, or one a member, too."""
    told = np.asarray(scores, dtype=np.float64)
    told = np.tile(told[:, None], (1, MEMBERS)) if told.ndim == 1 else told
    for _ in range(times):
        ballot = ballot.add(told, np.full(MEMBERS, VOTES), np.arange(MEMBERS) % 2)
    return ballot


@pytest.fixture
def blank() -> Ballot:
    return Ballot.blank(PAIR, 2, 2)


# mixtures


@pytest.mark.parametrize(
    ("names", "count"),
    [((OWN,), 1), (PAIR, 5), ((TRUNK, GENERAL), 5), ((OWN, GENERAL), 6), ((OWN, TRUNK, GENERAL), 15)],
)
def test_mixtures_are_whole_and_all_different(names: tuple[str, ...], count: int) -> None:
    found = mixtures_of(names)
    assert found.shape == (count, len(names))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (found >= 0).all()
    assert len(np.unique(found.round(9), axis=0)) == count
    assert found[0].tolist() == [1.0, *[0.0] * (len(names) - 1)]
    assert (np.eye(len(names))[:, None] == found[None]).all(axis=2).any(axis=1).all()  # each branch alone is among them


def test_two_branches_are_voted_on_in_quarters() -> None:
    np.testing.assert_array_equal(mixtures_of(PAIR), [[1, 0], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0, 1]])


# votes


def test_before_anybody_votes_the_first_branch_answers(blank: Ballot) -> None:
    np.testing.assert_array_equal(blank.parts(), [[1, 0], [1, 0]])


def test_earlier_ballots_count_less(blank: Ballot) -> None:
    later = cast(cast(blank, TRUNK_HELPS), (1, 0, 0, 0, 0))
    total = MEMBERS * VOTES
    np.testing.assert_allclose(later.votes, total * (MEMORY * np.array(TRUNK_HELPS) + [1, 0, 0, 0, 0]))
    np.testing.assert_allclose(later.own.sum(axis=0), later.votes)
    assert later.counted == (1 + MEMORY) * total


def test_members_without_an_answer_have_no_vote(blank: Ballot) -> None:
    generator = np.random.default_rng(3)
    scores, weight, cluster = generator.random((5, MEMBERS)), generator.random(MEMBERS), np.arange(MEMBERS) % 2
    some = scores.copy()
    some[2, 1], some[:, 6] = np.nan, np.nan  # one such answer is enough
    rest = [k for k in range(MEMBERS) if k not in (1, 6)]
    found, expected = blank.add(some, weight, cluster), blank.add(scores[:, rest], weight[rest], cluster[rest])
    np.testing.assert_allclose(found.votes, expected.votes)
    np.testing.assert_allclose(found.own, expected.own)
    assert found.counted == pytest.approx(expected.counted)
    assert found.spared == expected.spared


def test_where_all_are_silent_everything_stays_as_it_was(blank: Ballot) -> None:
    before = cast(blank, TRUNK_HELPS, 2)
    after = cast(before, np.full((5, MEMBERS), np.nan))
    np.testing.assert_array_equal(after.parts(), before.parts())
    assert after.spared == before.spared == (2, 0)


@pytest.mark.parametrize(("votes", "expected"), [(20.0, [0, 1]), (8 * PRIOR, [1, 0])])
def test_many_votes_of_a_cluster_weigh_and_few_go_with_everybody(
    votes: float, expected: list[float], blank: Ballot
) -> None:
    scores = np.full((5, 2), 0.5)
    scores[ONLY_TRUNK, 0], scores[ONLY_OWN, 1] = 1.0, 1.0
    found = blank.add(scores, np.array([10 * PRIOR, votes]), np.array([0, 1]))
    np.testing.assert_array_equal(found.parts(), [[0, 1], expected])


def test_new_clusters_begin_with_everybodys_votes(blank: Ballot) -> None:
    before = cast(blank, TRUNK_HELPS, 2)
    after = before.of_clusters(5)
    np.testing.assert_array_equal(after.votes, before.votes)
    assert (after.counted, after.spared, after.begun) == (before.counted, before.spared, before.begun)
    assert after.own.shape == (5, 5)
    assert not after.own.any()
    np.testing.assert_array_equal(after.parts(), [[0, 1]] * 5)


# dropping


def test_a_branch_goes_after_enough_ballots_in_a_row(blank: Ballot) -> None:
    before = cast(blank, TRUNK_HELPS, SPARED - 1)
    assert before.droppable(100, 100) is None
    assert cast(before, TRUNK_HELPS).droppable(100, 100) == OWN
    assert cast(blank, TRUNK_HELPS[::-1], SPARED).droppable(100, 100) == TRUNK
    broken = cast(cast(before, TRUNK_HELPS[::-1]), TRUNK_HELPS, SPARED - 1)
    assert broken.spared == (SPARED - 1, 0)
    assert broken.droppable(100, 100) is None


def test_what_is_shared_has_its_rounds_and_own_models_go_at_once(blank: Ballot) -> None:
    ballot, rounds = cast(blank, TRUNK_HELPS[::-1], 9), 12
    first = blank.begun + 1 + (rounds - blank.begun) // 2
    told = [ballot.droppable(round, rounds) for round in range(3, rounds + 1)]
    assert told == [None] * (first - 3) + [TRUNK] * (rounds - first + 1)
    assert {cast(blank, TRUNK_HELPS, 9).droppable(round, rounds) for round in range(3, rounds + 1)} == {OWN}


@pytest.mark.parametrize(("gain", "dropped"), [(0.9 * SETTLED, OWN), (1.1 * SETTLED, None)])
def test_own_models_stay_as_long_as_models_learn_quickly(gain: float, dropped: str | None, blank: Ballot) -> None:
    ballot = blank
    for step in range(SPARED):
        ballot = cast(ballot, np.array(TRUNK_HELPS) - gain * (1 - step / (SPARED - 1)))
    assert ballot.spared == (SPARED, 0)
    assert ballot.settled == (dropped is not None)
    assert ballot.droppable(5, 100) == dropped


def test_where_votes_are_unclear_both_stay(blank: Ballot) -> None:
    scores = np.full((5, MEMBERS), 0.2)
    scores[ONLY_TRUNK, ::2], scores[ONLY_OWN, 1::2] = 0.9, 0.9  # half of them want the one, half the other
    ballot = cast(blank, scores, 9)
    assert ballot.spared == (0, 0)
    assert ballot.droppable(100, 100) is None


@pytest.mark.parametrize(("lost", "spared"), [(LITTLE / 2, True), (1.5 * LITTLE, False)])
def test_a_little_may_be_lost(lost: float, spared: bool, blank: Ballot) -> None:
    ballot = cast(blank, (0.1, 0.9, 0.9, 0.9, 0.9 - lost), SPARED)
    assert ballot.spared == (SPARED * spared, 0)


@pytest.mark.parametrize(("better", "dropped"), [(ONLY_TRUNK, OWN), (ONLY_OWN, TRUNK)])
def test_of_two_that_could_go_the_better_stays(better: int, dropped: str, blank: Ballot) -> None:
    scores = np.full(5, 0.9)
    scores[better] += LITTLE / 4
    ballot = cast(blank, scores, SPARED)
    assert ballot.spared == (SPARED, SPARED)
    assert ballot.droppable(100, 100) == dropped


def test_where_own_models_are_hardly_heard_members_are_asked_about_another_now_and_then(blank: Ballot) -> None:
    faint = np.array([0.1, 0.2, 0.3, 0.9, 0.5])  # a quarter of own models is best, and much better than none
    ballot, asked = blank, []
    for number in range(1, 15):
        ballot = cast(ballot, faint)
        assert ballot.droppable(100, 100) is None
        if ballot.asks_for_another:
            asked.append(number)
            ballot = ballot.refused()
    assert asked == [SPARED, SPARED + AGAIN, SPARED + 2 * AGAIN]
    loud = cast(cast(blank, faint, SPARED).refused(), (90, 0, 0, 0, 0))
    assert loud.faint == SPARED - AGAIN  # nor sooner where own models were heard in between
    assert Ballot.blank(PAIR, 2, 10).droppable(12, 10) is None  # beyond the last round
    half = np.array([0.1, 0.2, 0.9, 0.3, 0.5])
    assert not any(cast(blank, half, times).asks_for_another for times in range(9))
    again = cast(cast(cast(blank, faint, SPARED - 1), 9 * half), 90 * faint, SPARED - 1)
    assert again.faint == SPARED - 1  # in a row
    silent = cast(cast(blank, faint, SPARED), np.full((5, MEMBERS), np.nan))
    assert silent.faint == SPARED


@pytest.mark.parametrize("names", [(TRUNK, GENERAL), (OWN, GENERAL)])
def test_a_general_model_is_never_left_alone(names: tuple[str, ...]) -> None:
    ballot = replace(Ballot.blank(names, 2, 2), votes=np.arange(len(mixtures_of(names)), dtype=np.float64))
    assert replace(ballot, spared=(99, 0)).droppable(100, 100) is None
    assert replace(ballot, spared=(99, 99)).droppable(100, 100) == GENERAL


# weights


def branches(names: Sequence[str], clusters: int) -> Branches:
    stacks = {name: Stack({"bias": torch.zeros(1 if name == GENERAL else clusters, 2)}) for name in names}
    return Branches(stacks, np.zeros(clusters, dtype=np.int64))


NAMES = [(OWN,), PAIR, (OWN, GENERAL), (TRUNK, GENERAL), (GENERAL, TRUNK), (OWN, TRUNK, GENERAL)]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("told", [False, True])
def test_what_clients_hear_is_whole(names: tuple[str, ...], told: bool) -> None:
    generator = np.random.default_rng(11)
    for clusters in (1, 2, 5):
        placed = generator.dirichlet(np.full(clusters, 0.3), 9)
        parts = generator.dirichlet(np.full(len(names), 0.3), clusters)
        parts[0] = np.eye(len(names))[-1]  # one cluster listens to the last branch alone
        general = generator.random(9) if told else None
        found = branches(names, clusters)
        weights = found.weights(placed, parts, general)
        assert weights.shape == (9, len(found.answering))
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1)
        if general is not None and GENERAL in names:
            np.testing.assert_allclose(weights[:, found.begins[GENERAL]], general)


@pytest.mark.parametrize("names", NAMES)
def test_a_member_hears_the_branches_of_its_cluster_as_they_are_weighed(names: tuple[str, ...]) -> None:
    parts = np.random.default_rng(4).dirichlet(np.ones(len(names)), 3)
    found, cluster = branches(names, 3), np.array([2, 0, 1, 2])
    expected = np.zeros((4, len(found.answering)))
    for place, name in enumerate(names):
        expected[np.arange(4), found.rows(name, cluster)] = parts[cluster, place]
    np.testing.assert_allclose(found.weights(np.eye(3)[cluster], parts), expected)


# kin


def alike(groups: Sequence[int], within: float = 0.8, between: float = 0.0) -> np.ndarray:
    number = np.array(groups)
    found = np.where(number[:, None] == number[None], within, between)
    np.fill_diagonal(found, 1.0)
    return found


def nearer(cosine: np.ndarray) -> np.ndarray:
    """The same where the last four are a little nearer to each other."""
    found = cosine.copy()
    found[-4:, -4:] = np.maximum(found[-4:, -4:], 0.05)
    return found


@pytest.mark.parametrize(
    ("cosine", "expected"),
    [
        (alike([0, 0, 0, 0, 0]), [0, 0, 0, 0, 0]),
        (alike([0, 0, 1, 1]), [0, 0, 1, 1]),
        (alike([1, 0, 1, 0, 0]), [0, 1, 0, 1, 1]),  # numbered in the order of clusters
        (nearer(alike([0] * 8 + [1, 1, 2, 2])), [0] * 8 + [1, 1, 2, 2]),  # halves of halves
        (nearer(alike([0, 0, 1, 1, 2, 2])), [0, 0, 0, 0, 0, 0]),  # three groups, but no two that agree within
        (alike([0, 1, 1]), [0, 1, 1]),
        (alike([0, 0, 1, 1], within=0.4), [0, 0, 0, 0]),  # too little agreement within
        (alike([0, 0, 1, 1], between=0.2), [0, 0, 0, 0]),  # too much between
        (alike([0, 1, 2, 3]), [0, 0, 0, 0]),  # nobody agrees with anybody
        (alike([0, 1], between=-1.0), [0, 0]),  # two alone show no agreement
        (alike([0]), [0]),
    ],
)
def test_kin_are_clusters_that_pull_as_one(cosine: np.ndarray, expected: list[int]) -> None:
    found = find_kin(cosine)
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_kin_agree_where_they_pull_the_same_way() -> None:
    kin = np.array([0, 0, 1, 1])
    assert agree(alike([0, 0, 1, 1]), kin)
    assert not agree(alike([0, 0, 1, 1], within=0.4), kin)
    assert not agree(alike([0, 1, 2, 3]), np.arange(4))  # nobody has kin
    large = np.array([0] * 8 + [1] * 2)
    cosine = alike(large.tolist(), within=0.9)
    cosine[8, 9] = cosine[9, 8] = -0.8
    assert not agree(cosine, large)  # each group for itself


def test_updates_are_compared_by_clusters_means() -> None:
    start = Stack({"weight": torch.tensor([[5.0, 5.0]])})
    moves = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [-2.0, -2.0]])
    sizes = np.array([1.0, 3.0, 10.0, 7.0])  # the first two make (0.75, 0.75)
    found = cosines(start, Stack({"weight": 5.0 + moves}), np.array([0, 0, 1, 3]), sizes, 5)
    half = np.sqrt(0.5)
    expected: Any = np.zeros((5, 5))  # nobody of the third trained, nor of the fifth
    expected[np.ix_([0, 1, 3], [0, 1, 3])] = [[1, half, -1], [half, 1, -half], [-1, -half, 1]]
    np.testing.assert_allclose(found, expected, atol=1e-12)
