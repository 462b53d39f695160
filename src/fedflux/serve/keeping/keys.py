"""API keys: who may ask what, and how often. Only digests are kept; a key is shown once, when it is made.

Keys are 256 random bits, so that a plain SHA-256 of them cannot be searched.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from filelock import FileLock, Timeout

from fedflux.errors import FedfluxError, unknown
from fedflux.files import read_object, write_json

KEYS_FILE = "keys.json"
SCOPES = ("assign", "models", "infer", "watch", "metrics", "reload")
"""Place clients; fetch models and moments; predict; read the watch; read metrics; load the bundle anew."""
USUAL = ("assign", "models", "infer")
RATE = 50.0
"""Requests a second that a key may make unless it was told otherwise."""


PATIENCE = 10
"""Seconds to wait for another process that changes keys."""


@dataclass(frozen=True)
class Key:
    """One holder of a key."""

    name: str
    digest: str
    scopes: tuple[str, ...]
    rate: float
    """Requests a second, twice as many in a burst."""
    revoked: bool = False


class Keys:
    """The keys of a service, read again when their file changes: a revoked key ends at once."""

    def __init__(self, state: Path) -> None:
        self._path = state / KEYS_FILE
        self._seen: tuple[int, int] | None = None
        self._keys: dict[str, Key] = {}

    def all(self) -> tuple[Key, ...]:
        """All, revoked ones too."""
        self._refresh()
        return tuple(self._keys.values())

    def find(self, secret: str) -> Key | None:
        """The holder of a key; looked up by digest, so that time tells nothing about the secret."""
        self._refresh()
        return self._keys.get(_digest(secret))

    def add(self, name: str, scopes: tuple[str, ...] = USUAL, rate: float = RATE) -> str:
        """Make a key; it is only ever told here."""
        for scope in scopes:
            if scope not in SCOPES:
                raise unknown("scope", scope, SCOPES)
        if not name or not name.isprintable() or not scopes:
            raise FedfluxError("a key needs a name and at least one scope")
        if not 0 < rate <= 1e6:
            raise FedfluxError(f"--rate {rate:g}: give requests a second above 0")
        secret = token_urlsafe(32)
        with self._alone():
            if any(key.name == name and not key.revoked for key in self.all()):
                raise FedfluxError(f"there is a key of {name} already: fedflux keys revoke {name} ends it")
            self._write([*self.all(), Key(name, _digest(secret), scopes, float(rate))])
        return secret

    def revoke(self, name: str) -> None:
        """End a key, for good."""
        if not self._path.exists():
            raise FedfluxError(f"there is no key to revoke in {self._path.parent}")
        with self._alone():
            known = [key.name for key in self.all() if not key.revoked]
            if name not in known:
                raise unknown("key", name, known) if known else FedfluxError("there is no key to revoke")
            self._write([replace(key, revoked=key.revoked or key.name == name) for key in self.all()])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time: of two at once, the later would undo the earlier, and a revoked key would live on."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self._path.with_suffix(".lock"), timeout=PATIENCE):
                self._seen = None
                yield
        except Timeout as error:
            raise FedfluxError(f"another process is changing {self._path}: try again") from error
        except OSError as error:
            raise FedfluxError(f"{self._path} cannot be written: {error.strerror}") from error

    def _write(self, keys: list[Key]) -> None:
        write_json(self._path, {"keys": [asdict(key) for key in keys]})
        self._path.chmod(0o600)
        self._seen = None

    def _refresh(self) -> None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._seen, self._keys = None, {}
            return
        now = (found.st_mtime_ns, found.st_ino)
        if now != self._seen:
            self._keys, self._seen = self._read(), now

    def _read(self) -> dict[str, Key]:
        told: Any = read_object(self._path)
        try:
            made = [Key(**{**one, "scopes": tuple(one["scopes"])}) for one in told["keys"]]
            return {key.digest: key for key in made}
        except (TypeError, KeyError) as error:
            raise FedfluxError(f"{self._path} is damaged; put it back, or make new keys in another --state") from error


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
