"""Small files and arrays for the tests of this folder, and how to read an error."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedflux.data import Dataset, Examples, Federation, Split
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


def pictures(
    train: int = 200, test: int = 100, classes: int = 10, side: int = 6, channels: int = 1, seed: int = 0
) -> Dataset:
    """Random uint8 images, all different, with every class equally often in both parts."""
    rng = np.random.default_rng(seed)
    parts = [
        Examples(
            rng.integers(0, 256, (count, channels, side, side), dtype=np.uint8),
            rng.permutation(np.arange(count) % classes),
        )
        for count in (train, test)
    ]
    return Dataset("pictures", parts[0], parts[1], classes)


def owned(sizes: list[int], clusters: list[int] | None = None, classes: int = 3) -> Dataset:
    """Images that come split: client k holds sizes[k] training and as many test images, interleaved with the others."""
    rng = np.random.default_rng(5)
    count = sum(sizes)
    parts = [
        Examples(
            rng.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8),
            np.arange(count) % classes,
            rng.permutation(np.repeat(np.arange(len(sizes)), sizes)),
        )
        for _ in range(2)
    ]
    names = tuple(f"hospital {k}" for k in range(len(sizes)))
    return Dataset("owned", parts[0], parts[1], classes, names, None if clusters is None else np.array(clusters))


def rebuilt(federation: Federation, client: int, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """A client's examples made from its rows and its pattern image by image, with np.rot90 and plain Python."""
    part = federation.dataset.test if split == "test" else federation.dataset.train
    pattern = federation.patterns[client]
    rotations = {label: look.rotation for label, look in pattern.class_looks}
    x, y = [], []
    for row in getattr(federation.rows[client], split):
        label = int(part.y[row])
        quarters, rest = divmod(pattern.look.rotation + rotations.get(label, 0), 90)
        assert rest == 0
        image = np.rot90(
            np.concatenate([part.x[row]] * (federation.input_shape[0] // len(part.x[row]))), quarters, (1, 2)
        )
        image = image.copy()
        if pattern.look.colour != "original":
            image[["red", "green", "blue"].index(pattern.look.colour)] = 255
        x.append(image)
        y.append(label if pattern.relabel is None else pattern.relabel[label])
    return np.array(x), np.array(y)
