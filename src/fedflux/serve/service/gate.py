"""Who is let in: keys, scopes, rates and sizes are looked at before anything of a request is read."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from fedflux.serve.keeping.keys import Keys
from fedflux.serve.service.settings import HERE

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
    """Of one service. Once it has had keys it wants one for good: a file of keys that is gone opens no door."""

    def __init__(
        self,
        keys: Keys,
        most_bytes: int,
        origins: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys, self._most, self._origins, self._clock = keys, most_bytes, origins, clock
        self._keyless = not keys.all()
        self._buckets: dict[str, Bucket] = {}

    def enter(self, request: Request, scope: str) -> str:
        """The caller's name, if it may do this now."""
        name = self._known(request, scope)
        request.scope["fedflux.key"] = name
        return name

    def _known(self, request: Request, scope: str) -> str:
        self._keyless = self._keyless and not self._keys.all()
        if self._keyless:
            self._check_own(request)
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

    def _check_own(self, request: Request) -> None:
        """Without keys, refuse what a page of somebody else's has this machine's browser ask."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host.rpartition(":")[0].strip("[]") not in HERE and host.strip("[]") not in HERE:
            raise RefusedError(
                403, f"without API keys the service is called by this machine's names: {', '.join(HERE)}"
            )
        if origin is not None and origin not in {f"http://{host}", f"https://{host}", *self._origins}:
            raise RefusedError(403, "pages of other origins may not ask: --origin names those that may")

    async def body(self, request: Request) -> bytes:
        """The body, as long as it is not too large; compressed ones are not unpacked."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise RefusedError(415, "compressed bodies are not taken: send it as it is")
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > self._most:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > self._most:
                    raise self._too_large()
                parts.append(part)
        except ClientDisconnect as error:
            raise RefusedError(400, "the body was cut off") from error
        return b"".join(parts)

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"this body is too large: up to {self._most:,} bytes are taken", Connection="close")


def plain(value: Any) -> str:
    """Somebody's text in one line that can be shown anywhere."""
    text = ascii(value)[1:-1] if isinstance(value, str) else ascii(value)
    return text if len(text) <= 80 else text[:80] + "…"
