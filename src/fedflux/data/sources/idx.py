"""MNIST, Fashion-MNIST and EMNIST: 28×28 grey images in idx files, gzipped or plain."""

import gzip
import zlib
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.sources.fetch import Originals, Remote, find_files
from fedflux.errors import FedfluxError

_SIDE = 28
_IMAGES_MAGIC, _LABELS_MAGIC = 0x00000803, 0x00000801

_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_EMNIST_FILES = tuple(
    f"emnist-balanced-{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


def _remotes(base: str, md5s: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(Remote(base + filename, md5) for filename, md5 in zip(_FILES, md5s, strict=True))


MNIST = Originals(
    "mnist",
    layouts=(_FILES,),
    subfolders=("mnist",),
    remotes=_remotes(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)
FMNIST = Originals(
    "fmnist",
    layouts=(_FILES,),
    subfolders=("fmnist",),
    remotes=_remotes(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
)
EMNIST = Originals(
    "emnist",
    layouts=(_EMNIST_FILES, ("gzip.zip",)),
    subfolders=("emnist", "emnist/gzip", "gzip"),
    remotes=(Remote("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),),
)


def load_mnist(data_dir: Path | None = None) -> Dataset:
    """MNIST's 60,000 + 10,000 handwritten digits."""
    return _dataset("mnist", _read_files(find_files(MNIST, data_dir)), classes=10)


def load_fmnist(data_dir: Path | None = None) -> Dataset:
    """Fashion-MNIST's 60,000 + 10,000 articles of clothing."""
    return _dataset("fmnist", _read_files(find_files(FMNIST, data_dir)), classes=10)


def load_emnist(data_dir: Path | None = None) -> Dataset:
    """EMNIST's balanced split: 112,800 + 18,800 digits and letters of 47 classes, turned upright."""
    files = find_files(EMNIST, data_dir)
    contents = _read_zip(files[0]) if len(files) == 1 else _read_files(files)
    return _dataset("emnist", contents, classes=47, transposed=True)


def _dataset(name: str, contents: list[tuple[str, bytes]], classes: int, transposed: bool = False) -> Dataset:
    train_images, train_labels, test_images, test_labels = contents
    train = _examples(train_images, train_labels, transposed)
    return Dataset(name, train, _examples(test_images, test_labels, transposed), classes)


def _examples(images: tuple[str, bytes], labels: tuple[str, bytes], transposed: bool) -> Examples:
    x = _images(*images)
    y = _labels(*labels)
    if len(x) != len(y):
        raise FedfluxError(f"{images[0]}: {len(x)} images, but {labels[0]} holds {len(y)} labels")
    # EMNIST's publishers store columns first, so every image lies on its side and mirrored.
    upright = np.ascontiguousarray(x.transpose(0, 2, 1)) if transposed else x
    return Examples(upright[:, None], y)


def _images(where: str, content: bytes) -> NDArray[np.uint8]:
    count, height, width = _header(where, content, _IMAGES_MAGIC, "images", numbers=3)
    if (height, width) != (_SIDE, _SIDE):
        raise FedfluxError(f"{where}: images of {height}×{width}; this dataset has {_SIDE}×{_SIDE}")
    body = _body(where, content[16:], count * height * width, f"{count} images of {height}×{width}")
    return body.reshape(count, height, width)


def _labels(where: str, content: bytes) -> NDArray[np.int64]:
    (count,) = _header(where, content, _LABELS_MAGIC, "labels", numbers=1)
    return _body(where, content[8:], count, f"{count} labels").astype(np.int64)


def _header(where: str, content: bytes, magic: int, kind: str, numbers: int) -> tuple[int, ...]:
    """The sizes an idx header states after its magic number; all are big-endian 32-bit integers."""
    if len(content) >= 4 and int.from_bytes(content[:4], "big") != magic:
        raise FedfluxError(f"{where}: not an idx file of {kind}: starts with {content[:4].hex()}, not {magic:08x}")
    length = 4 + 4 * numbers
    if len(content) < length:
        raise FedfluxError(f"{where}: truncated: an idx header of {kind} has {length} bytes, found {len(content)}")
    return tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, length, 4))


def _body(where: str, body: bytes, size: int, promise: str) -> NDArray[np.uint8]:
    if len(body) != size:
        problem = "truncated" if len(body) < size else "too long"
        raise FedfluxError(f"{where}: {problem}: header promises {promise} ({size} bytes), found {len(body)}")
    return np.frombuffer(body, np.uint8).copy()  # writable, as torch wants its arrays


def _read_files(files: tuple[Path, ...]) -> list[tuple[str, bytes]]:
    contents = []
    for file in files:
        try:
            stored = file.read_bytes()
        except OSError as error:
            raise FedfluxError(f"{file}: cannot be read: {error.strerror}") from error
        contents.append((str(file), _gunzip(str(file), stored)))
    return contents


def _read_zip(file: Path) -> list[tuple[str, bytes]]:
    """The balanced split's four files out of the official archive, without unpacking it to disk."""
    contents = []
    try:
        with ZipFile(file) as archive:
            members = {Path(member).name: member for member in archive.namelist()}
            for filename in _EMNIST_FILES:
                if filename not in members:
                    raise FedfluxError(f"{file}: holds no {filename}; the official gzip.zip does")
                where = f"{file}: {filename}"
                contents.append((where, _gunzip(where, archive.read(members[filename]))))
    except (BadZipFile, OSError, EOFError, zlib.error, RuntimeError) as error:
        raise FedfluxError(f"{file}: not a readable zip archive ({error}); download it again") from error
    return contents


def _gunzip(where: str, stored: bytes) -> bytes:
    """The content, unpacked if it is gzipped; told by its first bytes, since browsers unpack without renaming."""
    if not stored.startswith(b"\x1f\x8b"):
        return stored
    try:
        return gzip.decompress(stored)
    except (OSError, EOFError, zlib.error) as error:
        raise FedfluxError(f"{where}: corrupt gzip file ({error}); download it again") from error
