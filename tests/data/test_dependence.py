"""Records that look as if they belonged together are noticed, and others are left alone."""

from pathlib import Path

import numpy as np
import pytest

from fedflux.data.dataset import Examples
from fedflux.data.sources import load
from fedflux.data.sources.dependence import dependence


def people(rng: np.random.Generator, each: int, alike: float = 0.6) -> Examples:
    """Images of people, `each` of every one, next to each other."""
    group = np.repeat(np.arange(600 // each), each)
    common, own = rng.normal(size=(len(group) // each, 100))[group], rng.normal(size=(len(group), 100))
    x = np.sqrt(alike) * common + np.sqrt(1 - alike) * own
    return Examples(x.reshape(-1, 1, 10, 10), group % 2, group % 3)


def shuffled(examples: Examples, rng: np.random.Generator) -> Examples:
    order = rng.permutation(len(examples))
    assert examples.client is not None
    return Examples(examples.x[order], examples.y[order], examples.client[order])


def test_people_in_order_are_noticed() -> None:
    signs = dependence(people(np.random.default_rng(0), 5))
    assert signs is not None
    assert "next to each other" in signs


def test_near_copies_are_noticed_in_any_order() -> None:
    rng = np.random.default_rng(0)
    signs = dependence(shuffled(people(rng, 2, alike=0.9999), rng))
    assert signs is not None
    assert "near-copy" in signs


def test_independent_records_are_left_alone() -> None:
    alarms = [dependence(people(np.random.default_rng(seed), 1)) is not None for seed in range(60)]
    assert sum(alarms) <= 1


def test_known_groups_and_few_records_say_nothing() -> None:
    examples = people(np.random.default_rng(0), 5)
    few = Examples(examples.x[:50], examples.y[:50])
    assert dependence(few) is None
    assert dependence(Examples(examples.x, examples.y, group=np.arange(600) // 5)) is None


def test_loading_warns_in_one_line_where_groups_are_missing(tmp_path: Path) -> None:
    examples = people(np.random.default_rng(0), 5)
    np.savez(tmp_path / "d.npz", x=examples.x, y=examples.y)
    with pytest.warns(UserWarning, match=r"npz: records next to each other.*groups"):
        load("npz", tmp_path / "d.npz")
