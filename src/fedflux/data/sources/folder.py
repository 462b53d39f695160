"""A user's own images: class folders, or client folders of class folders, optionally under train/ and test/."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.sources.folder_groups import read_groups
from fedflux.data.splits import hold_out
from fedflux.errors import FedfluxError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L"}
_MIXED_SIZE = (64, 64)
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True)
class _Picture:
    """One image file and what its folders say about it; `client` is empty where there are no client folders."""

    path: Path
    label: str
    client: str


def load_folder(data_dir: Path | None = None) -> Dataset:
    """The images under `data_dir`; 20 % of each class (of each client) become the test part where there is none.

    Images of one size keep it, others are resized to 64×64; they are grey only if all are. A `groups.csv` beside the
    folders says which images belong together.
    """
    if data_dir is None:
        raise FedfluxError("folder: no data folder given; give the folder that holds the class folders")
    if not data_dir.is_dir():
        problem = "is not a folder" if data_dir.exists() else "does not exist"
        raise FedfluxError(f"folder: {data_dir} {problem}; give the folder that holds the class folders")
    try:
        train, test = _parts(data_dir)
    except OSError as error:
        raise FedfluxError(f"{error.filename}: cannot be read: {error.strerror}") from error
    pictures = train + test
    classes = sorted({picture.label for picture in pictures})
    clients = _clients(train, test) if train[0].client else None
    x = _pixels([picture.path for picture in pictures])
    y = _numbers([picture.label for picture in pictures], classes)
    owner = None if clients is None else _numbers([picture.client for picture in pictures], clients)
    group = read_groups(data_dir, [picture.path for picture in pictures])
    everything, cut = Examples(x, y, owner, group), len(train)
    first, second = (_slice(everything, 0, cut), _slice(everything, cut, len(y))) if test else hold_out(everything)
    names = None if clients is None else tuple(clients)
    return Dataset("folder", first, second, len(classes), names, class_names=tuple(classes))


def _clients(train: list[_Picture], test: list[_Picture]) -> list[str]:
    """Names in order, those with pictures in the test part alone behind the others."""
    first = {picture.client for picture in train}
    return [*sorted(first), *sorted({picture.client for picture in test} - first)]


def _numbers(names: list[str], known: list[str]) -> NDArray[np.int64]:
    number = {name: index for index, name in enumerate(known)}
    return np.array([number[name] for name in names], np.int64)


def _slice(examples: Examples, start: int, stop: int) -> Examples:
    client = None if examples.client is None else examples.client[start:stop]
    group = None if examples.group is None else examples.group[start:stop]
    return Examples(examples.x[start:stop], examples.y[start:stop], client, group)


def _parts(root: Path) -> tuple[list[_Picture], list[_Picture]]:
    """The pictures of the training and the test part; the latter is empty where the folders do not tell them apart."""
    folders = {folder.name: folder for folder in visible_folders(root)}
    # A class may be called "train" (a vehicle), so the two names count only where they hold folders themselves.
    if not any(visible_folders(folders[name]) for name in ("train", "test") if name in folders):
        return _pictures(root), []
    others = sorted(folders.keys() - {"train", "test"})
    if others:
        raise FedfluxError(f"{folders[others[0]]}: beside train/ or test/ there may be no other folder")
    if "train" not in folders:
        raise FedfluxError(f"{root}: holds test/ but no train/")
    _no_images(root)
    train = _pictures(folders["train"])
    test = _pictures(folders["test"]) if "test" in folders else []
    if test and bool(train[0].client) != bool(test[0].client):
        raise FedfluxError(f"{root}: train/ and test/ differ in depth; both need class folders, or both client folders")
    return train, test


def _pictures(root: Path) -> list[_Picture]:
    """All pictures below `root`, in sorted order, after checking that every one lies equally deep."""
    _no_images(root)
    folders = visible_folders(root)
    if not folders:
        raise FedfluxError(f"{root}: holds no class folder; put images in {root}/CLASS/")
    deep = [folder for folder in folders if visible_folders(folder)]
    if not deep:
        return [picture for folder in folders for picture in _of_class(folder, client="")]
    for client in folders:
        if client not in deep:
            raise FedfluxError(
                f"{client}: holds no class folder, but {deep[0]} does; use ROOT/CLASS/ or ROOT/CLIENT/CLASS/ throughout"
            )
        _no_images(client)
    return [
        picture
        for client in folders
        for folder in visible_folders(client)
        for picture in _of_class(folder, client.name)
    ]


def _of_class(folder: Path, client: str) -> list[_Picture]:
    inner = visible_folders(folder)
    if inner:
        raise FedfluxError(f"{inner[0]}: too deep; use ROOT/CLASS/ or ROOT/CLIENT/CLASS/ throughout")
    images = visible_images(folder)
    if not images:
        raise FedfluxError(f"{folder}: holds no image; remove the folder or fill it")
    return [_Picture(path, folder.name, client) for path in images]


def _no_images(folder: Path) -> None:
    images = visible_images(folder)
    if images:
        raise FedfluxError(f"{images[0]}: an image outside a class folder; use ROOT/CLASS/ or ROOT/CLIENT/CLASS/")


def visible_folders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted."""
    return _visible(folder, Path.is_dir)


