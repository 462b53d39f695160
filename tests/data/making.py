"""Small files and arrays for the tests of this folder, and how to read an error."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedflux.data.sources import idx
from fedflux.errors import FedfluxError

FILES = idx.MNIST.layouts[0]


def error_of(call: Callable[[], object]) -> str:
    """The message of the FedfluxError the call must raise; it must be one line."""
    with pytest.raises(FedfluxError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def idx_images(x: np.ndarray) -> bytes:
    return b"".join(int(n).to_bytes(4, "big") for n in (0x803, *x.shape)) + x.tobytes()


def idx_labels(y: np.ndarray) -> bytes:
    return b"".join(int(n).to_bytes(4, "big") for n in (0x801, len(y))) + y.astype(np.uint8).tobytes()


def idx_contents(filenames=FILES, train=6, test=3, seed=0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    parts = [
        encode(values)
        for count in (train, test)
        for encode, values in (
            (idx_images, rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)),
            (idx_labels, rng.integers(0, 10, count)),
        )
    ]
    return dict(zip(filenames, parts, strict=True))


def write_idx(folder: Path, contents: dict[str, bytes], packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for filename, content in contents.items():
        if packed:
            (folder / filename).write_bytes(gzip.compress(content))
        else:
            (folder / filename.removesuffix(".gz")).write_bytes(content)
    return folder
