"""The Open Inference Protocol: JSON and binary requests, and those that are neither."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.library.test_several_labels import clinic
from tests.serve.conftest import images
from tests.serve.serving import Service, serving
from tests.serve.test_service import refused

import fedflux
from fedflux.client import Client
from fedflux.serve.bundle import Bundle, open_bundle
from fedflux.serve.container import write_files
from fedflux.serve.making import bundle_contents
from fedflux.serve.service.open_inference import LENGTH


@pytest.fixture(scope="module")
def service(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("protocol")
    write_files(folder / "bundle", contents)
    with serving(folder / "bundle", folder / "state") as running:
        yield running


def tensor(x: np.ndarray[Any, Any], kind: str = "FP32") -> dict[str, Any]:
    return {"name": "x", "shape": list(x.shape), "datatype": kind, "data": x.ravel().tolist()}


def asked(service: Service, body: Any, name: str = "cluster-0") -> Any:
    return service.ask("POST", f"/v2/models/{name}/infer", json=body)


def test_a_cluster_answers_as_its_members_are_answered(service: Service, bundle: Bundle) -> None:
    x = images(6)
    expected = bundle.predict(x, bundle.of_member(0))
    for sent, kind in ((x, "UINT8"), ((x / np.float32(255)).astype(np.float32), "FP32")):
        told = asked(service, {"id": "7", "inputs": [tensor(sent, kind)]}).json()
        first, second = told["outputs"]
        assert (told["id"], told["model_name"], first["shape"]) == ("7", "cluster-0", [6, 10])
        assert np.reshape(first["data"], (6, 10)) == pytest.approx(expected, abs=1e-6)
        assert second["data"] == expected.argmax(axis=1).tolist()
        assert told["parameters"]["bundle"] == bundle.id


def test_the_extractor_gives_latents(service: Service, bundle: Bundle) -> None:
    x = images(3)
    told = asked(service, {"inputs": [tensor(x, "UINT8")]}, "extractor").json()["outputs"][0]
    assert np.reshape(told["data"], told["shape"]) == pytest.approx(bundle.describe(x), abs=1e-9)


def test_data_may_be_nested_and_outputs_chosen(service: Service) -> None:
    x = images(2)
    body = {"inputs": [{**tensor(x, "UINT8"), "data": x.tolist()}], "outputs": [{"name": "class"}]}
    assert [one["name"] for one in asked(service, body).json()["outputs"]] == ["class"]


def test_binary_data_go_both_ways(service: Service, bundle: Bundle) -> None:
    x = images(4)
    one = {"name": "x", "shape": list(x.shape), "datatype": "UINT8", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
    answer = service.ask(
        "POST", "/v2/models/cluster-0/infer", content=head + x.tobytes(), headers={LENGTH: str(len(head))}
    )
    length = int(answer.headers[LENGTH])
    told, tail = json.loads(answer.content[:length]), answer.content[length:]
    size = told["outputs"][0]["parameters"]["binary_data_size"]
    found = np.frombuffer(tail[:size], dtype="<f4").reshape(4, 10)
    assert found == pytest.approx(bundle.predict(x, bundle.of_member(0)), abs=1e-6)
    assert len(tail) == size + struct.calcsize("<4q")


GOOD = {"name": "x", "shape": [1, 1, 8, 8], "datatype": "UINT8", "data": [0] * 64}
BAD: list[tuple[Any, str]] = [
    ({}, "inputs"),
    ({"inputs": [GOOD, GOOD]}, "one tensor"),
    ({"inputs": [{**GOOD, "name": "y"}]}, "no input"),
    ({"inputs": [{**GOOD, "datatype": "BYTES"}]}, "datatype"),
    ({"inputs": [{**GOOD, "datatype": ["x"]}]}, "datatype"),
    ({"inputs": [{**GOOD, "shape": [1, 1, 8, 9]}]}, "data do not fit"),
    ({"inputs": [{**GOOD, "shape": [2**30, 1, 8, 8]}]}, "too many"),
    ({"inputs": [{**GOOD, "shape": [-1]}]}, "sizes"),
    ({"inputs": [{**GOOD, "shape": [True, 1, 8, 8]}]}, "sizes"),
    ({"inputs": [{**GOOD, "data": [300] * 64}]}, "data do not fit"),
    ({"inputs": [{**GOOD, "data": ["a"] * 64}]}, "data do not fit"),
    ({"inputs": [{**GOOD, "data": [[1], [1, 2]]}]}, "data do not fit"),
    ({"inputs": [{**GOOD, "data": None}]}, "no data"),
    ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 9}}]}, "fit together"),
    ({"inputs": [{**GOOD, "shape": [0, 1, 8, 8], "data": []}]}, "no record"),
    ({"inputs": [GOOD], "outputs": [{"name": "z"}]}, "no output"),
    ({"inputs": [GOOD], "outputs": 3}, "outputs"),
]


@pytest.mark.parametrize(("body", "words"), BAD)
def test_bad_requests_are_refused_in_one_line(service: Service, body: Any, words: str) -> None:
    refused(asked(service, body), 400, words)


@pytest.mark.parametrize("length", ["x", "-1", "9999999", "1" * 400, "²"])
def test_a_wrong_length_of_the_json_part_is_refused(service: Service, length: str) -> None:
    headers = {LENGTH.encode(): length.encode("latin-1", "replace")}
    refused(service.ask("POST", "/v2/models/cluster-0/infer", content=b"{}", headers=headers), 400, "length")


def test_of_several_labels_those_of_one_half_or_more_are_told(several: fedflux.TrainedRun, tmp_path: Path) -> None:
    write_files(tmp_path / "bundle", bundle_contents(several))
    x, _ = clinic(np.random.default_rng(5), 1, 20)
    with serving(tmp_path / "bundle", tmp_path / "state") as service:
        told = service.ask("GET", "/v2/models/cluster-0").json()["outputs"]
        assert [(one["name"], one["datatype"]) for one in told] == [("probabilities", "FP32"), ("labels", "BOOL")]
        first, second = asked(service, {"inputs": [tensor(x)]}).json()["outputs"]
        bundle = open_bundle(tmp_path / "bundle")
        expected = bundle.predict(x, bundle.of_member(0))
        assert np.reshape(first["data"], (20, 4)) == pytest.approx(expected, abs=1e-6)
        assert second["data"] == (expected >= 0.5).ravel().tolist()
        refused(asked(service, {"inputs": [tensor(x)], "outputs": [{"name": "class"}]}), 400, "no output")
        with Client(service.url, service.key) as client:
            answer = client.assign(x)
            assert answer.cluster == several.assign(x).cluster[0]
            assert client.predict(x, answer) == pytest.approx(several.predict(x), abs=1e-5)


def test_models_and_the_server_tell_what_they_are(service: Service) -> None:
    assert service.ask("GET", "/v2").json()["name"] == "fedflux"
    assert service.ask("GET", "/v2/health/live").status_code == 200
    told = service.ask("GET", "/v2/models/extractor").json()
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
    assert service.ask("GET", "/v2/models/own-0/ready").json()["ready"] is True
    refused(service.ask("GET", "/v2/models/nobody/ready"), 404, "no model")
