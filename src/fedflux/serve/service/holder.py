"""The bundle that is served, and its exchange for another without dropping a request.

A request takes the bundle once and answers from that one alone. A bundle that is refused changes nothing.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from fedflux.serve.bundle import Bundle, open_bundle
from fedflux.serve.keeping.audit import Audit
from fedflux.serve.keeping.watch import Watch


@dataclass(frozen=True, eq=False)
class Served:
    """A bundle with the watch over its clients."""

    bundle: Bundle
    watch: Watch
    since: float


class Holder:
    """Whoever asks is given the bundle of that moment."""

    def __init__(self, path: Path, trusted: Any, audit: Audit) -> None:
        self._path, self._trusted, self._audit = path, trusted, audit
        self._lock = Lock()
        self._current = self._served(open_bundle(path, trusted))

    @property
    def current(self) -> Served:
        """The bundle that is served now."""
        return self._current

    def reload(self) -> Served:
        """Read the bundle again; if it is refused, nothing changes."""
        with self._lock:
            bundle = open_bundle(self._path, self._trusted)
            if bundle.id != self._current.bundle.id:
                self._current = self._served(bundle)
            return self._current

    def _served(self, bundle: Bundle) -> Served:
        return Served(bundle, Watch.of(bundle, self._audit.of_bundle(bundle.id)), time.time())
