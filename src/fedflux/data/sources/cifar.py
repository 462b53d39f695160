"""CIFAR-10 and CIFAR-100 from the official python batches, read without trusting the pickles."""

import codecs
import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.sources.fetch import Originals, Remote, find_files
from fedflux.errors import FedfluxError

_BASE = "https://www.cs.toronto.edu/~kriz/"
_PIXELS = 3 * 32 * 32

CIFAR10 = Originals(
    "cifar10",
    layouts=(
        ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"),
        ("cifar-10-python.tar.gz",),
    ),
    subfolders=("cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
    remotes=(Remote(_BASE + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
)
CIFAR100 = Originals(
    "cifar100",
    layouts=(("train", "test"), ("cifar-100-python.tar.gz",)),
    subfolders=("cifar100", "cifar-100-python", "cifar100/cifar-100-python"),
    remotes=(Remote(_BASE + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
)


def load_cifar10(data_dir: Path | None = None) -> Dataset:
    """CIFAR-10's 50,000 + 10,000 colour images of 10 classes."""
    return _load(CIFAR10, data_dir, b"labels", classes=10)


def load_cifar100(data_dir: Path | None = None) -> Dataset:
    """CIFAR-100's 50,000 + 10,000 colour images with their 100 fine classes."""
    return _load(CIFAR100, data_dir, b"fine_labels", classes=100)


def _load(originals: Originals, data_dir: Path | None, labels: bytes, classes: int) -> Dataset:
    batches = originals.layouts[0]
    files = find_files(originals, data_dir)
    contents = _read_tar(files[0], batches) if len(files) == 1 else _read_files(files)
    *train, test = [_examples(where, content, labels) for where, content in contents]
    joined = Examples(np.concatenate([part.x for part in train]), np.concatenate([part.y for part in train]))
    return Dataset(originals.name, joined, test, classes)


def _read_files(files: tuple[Path, ...]) -> list[tuple[str, bytes]]:
    try:
        return [(str(file), file.read_bytes()) for file in files]
    except OSError as error:
        raise FedfluxError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _read_tar(file: Path, batches: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """The batches out of the archive, in one pass and in memory: no member's path is ever written to."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                filename = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if member.isfile() and filename in batches else None
                if stream is not None:
                    found[filename] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise FedfluxError(f"{file}: not a readable tar archive; download it again") from error
    for filename in batches:
        if filename not in found:
            raise FedfluxError(f"{file}: holds no {filename}; the official archive does")
    return [(f"{file}: {filename}", found[filename]) for filename in batches]


def _examples(where: str, content: bytes, labels: bytes) -> Examples:
    batch = unpickle(where, content)
    if not isinstance(batch, dict) or not {b"data", labels} <= batch.keys():
        raise FedfluxError(f"{where}: not a CIFAR batch: it must be a dictionary with 'data' and '{labels.decode()}'")
    x = batch[b"data"]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != _PIXELS:
        form = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise FedfluxError(f"{where}: 'data' must be uint8 of shape (N, {_PIXELS}), not {form}")
    y = _labels(where, batch[labels], labels.decode())
    if len(x) != len(y):
        raise FedfluxError(f"{where}: {len(x)} images but {len(y)} labels")
    return Examples(x.reshape(-1, 3, 32, 32), y)


def _labels(where: str, values: object, key: str) -> NDArray[np.int64]:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise FedfluxError(f"{where}: '{key}' must be a list of class numbers")
    return np.array(values, np.int64)


# The function numpy's own pickles name `_reconstruct`; the module it lives in depends on numpy's version.
_reconstruct = np.empty(0).__reduce__()[0]

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the names numpy arrays need and no others, so a pickle from the network cannot run code."""

    def __init__(self, where: str, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """The allowed object of that name."""
        if (module, name) not in _ALLOWED:
            raise FedfluxError(
                f"{self._where}: refused: this pickle asks for {module}.{name}; a CIFAR batch never does"
            )
        return _ALLOWED[module, name]


def unpickle(where: str, content: bytes) -> object:
    """The plain values and numpy arrays of a pickle; anything else in it is refused by name."""
    try:
        value: object = _ArrayUnpickler(where, content).load()
    except FedfluxError:
        raise
    except Exception as error:  # a damaged pickle can raise anything, as the pickle module documents
        reason = " ".join(str(error).split())
        raise FedfluxError(f"{where}: corrupt or truncated batch ({reason}); download it again") from error
    return value
