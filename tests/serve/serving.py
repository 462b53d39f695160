"""A service of one's own for a test: its bundle, its keys, and a server on loopback in a thread."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from fedflux.serve.keeping.keys import SCOPES, Keys
from fedflux.serve.service.app import make_app
from fedflux.serve.service.settings import ServiceSettings


class Service:
    """Where it is, and a key for everything."""

    def __init__(self, url: str, key: str, state: Path, bundle: Path) -> None:
        self.url, self.key, self.state, self.bundle = url, key, state, bundle
        self.keys = Keys(state)
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def ask(self, method: str, address: str, **how: Any) -> httpx.Response:
        return self.http.request(method, address, **how)


@contextmanager
def serving(bundle: Path, state: Path, keyed: bool = True, **more: Any) -> Iterator[Service]:
    key = Keys(state).add("tests", SCOPES, rate=1e5) if keyed else ""
    settings = ServiceSettings(bundle, state, **more)
    config = uvicorn.Config(make_app(settings), log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        service = Service(f"http://127.0.0.1:{listening.getsockname()[1]}", key, state, bundle)
        try:
            yield service
        finally:
            service.http.close()
            server.should_exit = True
            thread.join(10)
