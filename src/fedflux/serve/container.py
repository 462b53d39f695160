"""The files of a bundle, in a folder or a zip: named with their digests in a manifest, signed if somebody did.

Nothing is read but what the manifest names, no more of it than the manifest says, and nothing is believed before its
digest is right. A file that was changed, cut off or added is refused by name.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from json import loads
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

from fedflux.errors import FedfluxError
from fedflux.files import as_json, make_folder, read_object, write_bytes
from fedflux.serve.signing import SIGNATURE, check_signature

MANIFEST = "manifest.json"
FORMAT = 1
"""Raised when a bundle can no longer be read as before."""
WHAT = "fedflux bundle"
NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""A file, or one in a folder: no way up, no way out, nothing hidden."""
LARGEST_MANIFEST = 4 * 2**20
LARGEST = 8 * 2**30
"""Bytes of all files together."""
DENSEST = 200
"""How many times smaller an entry of a zip may be than what comes out of it."""


@dataclass(frozen=True, eq=False)
class Files:
    """Files whose digests are right."""

    id: str
    """The digest of the manifest, hence of everything."""
    contents: Mapping[str, bytes]
    digests: Mapping[str, str]
    manifest: bytes
    signature: bytes | None = None
    signed: bool = False
    """Whether a key that the reader trusts signed it."""

    def __getitem__(self, name: str) -> bytes:
        if name not in self.contents:
            raise FedfluxError(f"the bundle has no file {name}")
        return self.contents[name]


def write_files(out: Path, contents: Mapping[str, bytes], key: Any = None) -> str:
    """Write a bundle to a folder, or to one file where `out` ends with .zip; the manifest comes last. Its digest."""
    listed = {name: {"sha256": digest_of(content), "bytes": len(content)} for name, content in sorted(contents.items())}
    manifest = as_json({"what": WHAT, "format": FORMAT, "files": listed})
    last = {MANIFEST: manifest} if key is None else {SIGNATURE: key.sign(manifest).hex().encode(), MANIFEST: manifest}
    if out.suffix == ".zip":
        packed = BytesIO()
        with ZipFile(packed, "w", ZIP_STORED) as archive:
            for name, content in {**contents, **last}.items():
                archive.writestr(name, content)
        try:
            write_bytes(out, packed.getvalue())
        except OSError as error:
            raise FedfluxError(f"cannot write a bundle to {out}: {error.strerror}") from error
        return digest_of(manifest)
    folder = make_folder(out, "bundle", MANIFEST, {"what", "files"})
    _clear(folder, {*contents, *last})
    for name, content in {**contents, **last}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_bytes(folder / name, content)
    return digest_of(manifest)


def _clear(folder: Path, kept: set[str]) -> None:
    """Take away what an earlier bundle in this folder had and this one has not."""
    before = read_object(folder / MANIFEST) or {}
    for name in {SIGNATURE, *before.get("files", ())} - kept:
        if isinstance(name, str) and NAME.fullmatch(name):
            (folder / name).unlink(missing_ok=True)


def read_files(path: Path, trusted: Any = None) -> Files:
    """The files of a bundle; with a `trusted` public key, only of one that its owner signed."""
    source = _source(path)
    try:
        manifest = source.read(MANIFEST, LARGEST_MANIFEST)
        listed = _listed(path, manifest)
        signature = source.read(SIGNATURE, 1024) if SIGNATURE in source.names else None
        if trusted is not None:
            check_signature(path, manifest, signature, trusted)
        stray = sorted(source.names - {MANIFEST, SIGNATURE, *listed})
        if stray:
            raise FedfluxError(f"{path}: {stray[0]} is not in the manifest: the bundle was changed; make it again")
        contents = {}
        for name, told in listed.items():
            if name not in source.names:
                raise FedfluxError(f"{path}: {name} is missing; make the bundle again")
            content = source.read(name, told["bytes"])
            if len(content) != told["bytes"] or digest_of(content) != told["sha256"]:
                raise FedfluxError(f"{path}: {name} was changed or cut off since the bundle was made; make it again")
            contents[name] = content
    finally:
        source.close()
    digests = {name: str(told["sha256"]) for name, told in listed.items()}
    return Files(digest_of(manifest), contents, digests, manifest, signature, trusted is not None)


