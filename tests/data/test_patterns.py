"""What each shift draws: pools common to all clients, independent draws inside them, and truth by content."""

from functools import partial
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.making import error_of

from fedflux.data.shifts import levels
from fedflux.data.shifts.patterns import (
    MIXES,
    SHIFTS,
    Pattern,
    PatternDraw,
    ShiftSettings,
    pattern_truth,
    shift_parts,
    soft_weights,
)

seeds = st.integers(0, 2**32)


def draw(shift: str, clients: int = 12, seed: int = 42, level: int = 5, classes: int = 10, **more) -> list[Pattern]:
    draw = PatternDraw(shift, seed, ShiftSettings(level, classes, **more))
    return [draw(k) for k in range(clients)]


def relabelled(pattern: Pattern) -> tuple[int, ...]:
    assert pattern.relabel is not None
    return pattern.relabel


def kept(pattern: Pattern) -> tuple[int, ...]:
    assert pattern.kept is not None
    return pattern.kept


def clusters(patterns: list[Pattern]) -> int:
    return len(set(pattern_truth(patterns).tolist()))


ONLY = {"none": set(), "dirichlet": set(), "px": {"look"}, "py": {"kept"}, "pygx": {"relabel"}, "pxgy": {"class_looks"}}


def filled(patterns: list[Pattern]) -> set[str]:
    empty = Pattern()
    return {f for p in patterns for f in p.__dataclass_fields__ if getattr(p, f) != getattr(empty, f)}


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_shift_fills_its_own_field_only(shift) -> None:
    assert filled(draw(shift)) == ONLY[shift]


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_fills_both_fields_with_what_each_shift_draws_alone(mix) -> None:
    first, second = mix.split("+")
    assert filled(draw(mix)) == ONLY[first] | ONLY[second]
    assert draw(mix) == [a.merge(b) for a, b in zip(draw(first), draw(second), strict=True)]


# P(X)


@pytest.mark.parametrize("level", levels.LEVELS)
def test_px_draws_from_the_levels_bank_and_reaches_all_of_it(level) -> None:
    looks = {pattern.look for pattern in draw("px", 300, level=level)}
    assert looks == set(levels.feature_looks(level))


# P(Y)


