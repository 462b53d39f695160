"""Signatures of bundles: ed25519 over the manifest, which holds the digest of every file."""

from pathlib import Path
from typing import Any

from fedflux.errors import FedfluxError

SIGNATURE = "manifest.sig"


def private_key(path: Path) -> Any:
    """An ed25519 key from a PEM file, as `openssl genpkey -algorithm ed25519` writes it."""
    return _key(path, private=True)


def public_key(path: Path) -> Any:
    """The public half, as `openssl pkey -pubout` writes it."""
    return _key(path, private=False)


def _key(path: Path, private: bool) -> Any:
    serialization, ed25519 = _cryptography()
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    half = "private" if private else "public"
    try:
        content = path.read_bytes()
        load = serialization.load_pem_private_key if private else serialization.load_pem_public_key
        key = load(content, password=None) if private else load(content)
    except OSError as error:
        raise FedfluxError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise FedfluxError(f"{path} holds no {half} key in PEM without a password") from error
    if not isinstance(key, kind):
        raise FedfluxError(f"{path} holds no {half} ed25519 key: openssl genpkey -algorithm ed25519 makes one")
    return key


def check_signature(path: Path | str, manifest: bytes, signature: bytes | None, trusted: Any) -> None:
    """Refuse a manifest that the owner of the trusted key did not sign."""
    if signature is None:
        raise FedfluxError(f"{path} is not signed, and a trusted key was given: fedflux export --sign KEY signs")
    try:
        trusted.verify(bytes.fromhex(signature.decode()), manifest)
    except Exception as error:  # InvalidSignature, or text that is none
        raise FedfluxError(f"{path}: {SIGNATURE} is not by the trusted key: do not trust this bundle") from error


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise FedfluxError("signatures need cryptography: pip install 'fedflux[serve]'") from error
    return serialization, ed25519