def check_manifest(where: str, manifest: bytes, signature: bytes | None, trusted: Any = None) -> dict[str, str]:
    """The digests that a manifest names, which came without its files."""
    listed = _listed(where, manifest)
    if trusted is not None:
        check_signature(where, manifest, signature, trusted)
    return {name: str(told["sha256"]) for name, told in listed.items()}


def _listed(path: Path | str, manifest: bytes) -> dict[str, dict[str, Any]]:
    """What the manifest names, with sizes and digests."""
    wrong = FedfluxError(f"{path}: {MANIFEST} is damaged, or that of something else; make the bundle again")
    try:
        told = loads(manifest)
        files = told["files"]
        version = told["format"]
        right = told["what"] == WHAT and all(
            isinstance(one["bytes"], int) and one["bytes"] >= 0 and re.fullmatch("[0-9a-f]{64}", one["sha256"])
            for one in files.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise wrong from error
    if not right:
        raise wrong
    if version != FORMAT:
        raise FedfluxError(f"{path} has format {version!r} of bundles, this version reads {FORMAT}")
    odd = next((name for name in files if not NAME.fullmatch(name)), None)
    if odd is not None:
        raise FedfluxError(f"{path}: {odd!r} in the manifest is no name of a bundle's file; do not trust this bundle")
    if sum(one["bytes"] for one in files.values()) > LARGEST:
        raise FedfluxError(f"{path}: its files are larger than {LARGEST >> 30} GiB together; do not trust this bundle")
    return dict(files)


class _Folder:
    """Where files lie in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = [one for one in path.rglob("*") if not one.name.startswith(".")]
        link = next((one for one in found if one.is_symlink()), None)
        if link is not None:
            raise FedfluxError(f"{path}: {link.relative_to(path)} is a link: a bundle has none; make it again")
        self.names = {one.relative_to(path).as_posix() for one in found if one.is_file()}

    def read(self, name: str, most: int) -> bytes:
        """The file, or one byte more than it may have."""
        try:
            with (self._path / name).open("rb") as handle:
                return handle.read(most + 1)
        except OSError as error:
            raise FedfluxError(f"{self._path / name} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Nothing is open."""


class _Zip:
    """Where they lie in a zip."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = ZipFile(path)
        except Exception as error:  # damaged archives fail in many ways
            raise FedfluxError(f"{path} is neither a folder nor a zip that can be read") from error
        entries = [one for one in self._zip.infolist() if not one.filename.endswith("/")]
        self.names = {one.filename for one in entries}
        odd = next((name for name in sorted(self.names) if not NAME.fullmatch(name)), None)
        if odd is not None or len(self.names) < len(entries):
            self._zip.close()
            what = "names one file twice" if odd is None else f"holds {odd!r}, which leads out of it"
            raise FedfluxError(f"{path} {what}: do not trust this bundle")

    def read(self, name: str, most: int) -> bytes:
        """The entry, or one byte more than it may have."""
        try:
            entry = self._zip.getinfo(name)
            if entry.file_size > most or entry.file_size > DENSEST * max(entry.compress_size, 1024):
                raise FedfluxError(f"{self._path}: {name} unpacks to more than it may; do not trust this bundle")
            with self._zip.open(entry) as handle:
                return handle.read(most + 1)
        except KeyError as error:
            raise FedfluxError(f"{self._path} holds no {name}: it is no bundle") from error
        except FedfluxError:
            raise
        except Exception as error:  # damaged archives fail in many ways
            raise FedfluxError(f"{self._path}: {name} cannot be unpacked; make the bundle again") from error

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):
            self._zip.close()


def _source(path: Path) -> "_Folder | _Zip":
    if path.is_dir():
        return _Folder(path)
    if not path.exists():
        raise FedfluxError(f"there is no bundle {path}: fedflux export RUN --out {path} makes one")
    return _Zip(path)


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return sha256(content).hexdigest()
