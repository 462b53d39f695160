"""Who is let in: keys, scopes, rates, sizes, and, where there are no keys, this machine's own programs alone."""

import gzip
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import images
from tests.serve.serving import Service, serving
from tests.serve.test_service import refused

from fedflux.serve.container import write_files
from fedflux.serve.keeping.keys import KEYS_FILE
from fedflux.serve.service.settings import AUDIT_FILE


@pytest.fixture(scope="module")
def service(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("gate")
    write_files(folder / "bundle", contents)
    with serving(folder / "bundle", folder / "state") as running:
        yield running


def test_only_keys_that_may_are_let_in(service: Service) -> None:
    secret = service.keys.add("reader", ("models",), rate=1000)
    body = {"features": images(1).tolist()}
    post: dict[str, Any] = {"url": service.url + "/v1/assign", "json": body}
    refused(httpx.post(**post), 401, "no key was given")
    refused(httpx.post(**post, headers={"Authorization": "Bearer wrong"}), 401, "unknown or revoked")
    refused(httpx.post(**post, headers={"Authorization": f"Basic {service.key}"}), 401, "unknown or revoked")
    refused(httpx.post(**post, headers={"Authorization": f"Bearer {secret}"}), 403, "not for assign")
    models: dict[str, Any] = {"url": service.url + "/v1/models", "headers": {"Authorization": f"Bearer {secret}"}}
    assert httpx.get(**models).status_code == 200
    service.keys.revoke("reader")
    refused(httpx.get(**models), 401, "unknown or revoked")
    kept = (service.state / "keys.json").read_text()
    assert secret not in kept
    assert service.key not in kept


def test_who_asks_too_often_waits(service: Service) -> None:
    secret = service.keys.add("eager", ("models",), rate=2)
    headers = {"Authorization": f"Bearer {secret}"}
    answers = [httpx.get(service.url + "/v1/models", headers=headers) for _ in range(8)]
    assert {one.status_code for one in answers} == {200, 429}
    late = next(one for one in answers if one.status_code == 429)
    refused(late, 429, "2 a second")
    assert int(late.headers["retry-after"]) >= 1
    service.keys.revoke("eager")


def test_large_and_packed_bodies_are_not_read(service: Service) -> None:
    refused(service.ask("POST", "/v1/assign", content=b"0" * (17 * 2**20)), 413, "too large")

    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b"0" * 2**20

    try:
        response = service.ask("POST", "/v1/assign", content=endless())
    except httpx.WriteError:  # it hangs up on who goes on sending
        response = None
    if response is not None:
        refused(response, 413, "too large")
    bomb = gzip.compress(b"0" * 10**7)
    refused(service.ask("POST", "/v1/assign", content=bomb, headers={"Content-Encoding": "gzip"}), 415, "compressed")


@pytest.mark.parametrize("content", [None, b"{}", b'{"keys": []}'])
def test_a_file_of_keys_that_is_gone_opens_no_door(folder: Path, tmp_path: Path, content: bytes | None) -> None:
    with serving(folder, tmp_path / "state") as service:
        assert service.ask("GET", "/v1/models").status_code == 200
        file = tmp_path / "state" / KEYS_FILE
        file.unlink() if content is None else file.write_bytes(content)
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {service.key}"}):
            assert httpx.get(service.url + "/v1/models", headers=headers).status_code in (401, 500)


def test_without_keys_only_programs_of_this_machine_are_answered(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "state", keyed=False, origins=("https://friend.example",)) as service:
        address, own = service.url + "/v1/models", service.url.removeprefix("http://")
        for host in (own, "localhost", "localhost:8080", "[::1]:8080", "127.0.0.1"):
            assert httpx.get(address, headers={"Host": host}).status_code == 200, host
        for host in ("elsewhere.example", f"elsewhere.example:{own.partition(':')[2]}", "127.0.0.1.elsewhere.example"):
            refused(httpx.get(address, headers={"Host": host}), 403, "without API keys")
        for origin in ("http://elsewhere.example", "null", f"http://{own}.elsewhere.example"):
            refused(httpx.post(service.url + "/v1/reload", headers={"Origin": origin}), 403, "other origins")
        for origin in (service.url, "https://friend.example"):
            assert httpx.get(address, headers={"Origin": origin}).status_code == 200
        service.keys.add("first")
        refused(httpx.get(address), 401, "no key was given")


def test_pages_elsewhere_may_ask_where_they_are_named(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "state", origins=("https://friend.example",)) as service:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        for origin, allowed in (("https://friend.example", "https://friend.example"), ("https://other.example", None)):
            before = httpx.options(service.url + "/v1/assign", headers={"Origin": origin, **asked})
            after = service.ask("GET", "/v1/models", headers={"Origin": origin})
            for answer in (before, after):
                assert answer.headers.get("access-control-allow-origin") == allowed
            assert "access-control-allow-credentials" not in after.headers


def test_no_address_leads_to_another_host(service: Service) -> None:
    answer = service.ask("GET", "/v1/models/", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 404
    assert "elsewhere" not in str(answer.headers)


def test_a_body_that_is_cut_off_is_no_failure(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    head = f"POST /v1/assign HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\nContent-Length: 900\r\n\r\n"
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(head.encode() + b'{"features"')
    found = ""
    for _ in range(100):
        found = service.ask("GET", "/metrics").text
        if 'route="/v1/assign",status="400"' in found:
            break
        time.sleep(0.02)
    assert 'route="/v1/assign",status="400"' in found
    assert 'status="500"' not in found


def test_who_holds_the_audit_log_makes_nobody_else_wait(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "state") as service:
        holding = sqlite3.connect(tmp_path / "state" / AUDIT_FILE, isolation_level=None)
        holding.execute("BEGIN EXCLUSIVE")
        answers: list[httpx.Response] = []
        body: dict[str, Any] = {"features": images(2).tolist()}
        asking = threading.Thread(target=lambda: answers.append(service.ask("POST", "/v1/assign", json=body)))
        asking.start()
        time.sleep(0.3)
        begun = time.perf_counter()
        assert httpx.get(service.url + "/v2/health/ready").status_code == 200
        assert time.perf_counter() - begun < 2
        asking.join()
        refused(answers[0], 503, "nobody is placed")
        holding.execute("ROLLBACK")
        holding.close()
        assert service.ask("POST", "/v1/assign", json=body).status_code == 200
