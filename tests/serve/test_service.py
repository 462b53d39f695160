"""The service: right answers to those who may ask, one line and the right status to everybody else."""

import json
import pickle
import re
import sqlite3
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import images
from tests.serve.serving import Service, serving
from tests.serve.test_container import listed_anew

import fedflux
from fedflux.errors import FedfluxError
from fedflux.serve.bundle import Bundle
from fedflux.serve.container import MANIFEST, write_files
from fedflux.serve.service.app import make_app
from fedflux.serve.service.reading import scores_as_plain
from fedflux.serve.service.settings import ServiceSettings


@pytest.fixture(scope="module")
def service(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    write_files(folder / "bundle", contents)
    with serving(folder / "bundle", folder / "state") as running:
        yield running


def refused(response: httpx.Response, status: int, words: str) -> None:
    """One line of JSON that says why, and no traceback."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert re.search(words, error), error
    assert "\n" not in error
    assert "Traceback" not in response.text


def test_scores_are_placed_as_the_run_places(service: Service, run: fedflux.TrainedRun, bundle: Bundle) -> None:
    x = images(25, turned=1)
    told = service.ask("POST", "/v1/assign", json={"bundle": bundle.id, "scores": scores_as_plain(bundle.scores(x))})
    answer, placement = told.json(), run.assign(x)
    assert answer["cluster"] == placement.cluster[0]
    assert list(answer["posterior"].values()) == pytest.approx(placement.posterior[0], abs=1e-5)
    assert answer["novel"] in (None, bool(placement.novel[0]))
    features = service.ask("POST", "/v1/assign", json={"features": x.tolist()}).json()
    assert features["posterior"] == pytest.approx(answer["posterior"], abs=1e-5)
    weights = {one["id"]: one["weight"] for one in answer["models"]}
    assert bundle.predict(x, weights) == pytest.approx(run.predict(x), abs=1e-5)


def test_models_come_by_digest_and_in_ranges(service: Service, bundle: Bundle) -> None:
    x = images(5)
    one = service.ask("POST", "/v1/assign", json={"features": x.tolist()}).json()["models"][0]
    for kind in ("onnx", "safetensors"):
        got = service.ask("GET", one[kind]["url"])
        assert got.content == bundle.files[f"models/{one['id']}.{kind}"]
        assert got.headers["etag"] == f'"{one[kind]["sha256"]}"'
        assert len(got.content) == one[kind]["bytes"]
    url, tag, whole = one["onnx"]["url"], got.headers["etag"], bundle.files[f"models/{one['id']}.safetensors"]
    url = one["safetensors"]["url"]
    assert service.ask("GET", url, headers={"If-None-Match": f'"x", W/{tag}'}).status_code == 304
    for part, expected in (
        ("bytes=0-9", whole[:10]),
        ("bytes=10-", whole[10:]),
        ("bytes=-5", whole[-5:]),
        (f"bytes=0-{10**9}", whole),
    ):
        got = service.ask("GET", url, headers={"Range": part})
        assert (got.status_code, got.content) == (206, expected)
    assert service.ask("GET", url, headers={"Range": "bytes=5-2"}).status_code == 200
    assert service.ask("GET", url, headers={"Range": "bytes=0-1", "If-Range": '"old"'}).status_code == 200
    refused(service.ask("GET", url, headers={"Range": f"bytes={len(whole)}-"}), 416, "bytes")
    refused(service.ask("GET", url, headers={"If-Match": '"old"'}), 412, "another")
    manifest = service.ask("GET", f"/v1/bundle/{MANIFEST}")
    assert manifest.content == bundle.files.manifest


@pytest.mark.parametrize(
    "address",
    [
        "/v1/models/own-99",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/bundle/../../etc/passwd",
        "/v1/bundle/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/bundle//etc/passwd",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/v2/models/nothing",
        "/nothing",
    ],
)
def test_what_is_not_there_is_not_found(service: Service, address: str) -> None:
    refused(service.ask("GET", address), 404, ".")


BAD: list[tuple[Any, int, str]] = [
    ("not json", 400, "no JSON"),
    ("[1]", 400, "no JSON object"),
    ("[" * 100_000, 400, "no JSON"),
    ('{"scores": NaN}', 400, "no JSON"),
    ("{}", 422, "either scores or features"),
    ({"scores": {}, "features": []}, 422, "either scores or features"),
    ({"scores": 3}, 422, "scores must be an object"),
    ({"scores": {"likelihood": [1], "worth": 1, "misfit": {}}}, 422, "misfit|mean"),
    ({"scores": {"likelihood": "x", "worth": 1, "misfit": {"mean": 1, "variance": 1, "count": 1}}}, 422, "likelihood"),
    ({"features": [[1, 2], [3]]}, 422, "unequal length"),
    ({"features": []}, 422, "shape"),
    ({"features": [["\ud800"]]}, 422, "numbers"),
    ({"features": [[10**400]]}, 422, "numbers"),
    ({"features": {"a": 1}}, 422, "list of records"),
    ({"features": [[[[0] * 8] * 8]] * 5000}, 422, "too many"),
    ({"features": [[[[0] * 8] * 8]], "worth": -1}, 422, "worth"),
    ({"features": [[[[3e38] * 8] * 8]]}, 422, "too large for the models"),
    ({"features": [[[[-3e38] * 8] * 8]]}, 422, "too large for the models"),
    ({"bundle": "\ud83d old", "features": []}, 409, "not served"),
    ({"bundle": {"a": 1}, "features": []}, 409, "not served"),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD)
def test_bad_bodies_are_refused_in_one_line(service: Service, body: Any, status: int, words: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    refused(service.ask("POST", "/v1/assign", content=content.encode()), status, words)


def test_every_assignment_is_written_down_and_nothing_of_the_data(service: Service, bundle: Bundle) -> None:
    before = time.time()
    answer = service.ask("POST", "/v1/assign", json={"features": images(7, seed=3).tolist()}).json()
    with sqlite3.connect(service.state / "audit.sqlite") as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(assignments)")]
        last = database.execute("SELECT time, key, bundle, cluster FROM assignments ORDER BY id DESC").fetchone()
    assert columns == ["id", "time", "key", "bundle", "cluster", "novel", "score"]
    assert last[0] >= before
    assert last[1:] == ("tests", bundle.id, answer["name"])
    watched = service.ask("GET", "/v1/watch").json()
    assert watched["clients"] >= 1
    assert watched["retrain"] is False
    assert "fedflux_assigned_total" in service.ask("GET", "/metrics").text


def test_the_schema_tells_of_every_route(service: Service) -> None:
    paths = service.ask("GET", "/openapi.json").json()["paths"]
    assert {"/v1/assign", "/v1/models/{id}", "/v2/models/{name}/infer", "/v2/health/ready"} <= paths.keys()
    for headers in ({}, {"Origin": "https://elsewhere.example"}):
        assert "access-control-allow-origin" not in service.ask("GET", "/v2", headers=headers).headers


def another(run: fedflux.TrainedRun) -> dict[str, bytes]:
    """The run's bundle, told from the first by its card."""
    from fedflux.serve.making import bundle_contents

    made = bundle_contents(run)
    return {**made, "README.md": made["README.md"] + b"\nAnother.\n"}


def test_another_bundle_is_taken_and_a_bad_one_is_not(
    contents: dict[str, bytes], run: fedflux.TrainedRun, tmp_path: Path
) -> None:
    path = tmp_path / "bundle.zip"
    first, others = write_files(path, contents), another(run)
    with serving(path, tmp_path / "state") as service:
        second = write_files(path, others)
        assert service.ask("POST", "/v1/reload").json() == {"bundle": second}
        scores = {"likelihood": [0.0], "worth": 1, "misfit": {"mean": 1, "variance": 1, "count": 1}}
        refused(service.ask("POST", "/v1/assign", json={"bundle": first, "scores": scores}), 409, "score again")
        for harm, words in (
            (tampered, "README.md was changed"),
            (bomb, "unpacks to more"),
            (pickled, "no safetensors"),
            (gone, "no bundle"),
        ):
            harm(path, others)
            refused(service.ask("POST", "/v1/reload"), 422, f"{words}.*goes on being served")
        assert service.ask("GET", "/v1/models").json()["bundle"] == second


def packed(path: Path, files: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def unpacked(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tampered(path: Path, files: dict[str, bytes]) -> None:
    write_files(path, files)
    packed(path, {**unpacked(path), "README.md": b"nothing to see"})


def bomb(path: Path, files: dict[str, bytes]) -> None:
    write_files(path, {**files, "README.md": b"\0" * 30_000_000})
    packed(path, unpacked(path), zipfile.ZIP_DEFLATED)


def pickled(path: Path, files: dict[str, bytes]) -> None:
    write_files(path, {**files, "placement.safetensors": pickle.dumps([1])})


def gone(path: Path, files: dict[str, bytes]) -> None:
    path.unlink()


def test_reloads_under_load_drop_nothing_and_mix_nothing(
    contents: dict[str, bytes], run: fedflux.TrainedRun, tmp_path: Path
) -> None:
    path, others = tmp_path / "bundle.zip", another(run)
    ids = {write_files(path, one): one for one in (others, contents)}
    stop, wrong, answered = threading.Event(), [], []
    body = {"features": images(2).tolist()}

    def ask(url: str, key: str) -> None:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
            while not stop.is_set():
                got = http.post("/v1/assign", json=body)
                readme = http.get("/v1/bundle/README.md")
                served = ids.get(readme.headers.get("x-fedflux-bundle", ""), {}).get("README.md")
                if got.status_code != 200 or got.json()["bundle"] not in ids or readme.content != served:
                    wrong.append((got.status_code, got.text[:200]))
                answered.append(got.json()["bundle"])

    with serving(path, tmp_path / "state") as service:
        threads = [threading.Thread(target=ask, args=(service.url, service.key)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(20):
            write_files(path, (others, contents)[turn % 2])
            assert service.ask("POST", "/v1/reload").status_code == 200
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert set(answered) == set(ids), "both bundles must have answered"


def test_a_service_that_anybody_could_reach_wants_keys(folder: Path, tmp_path: Path) -> None:
    for more, words in (
        ({"host": "0.0.0.0"}, "without API keys"),
        ({"certificate": tmp_path / "x"}, "TLS needs both"),
        ({"port": 99999}, "--port"),
    ):
        with pytest.raises(FedfluxError, match=words):
            make_app(ServiceSettings(folder, tmp_path / "state", **more))


def test_a_changed_bundle_is_not_served(folder: Path, tmp_path: Path) -> None:
    (folder / "extractor.onnx").write_bytes(b"x")
    listed_anew(folder)
    with pytest.raises(FedfluxError, match=r"extractor.onnx"):
        make_app(ServiceSettings(folder, tmp_path / "state"))
