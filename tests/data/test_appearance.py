"""Rotations and colours as pixel maps, against np.rot90, a search for the nearest pixel, and Pillow."""

from math import cos, radians, sin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedflux.data.shifts.appearance import PLAIN, Colour, Look, apply_look, rotation_map

TURNED = [72, 120, 144, 216, 240, 288]


def images(side: int, channels: int = 3, dtype: str = "uint8", count: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(1, 256, (count, channels, side, side))  # no zero, so that a zero means "outside"
    return (pixels / 255 if dtype.startswith("float") else pixels).astype(dtype)


@given(st.integers(1, 33), st.integers(1, 3), st.sampled_from(["uint8", "float32"]), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_quarter_turns_are_rot90(side, channels, dtype, quarters) -> None:
    x = images(side, channels, dtype)
    assert np.array_equal(apply_look(x, Look(90 * quarters)), np.rot90(x, quarters, axes=(2, 3)))


def test_the_direction_is_counter_clockwise() -> None:
    x = np.array([[[[1, 2], [3, 4]]]], np.uint8)
    assert apply_look(x, Look(90))[0, 0].tolist() == [[2, 4], [1, 3]]


@given(st.integers(2, 32))
@settings(max_examples=20, deadline=None)
def test_four_quarter_turns_are_none(side) -> None:
    x = turned = images(side)
    for _ in range(4):
        turned = apply_look(turned, Look(90))
    assert np.array_equal(turned, x)
    if side > 2:
        assert not np.array_equal(apply_look(x, Look(90)), x)


def test_a_half_turn_of_an_oblong_frame_fits() -> None:
    x = images(8)[:, :, :5]
    assert np.array_equal(apply_look(x, Look(180)), x[:, :, ::-1, ::-1])
    assert apply_look(x, Look(90)).shape == x.shape


@pytest.mark.parametrize("degrees", TURNED)
@pytest.mark.parametrize("side", [8, 9])
def test_every_pixel_comes_from_the_nearest_one_turned(side, degrees) -> None:
    """Turn every pixel's centre back by hand and search a grid with zeros around the image; ties may go either way."""
    x = images(side, channels=1, count=1)[0, 0]
    turned = apply_look(x[None, None], Look(degrees))[0, 0]
    surrounded = np.pad(x, side)
    grid_rows, grid_columns = np.indices(surrounded.shape) - side
    middle = (side - 1) / 2
    angle = radians(degrees)
    for row, column in np.ndindex(side, side):
        right, up = column - middle, middle - row
        across = middle + (cos(angle) * right + sin(angle) * up)
        down = middle - (cos(angle) * up - sin(angle) * right)
        distance = np.hypot(grid_rows - down, grid_columns - across)
        assert turned[row, column] in surrounded[distance < distance.min() + 1e-9]


@pytest.mark.parametrize("degrees", TURNED)
def test_rotations_agree_with_pillow(degrees) -> None:
    x = images(28, channels=1, count=1)
    pillow = np.asarray(Image.fromarray(x[0, 0]).rotate(degrees, Image.Resampling.NEAREST))
    assert np.mean(apply_look(x, Look(degrees))[0, 0] == pillow) > 0.99
    assert np.mean(apply_look(x, Look(360 - degrees))[0, 0] == pillow) < 0.5


@pytest.mark.parametrize("degrees", TURNED)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_corners_outside_the_frame_are_zero(degrees, dtype) -> None:
    turned = np.asarray(apply_look(images(28, dtype=dtype), Look(degrees)), np.float64)
    assert (turned[:, :, [0, 0, -1, -1], [0, -1, 0, -1]] == 0).all()
    assert (turned[:, :, 14, 14] > 0).all()
    share = (turned == 0).mean()  # a square and its turned copy share 76 to 92 % of their area
    assert 0.05 < share < 0.25
    _, outside = rotation_map(28, 28, degrees)
    assert outside.mean() == share


@pytest.mark.parametrize(("colour", "channel"), [("red", 0), ("green", 1), ("blue", 2)])
@pytest.mark.parametrize(("dtype", "top"), [("uint8", 255), ("float32", 1.0), ("float64", 1.0)])
def test_a_colour_fills_its_channel_and_no_other(colour: Colour, channel, dtype, top) -> None:
    x = images(5, dtype=dtype)
    coloured = apply_look(x, Look(0, colour))
    others = [c for c in range(3) if c != channel]
    assert coloured.dtype == x.dtype
    assert (coloured[:, channel] == top).all()
    assert np.array_equal(coloured[:, others], x[:, others])


def test_colour_fills_the_corners_a_rotation_left() -> None:
    turned = apply_look(images(8), Look(72, "green"))
    assert (turned[:, 1] == 255).all()
    assert (turned[:, [0, 2], 0, 0] == 0).all()


def test_plain_changes_nothing() -> None:
    x = images(7)
    assert np.array_equal(apply_look(x, PLAIN), x)
    assert np.array_equal(apply_look(x, Look(360)), x)


@pytest.mark.parametrize("look", [Look(90), Look(72), Look(0, "red"), Look(120, "blue")])
def test_the_input_is_never_modified(look) -> None:
    x = images(6)
    before = x.copy()
    x.flags.writeable = False
    result = apply_look(x, look)
    result[:] = 0
    assert np.array_equal(x, before)


def test_no_image_is_no_image() -> None:
    assert apply_look(images(6)[:0], Look(72, "red")).shape == (0, 3, 6, 6)
