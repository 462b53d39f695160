"""Sequences and caches behind large populations: the same items as a tuple would hold, without holding them."""

import pickle

import pytest

from fedflux.data import lazy
from fedflux.data.cache import ByteCache
from fedflux.data.lazy import Lazy
from fedflux.data.shifts.patterns import PatternDraw, ShiftSettings


def test_it_reads_like_a_tuple() -> None:
    squares, held = Lazy(7, lambda k: k * k), tuple(k * k for k in range(7))
    assert len(squares) == 7
    assert tuple(squares) == held
    assert (squares[3], squares[-1], squares[2:6:2], squares[::-1]) == (9, 36, (4, 16), held[::-1])
    assert 25 in squares
    for index in (7, -8):
        with pytest.raises(IndexError):
            squares[index]


def test_an_item_is_made_when_it_is_asked_for_and_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "KEPT", 2)
    made: list[int] = []

    def make(k: int) -> int:
        made.append(k)
        return k

    items = Lazy(10**9, make)
    assert made == []
    for k in (5, 5, 10**9 - 1, 5, 8, 5, 10**9 - 1):
        assert items[k] == k
    assert made == [5, 10**9 - 1, 8, 10**9 - 1]


def test_it_travels_as_a_recipe() -> None:
    patterns = Lazy(10**6, PatternDraw("pxgy+py", 3, ShiftSettings(5, 10)))
    assert patterns[77] == patterns[77]
    packed = pickle.dumps(patterns)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    assert len(again) == 10**6
    assert again[10**6 - 1] == patterns[10**6 - 1]
    assert again[77] == patterns[77]


def test_the_cache_drops_the_least_recently_used() -> None:
    cache: ByteCache[str] = ByteCache()
    for key in "abc":
        cache.put(key, key.upper(), 10, most=30)
    assert cache.get("a") == "A"
    cache.put("d", "D", 15, most=30)  # b and c go: a was asked for after them
    assert [cache.get(key) for key in "abcd"] == ["A", None, None, "D"]
    assert (len(cache), cache.nbytes) == (2, 25)


def test_the_cache_counts_what_it_holds() -> None:
    cache: ByteCache[int] = ByteCache()
    cache.put("a", 1, 10, most=30)
    cache.put("a", 2, 20, most=30)
    assert (cache.get("a"), len(cache), cache.nbytes) == (2, 1, 20)
    cache.put("b", 3, 31, most=30)  # would not fit if it were alone
    assert (cache.get("b"), len(cache), cache.nbytes) == (None, 1, 20)
    cache.put("a", 4, 31, most=30)
    assert (cache.get("a"), len(cache), cache.nbytes) == (None, 0, 0)
