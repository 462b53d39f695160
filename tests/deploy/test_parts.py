"""The small parts: settings, records, memory, keys, a node's own data, a light client app."""

import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from tests.deploy.staging import make_grid, play

from fedflux.data import Cohort
from fedflux.deploy.flower.family import family, kill_family
from fedflux.deploy.flower.keys import make_certificates, make_node_key
from fedflux.deploy.flower.records import (
    MOST,
    from_records,
    pack,
    pack_model,
    record_bytes,
    to_records,
    unpack,
    unpack_model,
    version,
)
from fedflux.deploy.flower.settings import SIMULATED, read_settings
from fedflux.deploy.node import NodeData
from fedflux.deploy.node.arrays import digest
from fedflux.deploy.node.data import load_node_data
from fedflux.deploy.node.requests import Asked, Hello, Mixture, Sent, Train
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.queries import AskDescriptor
from fedflux.engine import Job, Key, Training
from fedflux.errors import FedfluxError

SOURCE = Path(__file__).parents[2] / "src"


def test_settings_come_from_the_run_config_and_strangers_keys_are_left_alone() -> None:
    config, deployment = read_settings({"rounds": 3, "batch-size": 8, "lr": 1, "their-own": "x", "min-nodes": 7})
    assert (config.rounds, config.batch_size, config.lr) == (3, 8, 1.0)
    assert (deployment.min_nodes, deployment.data) == (7, SIMULATED)
    assert config.engine == "flower"


def test_nothing_stands_for_the_default_where_flower_has_no_null() -> None:
    config, _ = read_settings({"clip": 0.0, "clusters": 0, "cluster-round": 0, "epsilon": "", "lr": "", "out": ""})
    assert (config.clip, config.clusters, config.cluster_round, config.epsilon) == (None, None, "auto", None)
    assert (config.lr, config.out) == (0.05, None)  # as on digits
    assert read_settings({"clip": 2, "clusters": "true"})[0].clusters == "true"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rounds": 0}, "rounds = 0: give 1 or more"),
        ({"rounds": "three"}, "rounds = 'three' does not fit: give a whole number"),
        ({"rounds": True}, "rounds = 'True' does not fit"),
        ({"resume": 1}, "resume = '1' does not fit: give true or false"),
        ({"lr": float("nan")}, "lr = nan: give a value above 0"),
        ({"aggregation": "kurm"}, "aggregation = 'kurm' does not fit: give mean or krum or trimmed-mean"),
        ({"clip": -1}, "clip = -1.0: give a value above 0"),
        ({"trim": 0.5}, "trim = 0.5 is outside 0 to 0.5"),
        ({"min-nodes": 0}, "min-nodes = 0: give 1 or more"),
        ({"rounds": 3, "cluster-round": 4}, "cluster-round 4 is outside the rounds 1 to 3"),
        ({"drift": "after:2+test"}, "nodes are tested on what they hold"),
        ({"algorithm": "flax"}, "unknown algorithm 'flax'"),
        ({"algorithm": "oracle", "data": "own.data:load"}, "oracle needs the true clusters"),
        ({"algorithm": "flux-prior", "data": "own.data:load"}, "flux-prior needs the true clusters"),
        ({"clusterer": "kmeans", "clusters": "true", "data": "own.data:load"}, "flux needs the true clusters"),
        ({"algorithm": "ifca", "clusters": 2, "aggregation": "krum"}, "aggregation = krum is for flux, fedavg, not"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(config: dict[str, Any], words: str) -> None:
    with pytest.raises(FedfluxError) as caught:
        read_settings(config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_needs_a_folder_on_the_server() -> None:
    from fedflux.deploy.flower.server_app import run

    with pytest.raises(FedfluxError, match="out = FOLDER"):
        run(make_grid(range(2), {"clients": 2}), {"clients": 2})


def test_arrays_survive_the_wire() -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7), "i": np.arange(3, dtype=np.uint32)}
    for again in (unpack(pack(arrays)), unpack_model(pack_model(arrays))):
        assert digest(again) == digest(arrays)
        for name, array in arrays.items():
            assert again[name].dtype == array.dtype
            np.testing.assert_array_equal(again[name], array)


