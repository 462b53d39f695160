"""Whatever a state holds comes back as it was, bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from json import dumps, loads
from math import isnan
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from fedflux.savable import put_together, take_apart


@dataclass(frozen=True, eq=False)
class Inner:
    tensors: Mapping[str, Tensor]
    kind: Literal["found", "true"] = "found"


@dataclass(frozen=True, eq=False)
class Outer:
    inner: Inner
    labels: NDArray[np.int64]
    flags: NDArray[np.bool_]
    scores: tuple[float, ...]
    pair: tuple[int, str]
    missing: Inner | None = None
    count: int | None = None
    name: str = ""


def through_disk(value: Any) -> Any:
    tensors, outline = take_apart(value)
    return put_together(type(value), load(save(tensors)), loads(dumps(outline, allow_nan=False)))


def same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
    if is_dataclass(one):
        return type(one) is type(two) and all(same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple):
        return type(two) is tuple and len(one) == len(two) and all(map(same, one, two))
    return bool(one == two or (isinstance(one, float) and isnan(one) and isnan(two)))


@given(
    scores=st.lists(st.floats(), max_size=5).map(tuple),
    labels=st.lists(st.integers(-(2**62), 2**62), max_size=6),
    nested=st.booleans(),
    count=st.none() | st.integers(),
    name=st.text(),
)
def test_a_state_comes_back(
    scores: tuple[float, ...], labels: list[int], nested: bool, count: int | None, name: str
) -> None:
    shared = torch.randn(3, 2)
    inner = Inner({"a.weight": shared, "b": torch.tensor([[1], [2]]), "same storage": shared})
    state = Outer(
        inner, np.array(labels, dtype=np.int64), np.array([True, False]), scores, (3, "x"), inner if nested else None,
        count, name,
    )  # fmt: skip
    assert same(state, through_disk(state))


def test_views_and_odd_strides_come_back() -> None:
    inner = Inner({"t": torch.arange(12).reshape(3, 4).T[1:]}, "true")
    state = Outer(inner, np.arange(10)[::3], np.zeros(0, dtype=bool), (), (1, ""))
    assert same(state, through_disk(state))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 0, 2)])
def test_arrays_keep_their_shape(shape: tuple[int, ...]) -> None:
    state = Outer(Inner({"t": torch.ones(shape)}), np.full(shape, 3), np.ones(shape, bool), (), (1, ""))
    back = through_disk(state)
    assert back.labels.shape == back.flags.shape == tuple(back.inner.tensors["t"].shape) == shape
    assert same(state, back)


def test_numpy_scalars_become_plain_numbers() -> None:
    state = Outer(Inner({}), np.zeros(1, np.int64), np.zeros(1, bool), (np.float64(0.1),), (np.int64(4), "x"))  # type: ignore[arg-type]
    back = through_disk(state)
    assert back.scores == (0.1,)
    assert type(back.pair[0]) is int


@dataclass(frozen=True)
class Odd:
    thing: object


@pytest.mark.parametrize("thing", [object(), {1: 2}, {"a": {3, 4}}])
def test_what_cannot_be_saved_is_named(thing: object) -> None:
    with pytest.raises(TypeError, match=r"state\.thing"):
        take_apart(Odd(thing))


def test_a_missing_array_is_an_error() -> None:
    state = Outer(Inner({"a": torch.ones(1)}), np.zeros(1, np.int64), np.zeros(1, bool), (), (1, "x"))
    tensors, outline = take_apart(state)
    del tensors["state.labels"]
    with pytest.raises(KeyError):
        put_together(Outer, tensors, outline)


def test_what_was_added_since_has_its_default_and_what_must_be_told_is_an_error() -> None:
    state = Outer(Inner({"a": torch.ones(1)}), np.zeros(1, np.int64), np.zeros(1, bool), (), (1, "x"), count=3)
    tensors, outline = take_apart(state)
    del outline["count"]
    assert put_together(Outer, tensors, outline).count is None
    del outline["pair"]
    with pytest.raises(TypeError, match="pair"):
        put_together(Outer, tensors, outline)
