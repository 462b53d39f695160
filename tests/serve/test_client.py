"""The client: scores and predicts by itself, and trusts nothing that its digests do not."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.conftest import images
from tests.serve.serving import Service, serving
from tests.serve.test_container import keys
from tests.serve.test_service import another

import fedflux
from fedflux.client import Client
from fedflux.errors import FedfluxError
from fedflux.serve.container import write_files
from fedflux.serve.signing import private_key


@pytest.fixture
def service(contents: dict[str, bytes], tmp_path: Path) -> Iterator[Service]:
    write_files(tmp_path / "bundle.zip", contents)
    with serving(tmp_path / "bundle.zip", tmp_path / "state") as running:
        yield running


@pytest.mark.parametrize("turned", range(4))
def test_unseen_clients_are_answered_as_by_the_run(service: Service, run: fedflux.TrainedRun, turned: int) -> None:
    x = images(40, seed=turned, turned=turned)
    placement = run.assign(x)
    with Client(service.url, service.key) as client:
        answer = client.assign(x)
        assert answer.cluster == placement.cluster[0]
        assert list(answer.posterior.values()) == pytest.approx(placement.posterior[0], abs=1e-5)
        assert client.predict(x, answer) == pytest.approx(run.predict(x), abs=1e-5)
        assert client.class_names == run.class_names


def test_downloads_are_kept_by_digest_and_checked(service: Service, tmp_path: Path) -> None:
    x = images(5)
    with Client(service.url, service.key, cache=tmp_path / "cache") as client:
        first = client.predict(x)
    kept = sorted((tmp_path / "cache").iterdir())
    assert kept
    before = models_sent(service)
    kept[0].write_bytes(b"somebody was here")
    with Client(service.url, service.key, cache=tmp_path / "cache") as client:
        assert np.array_equal(client.predict(x), first)
    assert models_sent(service) <= before + 1, "only what was changed is fetched again"
    assert kept[0].read_bytes() != b"somebody was here"


def models_sent(service: Service) -> float:
    """Downloads of models so far."""
    lines = service.ask("GET", "/metrics").text.splitlines()
    start = 'fedflux_requests_total{route="/v1/models/{id}"'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def test_another_bundle_is_fetched_when_it_is_served(service: Service, run: fedflux.TrainedRun) -> None:
    x = images(5)
    with Client(service.url, service.key) as client:
        first = client.assign(x)
        second = write_files(service.bundle, another(run))
        assert service.ask("POST", "/v1/reload").status_code == 200
        answer = client.assign(x)
        assert first.bundle != answer.bundle == second
        assert client.predict(x, first) == pytest.approx(client.predict(x, answer), abs=1e-6)  # same models, by digest


def test_only_a_trusted_signature_is_taken(contents: dict[str, bytes], tmp_path: Path) -> None:
    (mine, public), (_, others) = keys(tmp_path, "mine"), keys(tmp_path, "others")
    write_files(tmp_path / "signed.zip", contents, private_key(mine))
    with serving(tmp_path / "signed.zip", tmp_path / "state", trust=public) as service:
        with Client(service.url, service.key, trust=public) as client:
            assert client.assign(images(3)).cluster >= 0
        with Client(service.url, service.key, trust=others) as client, pytest.raises(FedfluxError, match="trusted key"):
            client.assign(images(3))


def test_only_models_of_the_manifest_are_run(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(3)
    with Client(service.url, service.key) as client:
        answer = client.assign(x)
        ask, asked = client._ask, []

        def other(method: str, address: str, **how: Any) -> Any:
            asked.append(address)
            return ask(method, address, **how)

        monkeypatch.setattr(client, "_ask", other)
        for lie in ("0" * 64, "../../etc/hostname", "/dev/zero"):
            with pytest.raises(FedfluxError, match="another bundle"):
                client.predict(x, replace(answer, digests=dict.fromkeys(answer.digests, lie)))
        assert not any("/v1/models/" in address for address in asked)
        assert client.predict(x, answer).shape == (3, 10)


def test_refusals_are_told_in_one_line(service: Service) -> None:
    with Client(service.url, "wrong") as client, pytest.raises(FedfluxError, match=r"refused \(401\): this key"):
        client.assign(images(1))
    with Client("http://127.0.0.1:9", "x") as client, pytest.raises(FedfluxError, match="does not answer"):
        client.assign(images(1))


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["torch", "sklearn", "pandas", "fastapi"]))
import numpy as np
from fedflux.client import Client
with Client(sys.argv[1], sys.argv[2]) as client:
    print(client.predict(np.load(sys.argv[3])).shape)
"""


def test_the_client_needs_no_torch(service: Service, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images(4))
    command = [sys.executable, "-c", WITHOUT, service.url, service.key, str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "(4, 10)\n", done.stderr