def test_an_array_of_one_value_travels_as_that_value() -> None:
    zero = np.zeros(4, dtype=np.float32)
    arrays = {"w": np.full((100, 100), 0.3, dtype=np.float32), "z": zero, "signed": np.array([0.0, -0.0, 0.0])}
    record = pack_model(arrays)
    assert int(record.count_bytes()) < 1000
    assert digest(unpack_model(record)) == digest(arrays)  # minus zero is another value than zero


@pytest.mark.parametrize("shapes", [["65536x65536"], ["40000x40000", "30000x30000"]])
def test_one_value_does_not_stand_for_more_than_fits(shapes: list[str]) -> None:
    record = pack({f"w{k}@{shape}": np.zeros(1, dtype=np.float32) for k, shape in enumerate(shapes)})
    with pytest.raises(FedfluxError, match="at most 2,147,483,648"):
        unpack_model(record, MOST)


def test_a_request_survives_the_wire() -> None:
    """A method's own operation inside of it, too."""
    bounds = Bounds(np.zeros(3, np.float32), np.ones(3, np.float32))
    query = Sent.of(AskDescriptor(4, 2, 100, bounds))
    job = Job(5, (0, 1), (None, "mine"), ("mine", None))
    asked = Asked("run", "mlp", 5, 3, most=7, part=(0, 1, 4))
    request = Train(asked, ("x", "y"), (job,), Training(2, 16, 0.1, 0.9, 1.5), Key(42, 3), None, query)
    content = to_records(request)
    again = from_records(content)
    assert (again.asked, again.models, again.jobs) == (request.asked, request.models, request.jobs)
    assert (again.training, again.key, again.rule) == (request.training, request.key, None)
    opened = again.preparation.open()
    assert (opened.classes, opened.components, opened.given) == (4, 2, None)
    np.testing.assert_array_equal(opened.bounds.high, bounds.high)
    assert version(content) == version(to_records(again))
    assert version(content) != version(to_records(Hello("run", 3)))
    assert again.begins_from(set()) == {"x", "y"}


def test_models_that_a_slot_stands_in_for_are_not_needed() -> None:
    job = Job(0, (0, 1), (None, "mine"), (None, "mine"))
    request = Train(Asked("run", "mlp", 0, 1), ("x", "y"), (job,), Training(1, 1, 0.1, 0), Key(0, 1))
    assert request.begins_from(set()) == {"x", "y"}
    assert request.begins_from({"mine"}) == {"x"}


def test_a_mixture_survives_the_wire_to_the_last_bit() -> None:
    weights = (1 / 3, 2 / 3)
    packed = to_records(Hello("run", 1))
    assert from_records(packed) == Hello("run", 1)
    mixture = Mixture(weights, ("mine",), True)
    from fedflux.deploy.node.requests import Evaluate

    request = Evaluate(Asked("run", "mlp", 0, 1), ("x",), "test", (mixture,))
    assert from_records(to_records(request)).mixtures[0].weights == weights


def test_a_digest_sees_names_shapes_types_and_content() -> None:
    base = {"a": np.zeros((2, 3), dtype=np.float32)}
    others: list[dict[str, Any]] = [
        {"b": base["a"]},
        {"a": base["a"].reshape(3, 2)},
        {"a": base["a"].astype(np.float64)},
        {"a": base["a"] + 1},
        {**base, "b": base["a"]},
    ]
    assert len({digest(arrays) for arrays in [base, *others]}) == 6
    assert digest(base, "words") != digest(base)


def test_only_records_are_weighed() -> None:
    assert record_bytes("nothing") == 0


