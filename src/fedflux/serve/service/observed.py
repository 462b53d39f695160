"""Every request in the log and in the figures: route, status and time, nothing of its content."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedflux.serve.service.logs import log
from fedflux.serve.service.metrics import Metrics

OTHER = "other"
"""How routes that do not exist are counted."""


class Observed:
    """Around the service."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), [500]

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - begun
            route = getattr(scope.get("route"), "path", OTHER)
            self._metrics.requests.labels(route, str(status[0])).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            key = scope.get("fedflux.key", "-")
            log("request", method=scope["method"], route=route, status=status[0], ms=round(1e3 * seconds, 2), key=key)
