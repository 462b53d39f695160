"""The digits partitions of the four shifts, pinned: a change of any pixel, label or order of rows is noticed here.

The values come from running the code; what they stand for is rebuilt image by image beside them.
"""

from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pytest
from tests.data.making import rebuilt

from fedflux.data import Federation, Partition, partition
from fedflux.data.export import SPLITS
from fedflux.data.sources import load

CHECKSUMS = {
    "px": "350561edb352a6cbfed7577514d810c7157947a2b14c23a6348a54e0e10fc282",
    "py": "ba670831a4a421caface47203f6e2860808aa07d7ee92603229555e94e5006e1",
    "pygx": "0589f1e3087ac72820e24d5146f13a51342ebcfe675db4d8ba2b29e6173d88d6",
    "pxgy": "c1ab9cb7aa2bf093a3715f0475fbcba667b541c139980e4fc72efd90a3c35843",
}
"""SHA-256 over x and y of train, validation and test of clients 0 to 3: level 5, seed 42."""


def checksum(arrays: Iterator[np.ndarray]) -> str:
    digest = sha256()
    for array in arrays:
        digest.update(f"torch.{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def held(federation: Federation) -> Iterator[np.ndarray]:
    for k in range(len(federation)):
        for split in SPLITS:
            data = federation.materialise(k, split)
            yield from (data.x.numpy(), data.y.numpy())


@pytest.mark.parametrize("shift", CHECKSUMS)
def test_a_published_partition_stays_what_it_is(shift) -> None:
    federation = partition(load("digits"), Partition(shift, level=5, clients=4, seed=42))
    assert checksum(held(federation)) == CHECKSUMS[shift]
    by_hand = (array for k in range(4) for split in SPLITS for array in rebuilt(federation, k, split))
    assert checksum(by_hand) == CHECKSUMS[shift]