def test_a_tls_client_trusts_the_server_by_the_authority_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path, ("localhost", "127.0.0.1"))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert shake(trusting, serving, "localhost") == "TLSv1.3"
    assert shake(trusting, serving, "127.0.0.1") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(trusting, serving, "example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ssl.create_default_context(), serving, "localhost")
    for private in ("ca.key", "server.key"):
        assert (tmp_path / private).stat().st_mode & 0o077 == 0


def shake(trusting: ssl.SSLContext, serving: ssl.SSLContext, host: str) -> str | None:
    """A TLS handshake in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=host)
    server = serving.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version()


def test_node_keys_are_openssh_pairs(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node")
    private = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node.pub").read_bytes())
    assert private.public_key() == public
    assert (tmp_path / "node").stat().st_mode & 0o077 == 0


def images(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(count).random((count, 1, 4, 4)).astype(np.float32)


def test_a_nodes_own_arrays_become_its_parts() -> None:
    train, validation = (images(6), np.arange(6) % 3), (images(2), np.array([0, 2]))
    held = NodeData.of(train, validation, classes=3)
    cohort = Cohort(held.federation, (17,))
    np.testing.assert_array_equal(cohort.data(17, "train").x.numpy(), train[0])
    np.testing.assert_array_equal(cohort.data(17, "validation").y.numpy(), [0, 2])
    assert held.federation.size(17, "test") == 0
    kept_back = held.only(["train"]).federation
    assert [kept_back.size(17, "train"), kept_back.size(17, "validation")] == [6, 0]


def test_unlabelled_images_are_all_that_is_there() -> None:
    held = NodeData.of(unlabelled=images(5), classes=3, client=1)
    assert len(Cohort(held.federation, (1,)).features("test")[0]) == 5
    assert held.federation.size(1, "train") == 0


@pytest.mark.parametrize("name", ["no.such:thing", "json:nothing", "json", "json:dumps"])
def test_a_wrong_data_function_is_told_in_one_line(name: str) -> None:
    with pytest.raises((FedfluxError, TypeError)):
        load_node_data(name, {}, {})


def test_a_node_that_cannot_load_its_data_is_left_out() -> None:
    found = play(make_grid(range(4), {"clients": 3}), clients=3, rounds=1, algorithm="fedavg")
    assert any(event.startswith("refused node") and "outside 0 to 2" in event for event in found.events)
    assert set(found.known) == {0, 1, 2}


def test_too_few_nodes_are_waited_for_and_then_told_of() -> None:
    with pytest.raises(FedfluxError, match="1 of 2 labelled nodes came within"):
        play(make_grid([0]), wait=0.5)


def test_the_client_app_loads_nothing_that_only_the_server_needs() -> None:
    """Every message may start a process."""
    heavy = ("sklearn", "scipy", "pandas", "matplotlib", "fedflux.clustering", "fedflux.algorithms")
    code = f"import sys, fedflux.deploy.flower.client_app; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_deployment_knows_no_formula() -> None:
    """What is asked of clients, and what is made of it, is the methods' and is written once."""
    found = []
    for path in sorted((SOURCE / "fedflux" / "deploy").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        words = [line.split()[1] for line in lines if line.strip().startswith(("from fedflux", "import fedflux"))]
        found += [(path.name, word) for word in words if word.startswith(("fedflux.clustering", "fedflux.descriptors"))]
    assert found == []


def test_a_family_is_killed_with_those_that_left_its_session() -> None:
    child = "import subprocess, time; p = subprocess.Popen(['sleep', '60'], start_new_session=True)"
    child += "; print(p.pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    members = family([parent.pid])
    assert [pid for pid, _ in members] == [parent.pid, grandchild]
    kill_family([(pid, "another beginning") for pid, _ in members])
    assert parent.poll() is None  # a number that was given away again is left alone
    kill_family(members)
    assert parent.wait(10) == -signal.SIGKILL
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while not gone(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has taken note of it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