@given(seeds, st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_py_has_a_bank_of_five_subsets_of_the_levels_size(seed, level) -> None:
    subsets = [kept(pattern) for pattern in draw("py", 60, seed, level)]
    assert len(set(subsets)) <= 5
    for subset in subsets:
        assert len(set(subset)) == len(subset) == 11 - level
        assert set(subset) <= set(range(10))


def test_py_uses_the_whole_bank_and_its_size_can_be_chosen() -> None:
    assert clusters(draw("py", 200)) == 5
    assert clusters(draw("py", 200, bank=3)) == 3
    assert clusters(draw("py", 200, bank=1)) == 1


def test_py_subsets_of_the_bank_that_coincide_are_one_cluster() -> None:
    assert clusters(draw("py", 50, level=1)) == 1, "all ten classes: every subset of the bank is the same"
    # Three subsets of one class each: a bank of many must coincide, whatever index a client drew.
    patterns = draw("py", 200, level=8, classes=3, bank=40)
    assert clusters(patterns) == len({kept(pattern) for pattern in patterns}) == 3


# P(Y|X)


@given(seeds, st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_pygx_permutes_inside_one_pool_for_all_clients(seed, level) -> None:
    tables = np.array([relabelled(pattern) for pattern in draw("pygx", 80, seed, level)])
    moved = np.flatnonzero((tables != np.arange(10)).any(axis=0))
    assert len(moved) <= level
    if level > 1:
        assert len(moved) == level, "80 clients move every class of the pool at least once"
    for table in tables:
        assert sorted(table.tolist()) == list(range(10))


def test_pygx_level_1_changes_nothing_and_is_one_cluster() -> None:
    patterns = draw("pygx", 30, level=1)
    assert {relabelled(pattern) for pattern in patterns} == {tuple(range(10))}
    assert clusters(patterns) == 1


def test_pygx_reaches_every_permutation_of_a_small_pool() -> None:
    assert clusters(draw("pygx", 200, level=3)) == factorial(3)
    assert clusters(draw("pygx", 10, level=8)) == 10, "8! permutations: ten clients are ten clusters"


def test_pygx_by_cifar100s_rule_moves_its_own_number_of_classes() -> None:
    tables = np.array([relabelled(p) for p in draw("pygx", 40, level=3, classes=100, hundred_rule=True)])
    assert (tables != np.arange(100)).any(axis=0).sum() == 50


# P(X|Y)


@given(seeds, st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_pxgy_draws_one_of_four_rotations_for_each_class_of_one_pool(seed, level) -> None:
    patterns = draw("pxgy", 100, seed, level)
    pools = {tuple(label for label, _ in pattern.class_looks) for pattern in patterns}
    assert len(pools) == 1
    assert len(set(pools.pop())) == level
    rotations = {look.rotation for pattern in patterns for _, look in pattern.class_looks}
    assert rotations == {0, 90, 180, 270}
    assert all(look.colour == "original" for pattern in patterns for _, look in pattern.class_looks)


def test_pxgy_classes_are_drawn_independently() -> None:
    patterns = draw("pxgy", 400, level=2)
    pairs = {(first[1].rotation, second[1].rotation) for first, second in (p.class_looks for p in patterns)}
    assert len(pairs) == 16
    assert clusters(patterns) == 16


def test_pxgy_by_cifar100s_rule_has_nine_looks() -> None:
    patterns = draw("pxgy", 20, level=3, classes=100, hundred_rule=True)
    assert {len(pattern.class_looks) for pattern in patterns} == {30}
    assert len({look for pattern in patterns for _, look in pattern.class_looks}) == 9


# truth, streams, banks


def test_truth_is_content_numbered_by_first_appearance() -> None:
    a, b = Pattern(kept=(1, 2)), Pattern(kept=(1, 3))
    assert pattern_truth([b, a, Pattern(kept=(1, 2)), b, Pattern()]).tolist() == [0, 1, 1, 0, 2]


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
@pytest.mark.parametrize("shared", [False, True])
def test_a_clients_pattern_does_not_depend_on_how_many_there_are(shift, shared) -> None:
    many = draw(shift, 40, shared=shared)
    assert draw(shift, 7, shared=shared) == many[:7]
    assert many == draw(shift, 40, shared=shared)
    if shift not in ("none", "dirichlet"):
        assert many != draw(shift, 40, seed=43, shared=shared)


@pytest.mark.parametrize("shift", ["pygx", "pxgy"])
@pytest.mark.parametrize("bank", [1, 3, 5])
def test_shared_patterns_give_as_many_clusters_as_the_bank(shift, bank) -> None:
    shared = draw(shift, 200, level=8, shared=True, bank=bank)
    assert clusters(shared) == bank
    assert clusters(draw(shift, 200, level=8, bank=bank)) > 150


@given(seeds, st.integers(1, 8), st.integers(1, 6), st.sampled_from(["py", "pygx", "pxgy"]))
@settings(max_examples=30, deadline=None)
def test_shared_patterns_never_exceed_the_bank(seed, level, bank, shift) -> None:
    assert clusters(draw(shift, 40, seed, level, shared=True, bank=bank)) <= bank


def test_shared_draws_stay_inside_the_common_pool() -> None:
    alone = np.array([relabelled(p) for p in draw("pygx", 200, level=4)])
    shared = np.array([relabelled(p) for p in draw("pygx", 200, level=4, shared=True)])
    pool = (alone != np.arange(10)).any(axis=0)
    assert pool.sum() == 4
    assert not (shared != np.arange(10)).any(axis=0)[~pool].any()


# soft skews


@given(seeds, st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_soft_weights_run_from_uniform_to_one_hot(seed, count) -> None:
    def weights(strength: float) -> np.ndarray:
        return np.array(soft_weights(np.random.default_rng(seed), count, strength))

    assert np.allclose(weights(0), 1 / count)
    assert sorted(weights(1).tolist()) == [0.0] * (count - 1) + [1.0]
    tops, lows = [], []
    for strength in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1):
        w = weights(strength)
        assert (w >= 0).all()
        assert np.isclose(w.sum(), 1)
        assert w.argmax() == weights(1).argmax() or strength == 0
        tops.append(w.max())
        lows.append(w.min())
    assert (np.diff(tops) >= -1e-12).all()
    assert (np.diff(lows) <= 1e-12).all()
    if count > 1:
        assert tops[3] > tops[0]
        assert tops[4] > tops[3] or np.isclose(tops[3], 1)


def test_half_strength_is_the_plain_softmax() -> None:
    scores = np.random.default_rng(3).standard_normal(6)
    expected = np.exp(scores) / np.exp(scores).sum()
    assert np.allclose(soft_weights(np.random.default_rng(3), 6, 0.5), expected)


def test_soft_shifts_weigh_looks_and_labels() -> None:
    patterns = draw("px+py", 6, level=3, strength=0.6)
    assert filled(patterns) == {"look_weights", "label_weights"}
    for pattern in patterns:
        assert [look for look, _ in pattern.look_weights] == list(levels.feature_looks(3))
        assert np.isclose(sum(weight for _, weight in pattern.look_weights), 1)
        assert len(pattern.label_weights or ()) == 10
    assert clusters(patterns) == 6
    assert clusters(draw("px", 100, strength=0.6, shared=True, bank=4)) == 4


# what is refused


def test_refusals() -> None:
    assert "did you mean 'pygx'?" in error_of(lambda: shift_parts("pygxx"))
    assert "unknown shift 'py+px'" in error_of(lambda: shift_parts("py+px"))
    assert shift_parts("pygx+py") == ["pygx", "py"]
    assert "level 9 does not exist" in error_of(lambda: draw("px", level=9))
    for strength in (-0.1, 1.1, float("nan")):
        assert "outside 0 to 1" in error_of(partial(draw, "px", strength=strength))
    for shift in ("pygx", "pxgy", "none", "dirichlet", "pxgy+py"):
        assert "soft skews of px and py" in error_of(partial(draw, shift, strength=0.5))
    assert "bank of 0 patterns" in error_of(lambda: draw("py", bank=0))


@pytest.mark.parametrize("shift", [*SHIFTS, *MIXES])
@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("level", [1, 8])
def test_few_classes_are_enough_for_every_shift(shift, classes, level) -> None:
    patterns = draw(shift, 5, level=level, classes=classes)
    assert len(patterns) == 5
    for pattern in patterns:
        assert set(pattern.kept or ()) | set(pattern.relabel or ()) <= set(range(classes))
