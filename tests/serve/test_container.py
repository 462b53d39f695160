"""Bundles that were changed, cut off, or made to do harm are refused by name."""

import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from fedflux.errors import FedfluxError
from fedflux.serve.bundle import MOMENTS, open_bundle
from fedflux.serve.container import MANIFEST, read_files, write_files
from fedflux.serve.signing import private_key, public_key

FILES = {"bundle.json": b"{}", "models/own-0.onnx": b"12345678"}


def listed_anew(folder: Path) -> None:
    """A manifest that fits what lies in the folder now, as an attacker would write it."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, told in manifest["files"].items():
        content = (folder / name).read_bytes()
        told.update(sha256=sha256(content).hexdigest(), bytes=len(content))
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    digest = write_files(tmp_path / name, FILES)
    found = read_files(tmp_path / name)
    assert (found.id, found.contents, found.signed) == (digest, FILES, False)
    assert found.digests["bundle.json"] == sha256(b"{}").hexdigest()


def test_a_folder_holds_nothing_of_an_earlier_bundle(tmp_path: Path) -> None:
    write_files(tmp_path / "b", {**FILES, "models/own-1.onnx": b"1"})
    write_files(tmp_path / "b", FILES)
    assert read_files(tmp_path / "b").contents == FILES


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FedfluxError, match="other files"):
        write_files(tmp_path, FILES)


def changed(path: Path) -> None:
    (path / "models/own-0.onnx").write_bytes(b"12345679")


def cut(path: Path) -> None:
    (path / "models/own-0.onnx").write_bytes(b"1234")


def longer(path: Path) -> None:
    (path / "models/own-0.onnx").write_bytes(b"123456789")


def gone(path: Path) -> None:
    (path / "models/own-0.onnx").unlink()


def linked(path: Path) -> None:
    (path / "models/own-0.onnx").unlink()
    (path / "models/own-0.onnx").symlink_to("/etc/hostname")


def added(path: Path) -> None:
    (path / "models/own-9.onnx").write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (changed, "models/own-0.onnx was changed"),
        (cut, "models/own-0.onnx was changed or cut off"),
        (longer, "models/own-0.onnx was changed"),
        (gone, "models/own-0.onnx is missing"),
        (linked, "models/own-0.onnx is a link"),
        (added, "models/own-9.onnx is not in the manifest"),
    ],
)
def test_files_are_refused_by_name(harm: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    write_files(tmp_path / "b", FILES)
    harm(tmp_path / "b")
    with pytest.raises(FedfluxError, match=words):
        read_files(tmp_path / "b")


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "{}",
        '{"what": "fedflux bundle", "format": 1, "files": {"x": {"bytes": -1, "sha256": ""}}}',
        "[" * 100_000,
        '{"what": "something else", "format": 1, "files": {}}',
        '{"what": "fedflux bundle", "format": 1, "files": [1]}',
        '{"what": "fedflux bundle", "files": {}}',
    ],
)
def test_a_manifest_that_is_none_is_refused(manifest: str, tmp_path: Path) -> None:
    write_files(tmp_path / "b", FILES)
    (tmp_path / "b" / MANIFEST).write_text(manifest)
    with pytest.raises(FedfluxError, match=r"manifest.json is damaged"):
        read_files(tmp_path / "b")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "models/../../x", "a/b/c", ".hidden", "models/.x"])
def test_names_that_lead_out_of_a_bundle_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    files = {name: {"sha256": sha256(b"").hexdigest(), "bytes": 0}}
    manifest = json.dumps({"what": "fedflux bundle", "format": 1, "files": files})
    (tmp_path / "b" / MANIFEST).write_text(manifest)
    with pytest.raises(FedfluxError, match="is no name of a bundle's file"):
        read_files(tmp_path / "b")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(MANIFEST, manifest)
        archive.writestr(name, b"")
    with pytest.raises(FedfluxError, match="do not trust this bundle"):
        read_files(tmp_path / "b.zip")


def test_a_newer_format_is_told_as_such(tmp_path: Path) -> None:
    write_files(tmp_path / "b", FILES)
    told = json.loads((tmp_path / "b" / MANIFEST).read_text())
    (tmp_path / "b" / MANIFEST).write_text(json.dumps({**told, "format": 99}))
    with pytest.raises(FedfluxError, match="format 99"):
        read_files(tmp_path / "b")


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = b"\0" * 50_000_000
    files = {"bundle.json": {"sha256": sha256(bomb).hexdigest(), "bytes": len(bomb)}}
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"what": "fedflux bundle", "format": 1, "files": files}))
        archive.writestr("bundle.json", bomb)
    with pytest.raises(FedfluxError, match=r"bundle.json unpacks to more than it may"):
        read_files(tmp_path / "b.zip")


def test_what_is_no_bundle_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedfluxError, match="there is no bundle"):
        read_files(tmp_path / "nowhere")
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(FedfluxError, match="neither a folder nor a zip"):
        read_files(tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as archive:
        archive.writestr("a", b"")
    with pytest.raises(FedfluxError, match=r"holds no manifest.json"):
        read_files(tmp_path / "y.zip")


def test_no_damage_to_a_zip_is_more_than_one_line(tmp_path: Path) -> None:
    write_files(tmp_path / "b.zip", FILES)
    whole, rng = (tmp_path / "b.zip").read_bytes(), Random(0)
    for _ in range(400):
        harmed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            harmed[rng.randrange(len(harmed))] = rng.choice((0, 255, rng.randrange(256)))
        (tmp_path / "harmed.zip").write_bytes(harmed)
        with suppress(FedfluxError):
            assert read_files(tmp_path / "harmed.zip").contents == FILES


def test_weights_of_a_type_that_numpy_has_not_are_refused(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (folder / "extractor.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    listed_anew(folder)
    with pytest.raises(FedfluxError, match=r"extractor.safetensors is no safetensors file"):
        open_bundle(folder)


@pytest.mark.parametrize("name", [MOMENTS, "extractor.safetensors"])
def test_a_pickle_in_place_of_safetensors_is_refused(name: str, folder: Path) -> None:
    (folder / name).write_bytes(pickle.dumps({"weight": [1.0]}))
    listed_anew(folder)
    with pytest.raises(FedfluxError, match=f"{name} is no safetensors file"):
        open_bundle(folder)


def test_another_program_in_place_of_a_graph_is_refused(folder: Path) -> None:
    (folder / "extractor.onnx").write_bytes(b"#!/bin/sh\n")
    listed_anew(folder)
    with pytest.raises(FedfluxError, match=r"extractor.onnx is no graph"):
        open_bundle(folder)


@pytest.mark.parametrize("content", ["{}", "[]", '{"input": {"shape": [1], "kind": "pixels"}}', "null", '"x"'])
def test_a_card_that_lacks_something_is_refused(content: str, folder: Path) -> None:
    (folder / "bundle.json").write_text(content)
    listed_anew(folder)
    with pytest.raises(FedfluxError, match=r"bundle.json or placement.safetensors does not hold"):
        open_bundle(folder)


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A new pair of keys in files."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / f"{name}.pem").write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.pem", folder / f"{name}.pub"


def test_a_signature_says_whose_bundle_it_is(tmp_path: Path) -> None:
    (mine, public), (_, others) = keys(tmp_path, "mine"), keys(tmp_path, "other")
    write_files(tmp_path / "b", FILES, private_key(mine))
    assert read_files(tmp_path / "b", public_key(public)).signed
    with pytest.raises(FedfluxError, match=r"manifest.sig is not by the trusted key"):
        read_files(tmp_path / "b", public_key(others))
    (tmp_path / "b" / "bundle.json").write_bytes(b"[]")
    listed_anew(tmp_path / "b")
    with pytest.raises(FedfluxError, match=r"manifest.sig is not by the trusted key"):
        read_files(tmp_path / "b", public_key(public))
    write_files(tmp_path / "b", FILES)
    with pytest.raises(FedfluxError, match="is not signed"):
        read_files(tmp_path / "b", public_key(public))


def test_files_that_are_no_keys_are_refused(tmp_path: Path) -> None:
    mine, public = keys(tmp_path, "mine")
    for wrong in (public, tmp_path / "nowhere"):
        with pytest.raises(FedfluxError):
            private_key(wrong)
    with pytest.raises(FedfluxError, match="public"):
        public_key(mine)
