"""Scaling: what models see of raw numbers, and standardisation from what clients tell."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflux.data.scaling import PIXELS, UNASKED, UNCHANGED, Scaling, Spread, chosen
from fedflux.errors import FedfluxError

RNG = np.random.default_rng(0)


def test_bytes_stay_bytes_until_an_engine_needs_them() -> None:
    x = RNG.integers(0, 256, (4, 1, 3, 3), dtype=np.uint8)
    assert PIXELS.prepared(x) is x
    assert PIXELS.pixels == (0.5, 0.5)
    assert UNCHANGED.pixels is None


@pytest.mark.parametrize(("kind", "kept"), [("float64", "float32"), ("int16", "int64"), ("uint8", "int64")])
def test_unscaled_numbers_are_as_they_are(kind: str, kept: str) -> None:
    x = RNG.integers(0, 9, (4, 5)).astype(kind)
    found = UNCHANGED.prepared(x)
    assert found.dtype == kept
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(("dtype", "kind"), [("uint8", "pixels"), ("float32", "standardise"), ("int64", "standardise")])
def test_bytes_are_pixels_and_everything_else_is_standardised(dtype: str, kind: str) -> None:
    x = np.ones((2, 3), dtype)
    assert chosen("auto", x).kind == kind
    assert chosen("none", x).kind == "none"


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.sampled_from([(4,), (3, 8), (2, 3, 5)]),
    st.sampled_from([0.0, 1e3, 1.7e9]),
)
def test_clients_spreads_add_up_to_that_of_everything(sizes: list[int], shape: tuple[int, ...], offset: float) -> None:
    parts = [RNG.normal(offset, 3.0, (size, *shape)) for size in sizes]
    whole = np.concatenate(parts)
    values = np.moveaxis(whole, 1, 0).reshape(shape[0], -1)
    scaling = reduce(add, map(Spread.of, parts)).scaling()
    np.testing.assert_allclose(scaling.mean, values.mean(axis=1), rtol=1e-12)
    if values.shape[1] == 1:
        assert scaling.deviation == (1.0,) * shape[0]
        return
    np.testing.assert_allclose(scaling.deviation, values.std(axis=1), rtol=1e-6)
    found = scaling.prepared(whole)
    assert found.dtype == np.float32
    across = tuple(axis for axis in range(found.ndim) if axis != 1)
    np.testing.assert_allclose(found.astype(np.float64).mean(axis=across), 0, atol=1e-5)


def test_a_feature_that_never_changes_becomes_zero() -> None:
    x = np.stack([np.arange(5.0), np.full(5, 7e8)], axis=1)
    spread = Spread.of(x)
    assert spread.constant.tolist() == [1]
    np.testing.assert_array_equal(spread.scaling().prepared(x)[:, 1], 0)


def test_it_is_refused_for_inputs_of_another_shape() -> None:
    with pytest.raises(FedfluxError, match=r"inputs of shape \(3,\) do not fit a scaling of 2 features"):
        Scaling("standardise", (0.0, 0.0), (1.0, 1.0)).prepared(np.zeros((4, 3)))


def test_it_travels_as_plain_values() -> None:
    for one in (PIXELS, UNCHANGED, UNASKED, Scaling("standardise", (1.0, 2.0), (3.0, 4.0))):
        assert Scaling.from_plain(one.as_plain()) == one


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "odd"},
        {"mean": [0.0]},
        {"deviation": [1.0, 0.0]},
        {"mean": [0.0, float("nan")]},
        {"deviation": [1.0, -1.0]},
        {"kind": "pixels"},
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object]) -> None:
    told = {"kind": "standardise", "mean": [0.0, 1.0], "deviation": [1.0, 1.0], **changes}
    with pytest.raises(ValueError, match="a scaling"):
        Scaling.from_plain(told)
