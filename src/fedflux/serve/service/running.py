"""Runs the service: uvicorn, TLS, SIGHUP for another bundle, and an end that lets requests finish."""

import asyncio
import signal
import ssl
import threading
from contextlib import suppress

from fedflux.errors import FedfluxError
from fedflux.serve.service.settings import ServiceSettings

GRACE = 20
"""Seconds that requests have to finish once the service is told to stop."""


def run_service(settings: ServiceSettings) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        import uvicorn

        from fedflux.serve.service.app import make_app
        from fedflux.serve.service.logs import log_to_stderr
    except ImportError as error:
        raise FedfluxError(f"fedflux serve needs {error.name}: pip install 'fedflux[serve]'") from error
    log_to_stderr()
    app = make_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.private_key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    try:
        config.load()
    except OSError as error:  # SSLError is one
        raise FedfluxError(f"TLS: {settings.certificate} and {settings.private_key} do not fit: {error}") from error

    def reload(*_: object) -> None:
        def work() -> None:
            with suppress(FedfluxError):  # it was logged
                app.state.reload()

        threading.Thread(target=work, daemon=True).start()

    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, reload)
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        server.run()
    if not server.started:
        raise FedfluxError(f"cannot listen on {settings.host} port {settings.port}: is another service there?")
