"""Many image files as one array: decoded once, and kept beside them for the next time where that is allowed."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedflux.data.sources.folder import decode
from fedflux.errors import FedfluxError
from fedflux.files import written_whole

SIDE = 64
"""Height and width that images are brought to: the protocol's."""
WORTH = 1000
"""Images from which on it is worth keeping what was decoded."""


def read_images(root: Path, paths: Sequence[Path], grey: bool) -> NDArray[np.uint8]:
    """(N, channels, 64, 64), bytes."""
    kept = root / f".fedflux-{SIDE}-{_digest(root, paths, grey)[:16]}.npy"
    shape = (len(paths), 1 if grey else 3, SIDE, SIDE)
    if len(paths) >= WORTH and kept.is_file():
        found: NDArray[np.uint8] = np.load(kept, mmap_mode="r", allow_pickle=False)
        if found.shape == shape and found.dtype == np.uint8:
            return found
    x = np.empty(shape, np.uint8)
    for row, path in enumerate(paths):
        pixels = decode(path, "L" if grey else "RGB", (SIDE, SIDE))
        x[row] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    if len(paths) >= WORTH:
        _keep(kept, x)
    return x


def _keep(path: Path, x: NDArray[np.uint8]) -> None:
    """A folder that nobody may write to is decoded anew each time."""
    try:
        with written_whole(path) as handle:
            np.save(handle, x, allow_pickle=False)
    except (OSError, FedfluxError):
        return


def _digest(root: Path, paths: Sequence[Path], grey: bool) -> str:
    """Which files, how large and how old, and in which form."""
    digest = sha256(f"{len(paths)} {grey}".encode())
    for path in paths:
        try:
            file = path.stat()
        except OSError as error:
            raise FedfluxError(f"{path}: cannot be read: {error.strerror}") from error
        digest.update(f"{path.relative_to(root)} {file.st_size} {file.st_mtime_ns}\n".encode())
    return digest.hexdigest()