def visible_images(folder: Path) -> list[Path]:
    """The image files in a folder, sorted."""
    return _visible(folder, lambda path: path.suffix.lower() in _SUFFIXES and path.is_file())


def _visible(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and wanted(path))


def images_below(root: Path, shape: tuple[int, ...]) -> dict[str, NDArray[np.uint8]]:
    """The images of each folder below `root`, or of `root` itself, as (N, *shape), whatever form they have."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise FedfluxError(f"{root} is a folder of images, but models were trained on inputs of shape {shape}")
    folders = [folder for folder in visible_folders(root) if visible_images(folder)] or [root]
    size, mode = (shape[2], shape[1]), "L" if shape[0] == 1 else "RGB"
    found = {}
    for folder in folders:
        pixels = [decode(path, mode, size) for path in visible_images(folder)]
        if not pixels:
            raise FedfluxError(f"{folder}: holds no image; give a folder of images, or of one such folder a client")
        found[folder.name] = np.stack([one[None] if mode == "L" else one.transpose(2, 0, 1) for one in pixels])
    return found


def _pixels(paths: list[Path]) -> NDArray[np.uint8]:
    """All images as (N, channels, height, width): a first look at the headers settles the form, a second decodes."""
    forms = [_form(path) for path in paths]
    sizes = {size for size, _ in forms}
    size = sizes.pop() if len(sizes) == 1 else _MIXED_SIZE
    mode = "L" if all(image_mode in _GREY for _, image_mode in forms) else "RGB"
    x = np.empty((len(paths), 1 if mode == "L" else 3, size[1], size[0]), np.uint8)
    for row, path in enumerate(paths):
        pixels = decode(path, mode, size)
        x[row] = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
    return x


def _form(path: Path) -> tuple[tuple[int, int], str]:
    try:
        with Image.open(path) as image:
            return image.size, image.mode
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def decode(path: Path, mode: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    """An image in one mode and size (width, height)."""
    try:
        with Image.open(path) as image:
            converted = _eight_bits(path, image).convert(mode)
            if converted.size != size:
                converted = converted.resize(size, Image.Resampling.BILINEAR)
            return np.asarray(converted, np.uint8)
    except FedfluxError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def _eight_bits(path: Path, image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel and no palette; Pillow alone would clip 16-bit grey instead of scaling it."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise FedfluxError(f"{path}: pixels of 32 bits; store images with 8 or 16 bits a channel")
    return image.convert("RGBA") if image.mode in ("P", "PA") else image


def _unreadable(path: Path, error: Exception) -> FedfluxError:
    reason = "" if isinstance(error, UnidentifiedImageError) else f" ({' '.join(str(error).split())})"
    return FedfluxError(f"{path}: not a readable image{reason}; remove or replace it")
