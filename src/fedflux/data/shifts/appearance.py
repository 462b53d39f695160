"""How an image looks: rotations and colours as exact pixel maps, so a partition is the same on every device."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Colour = Literal["original", "red", "green", "blue"]
COLOUR_CHANNELS: dict[Colour, int] = {"red": 0, "green": 1, "blue": 2}


@dataclass(frozen=True, order=True)
class Look:
    """One appearance: a rotation in degrees (counter-clockwise) and a colour."""

    rotation: int = 0
    colour: Colour = "original"


PLAIN = Look()


@lru_cache(maxsize=64)
def rotation_map(height: int, width: int, degrees: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For every output pixel its nearest source pixel, and whether it lies outside the frame (then it is zero).

    Computed in float64 and rounded once, so quarter turns are exact and no interpolation depends on a device.
    """
    angle = np.deg2rad(degrees)
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    y, x = rows - (height - 1) / 2, columns - (width - 1) / 2
    source_y = np.round(np.cos(angle) * y + np.sin(angle) * x + (height - 1) / 2, 9)
    source_x = np.round(-np.sin(angle) * y + np.cos(angle) * x + (width - 1) / 2, 9)
    nearest_y, nearest_x = (np.floor(s + 0.5).astype(np.int64) for s in (source_y, source_x))
    outside = (nearest_y < 0) | (nearest_y >= height) | (nearest_x < 0) | (nearest_x >= width)
    index = np.where(outside, 0, nearest_y * width + nearest_x)
    return index.ravel(), outside.ravel()


def apply_look(x: NDArray[np.generic], look: Look) -> NDArray[np.generic]:
    """Images (N, channels, height, width) in that look: zeros outside the frame, the colour's channel at its top."""
    count, channels, height, width = x.shape
    if look.rotation % 360:
        index, outside = rotation_map(height, width, look.rotation % 360)
        flat = x.reshape(count, channels, height * width)[:, :, index]
        flat[:, :, outside] = 0
        x = flat.reshape(x.shape)
    if look.colour != "original":
        x = x.copy()
        x[:, COLOUR_CHANNELS[look.colour]] = 255 if x.dtype == np.uint8 else 1
    return x
