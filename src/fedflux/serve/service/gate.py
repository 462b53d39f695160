"""Who is let in: keys, scopes, rates and sizes are looked at before anything of a request is read."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from fedflux.serve.keeping.keys import Keys

ANYBODY = "-"
"""How callers are called where no keys were made: only this machine reaches the service then."""


class RefusedError(Exception):
    """A request that is not answered: a status, and one line that says why."""

    def __init__(self, status: int, words: str, **headers: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class Bucket:
    """Requests that a key may make now; they come back with time."""

    left: float
    seen: float

    def take(self, rate: float, now: float) -> float:
        """Take one; the seconds to wait where there is none."""
        burst = max(2 * rate, 1.0)
        self.left = min(burst, self.left + (now - self.seen) * rate)
        self.seen = now
        if self.left < 1:
            return (1 - self.left) / rate
        self.left -= 1
        return 0.0


class Gate:
    """Of one service."""

    def __init__(self, keys: Keys, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._most, self._clock = keys, most_bytes, clock
        self._buckets: dict[str, Bucket] = {}

    def enter(self, request: Request, scope: str) -> str:
        """The caller's name, if it may do this now."""
        name = self._known(request, scope)
        request.scope["fedflux.key"] = name
        return name

    def _known(self, request: Request, scope: str) -> str:
        if not self._keys.all():
            return ANYBODY
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        key = self._keys.find(secret.strip()) if kind.lower() == "bearer" and secret else None
        if key is None or key.revoked:
            words = "no key was given" if not secret else "this key is unknown or revoked"
            raise RefusedError(401, f"{words}: send 'Authorization: Bearer KEY'", WWW_Authenticate="Bearer")
        if scope not in key.scopes:
            raise RefusedError(403, f"this key is not for {scope}: it is for {', '.join(key.scopes)}")
        now = self._clock()
        bucket = self._buckets.setdefault(key.digest, Bucket(max(2 * key.rate, 1.0), now))
        wait = bucket.take(key.rate, now)
        if wait:
            words = f"too many requests: this key may make {key.rate:g} a second"
            raise RefusedError(429, words, Retry_After=str(max(1, round(wait))))
        return key.name

    async def body(self, request: Request) -> bytes:
        """The body, as long as it is not too large; compressed ones are not unpacked."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise RefusedError(415, "compressed bodies are not taken: send it as it is")
        told = request.headers.get("content-length", "")
        if told.isdigit() and int(told) > self._most:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._most:
                raise self._too_large()
            parts.append(part)
        return b"".join(parts)

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"this body is too large: up to {self._most:,} bytes are taken", Connection="close")


def plain(value: Any) -> str:
    """Somebody's text in one line that can be shown anywhere."""
    text = ascii(value)[1:-1] if isinstance(value, str) else ascii(value)
    return text if len(text) <= 80 else text[:80] + "…"
