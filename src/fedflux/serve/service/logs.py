"""The service's log: a line of JSON an event, on stderr. No content of any request, no key."""

import logging
import sys
import time
from json import dumps
from typing import Any

LOGGER = logging.getLogger("fedflux.serve")


def log(event: str, level: str = "info", **told: Any) -> None:
    """One event."""
    number = logging.ERROR if level == "error" else logging.INFO
    if LOGGER.isEnabledFor(number):
        LOGGER.log(number, dumps({"time": round(time.time(), 3), "level": level, "event": event, **told}))


def log_to_stderr() -> None:
    """Send the log, and what the web server says of itself, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    server = logging.getLogger("uvicorn")
    server.addHandler(_OfServer())
    server.setLevel(logging.WARNING)
    server.propagate = False


class _OfServer(logging.Handler):
    """What uvicorn says, in our form: its first line, no traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """One event."""
        log("server", level="error" if record.levelno >= logging.ERROR else "info", words=record.getMessage())
