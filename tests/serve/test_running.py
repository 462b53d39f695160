"""`fedflux serve` as a process: no torch in it, TLS, another bundle by SIGHUP, a kill, an orderly end."""

import datetime
import ipaddress
import json
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serve.conftest import images
from tests.serve.test_service import another

import fedflux
from fedflux.client import Client
from fedflux.serve.container import write_files
from fedflux.serve.keeping.keys import Keys
from fedflux.serve.service.settings import AUDIT_FILE

SERVED = """
import sys
from fedflux.serve.service import running
import uvicorn
original = uvicorn.Server.startup
async def startup(self, sockets=None):
    await original(self, sockets)
    heavy = {"torch", "sklearn", "pandas"} & set(sys.modules)
    print("heavy", sorted(heavy), "port", self.servers[0].sockets[0].getsockname()[1], flush=True)
uvicorn.Server.startup = startup
from fedflux.__main__ import main
sys.argv = ["fedflux", "serve", *sys.argv[1:], "--port", "0"]
main()
"""


@contextmanager
def process(bundle: Path, state: Path, *flags: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A service, and the port that it chose."""
    command = [sys.executable, "-c", SERVED, str(bundle), "--state", str(state), *flags]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline().split()
        assert line[:2] == ["heavy", "[]"], line
        yield running, int(line[3])
    finally:
        running.kill()
        running.wait()


def events(log: str) -> list[dict[str, object]]:
    """Every line of the log is JSON."""
    return [json.loads(line) for line in log.splitlines()]


def test_the_serving_process_has_no_torch_and_stops_when_told(folder: Path, tmp_path: Path) -> None:
    secret = Keys(tmp_path / "state").add("somebody")
    with process(folder, tmp_path / "state") as (running, port):
        with Client(f"http://127.0.0.1:{port}", secret) as client:
            assert client.predict(images(2)).shape == (2, 10)
        running.terminate()
        _, log = running.communicate(timeout=20)
    assert running.returncode in (0, -15)
    told = events(log)
    assert [one["event"] for one in told if one["event"] != "request"] == ["started", "stopped"]
    asked = [one for one in told if one["event"] == "request"]
    assert {one["route"] for one in asked} >= {"/v1/assign", "/v1/models/{id}"}
    assert all(set(one) == {"time", "level", "event", "method", "route", "status", "ms", "key"} for one in asked)
    assert {one["key"] for one in asked} == {"somebody"}
    assert secret not in log


def certificate(folder: Path) -> tuple[Path, Path]:
    """One of this machine's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - datetime.timedelta(1)).add_extension(names, critical=False)
    signed = made.not_valid_after(now + datetime.timedelta(1)).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    content = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(content)
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_answers_travel_encrypted(folder: Path, tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    flags = ("--tls-certificate", str(public), "--tls-key", str(private))
    context = ssl.create_default_context(cafile=public)
    with process(folder, tmp_path / "state", *flags) as (_, port):
        assert httpx.get(f"https://127.0.0.1:{port}/v1/models", verify=context).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"https://127.0.0.1:{port}/v1/models")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/v1/models")
        old = ssl.create_default_context(cafile=public)
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((httpx.ConnectError, ValueError)):
            httpx.get(f"https://127.0.0.1:{port}/v1/models", verify=old)


def test_keys_of_tls_that_do_not_fit_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    private.write_text("none")
    flags = ["--tls-certificate", str(public), "--tls-key", str(private), "--state", str(tmp_path / "state")]
    done = subprocess.run(
        [sys.executable, "-m", "fedflux", "serve", str(folder), *flags], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "do not fit" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
def test_a_signal_brings_another_bundle(contents: dict[str, bytes], run: fedflux.TrainedRun, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    first = write_files(path, contents)
    with process(path, tmp_path / "state") as (running, port), httpx.Client() as http:
        address = f"http://127.0.0.1:{port}/v1/models"
        assert http.get(address).json()["bundle"] == first
        second = write_files(path, another(run))
        running.send_signal(signal.SIGHUP)
        for _ in range(200):
            if http.get(address).json()["bundle"] == second:
                break
            time.sleep(0.05)
        assert http.get(address).json()["bundle"] == second
        path.write_bytes(b"no bundle")
        running.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert http.get(address).json()["bundle"] == second
        running.terminate()
        _, log = running.communicate(timeout=20)
    told = [one["event"] for one in events(log)]
    assert told.count("reloaded") == 1
    assert told.count("reload refused") == 1


def test_requests_are_finished_before_the_end(folder: Path, tmp_path: Path) -> None:
    with process(folder, tmp_path / "state") as (running, port):
        body = json.dumps({"features": images(3).tolist()}).encode()

        def slowly() -> Iterator[bytes]:
            yield body[:20]
            time.sleep(1)  # the request has begun
            running.terminate()
            time.sleep(0.5)
            yield body[20:]

        answer = httpx.post(f"http://127.0.0.1:{port}/v1/assign", content=slowly(), timeout=30)
        assert answer.status_code == 200
        assert answer.json()["cluster"] >= 0
        running.communicate(timeout=20)
    with sqlite3.connect(tmp_path / "state" / AUDIT_FILE) as database:
        assert database.execute("SELECT count(*) FROM assignments").fetchone() == (1,)


def test_a_killed_service_has_written_down_every_answer(folder: Path, tmp_path: Path) -> None:
    answered = [0] * 3

    def ask(number: int, port: int) -> None:
        body = {"features": images(1).tolist()}
        with httpx.Client(timeout=30) as http:
            while True:
                try:
                    if http.post(f"http://127.0.0.1:{port}/v1/assign", json=body).status_code == 200:
                        answered[number] += 1
                except httpx.HTTPError:
                    return

    with process(folder, tmp_path / "state") as (running, port):
        threads = [threading.Thread(target=ask, args=(number, port)) for number in range(len(answered))]
        for thread in threads:
            thread.start()
        while sum(answered) < 30:
            time.sleep(0.01)
        os.kill(running.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    with sqlite3.connect(tmp_path / "state" / AUDIT_FILE) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        written = database.execute("SELECT count(*) FROM assignments").fetchone()[0]
    assert sum(answered) <= written <= sum(answered) + len(threads)
    with process(folder, tmp_path / "state") as (_, port):
        watched = httpx.get(f"http://127.0.0.1:{port}/v1/watch").json()
    assert watched["clients"] == written, "the watch goes on from the log"
