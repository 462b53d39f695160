"""The small parts: settings, records, checks, keys, a node's own data, a light client app."""

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

from fedflux.algorithms.flux.describe import Extractor
from fedflux.deploy.flower import checks
from fedflux.deploy.flower.family import family, kill_family
from fedflux.deploy.flower.keys import make_certificates, make_node_key
from fedflux.deploy.flower.node_data import NodeData, load_node_data
from fedflux.deploy.flower.records import digest, model_stack, pack, record_bytes, unpack
from fedflux.deploy.flower.settings import read_settings
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.projector import fit_projector
from fedflux.engine import Stack
from fedflux.errors import FedfluxError

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("key", ["dp", "epsilon", "delta"])
def test_a_promise_that_flower_cannot_keep_yet_is_refused(key: str) -> None:
    with pytest.raises(FedfluxError, match="no differential privacy yet"):
        read_settings({key: 1.0})


def test_settings_come_from_the_run_config_and_strangers_keys_are_left_alone() -> None:
    assert read_settings({"clip": 2}).training.clip == 2
    assert read_settings({}).training.clip is None
    found = read_settings({"rounds": 3, "batch-size": 8, "lr": 1, "their-own": "x"})
    assert (found.rounds, found.batch_size, found.lr) == (3, 8, 1.0)
    assert found.training.batch_size == 8


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rounds": 0}, "rounds = 0: give 1 or more"),
        ({"rounds": "three"}, "rounds = 'three' does not fit: give a whole number"),
        ({"rounds": True}, "rounds = True does not fit"),
        ({"resume": 1}, "resume = 1 does not fit: give true or false"),
        ({"lr": float("nan")}, "lr = nan: give a value above 0"),
        ({"aggregation": "kurm"}, "unknown aggregation 'kurm': did you mean 'krum'?"),
        ({"clip": -1}, "clip = -1.0: give a value above 0, or 0 for none"),
        ({"trim": 0.5}, "trim = 0.5 is outside 0 to 0.5"),
        ({"rounds": 3, "cluster-round": 4}, "cluster-round = 4 is outside the rounds 1 to 3"),
        ({"resume": True}, "resume = true needs out"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(config: dict[str, Any], words: str) -> None:
    with pytest.raises(FedfluxError) as caught:
        read_settings(config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_survive_the_wire() -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7), "i": np.arange(3, dtype=np.uint32)}
    again = unpack(pack(arrays))
    assert digest(again) == digest(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)
    assert model_stack(arrays).tensors["a"].shape == (1, 2, 3)


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


def test_only_records_are_weighed() -> None:
    assert record_bytes("nothing") == 0


def extractor() -> Extractor:
    bounds = Bounds(np.zeros(5, dtype=np.float32), np.arange(1, 6, dtype=np.float32))
    return Extractor(Stack({}), bounds, fit_projector(bounds, 3), False)


def test_the_projected_box_holds_every_projected_latent() -> None:
    made = extractor()
    low, high = checks.projected_box(made)
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 2, (500, 5)) * made.bounds.high
    points = (corners - made.projector.mean) @ made.projector.components.T
    assert (points >= low - 1e-9).all()
    assert (points <= high + 1e-9).all()
    assert np.allclose(points.max(axis=0), high)
    assert checks.outside_fault(points, low, high, "mean") is None
    assert checks.outside_fault(high[None] + 1.5 * (high - low), low, high, "mean") is not None


def test_bounds_are_compared_with_the_other_nodes() -> None:
    usual = [Bounds(np.zeros(2, np.float32), np.full(2, top, np.float32)) for top in (1.0, 2.0, 3.0)]
    huge = Bounds(np.zeros(2, np.float32), np.array([1.0, 1e4], np.float32))
    assert checks.wide_faults(usual) == [None] * 3
    assert [fault is None for fault in checks.wide_faults([*usual, huge])] == [True, True, True, False]
    assert checks.wide_faults([usual[0], huge]) == [None, None]  # nobody can say which of two is odd


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"low": np.zeros(2)}, "lack low or high"),
        ({"low": np.zeros(3), "high": np.ones(3)}, "wrong shape"),
        ({"low": np.ones(2), "high": np.zeros(2)}, "upside down"),
        ({"low": np.zeros(2), "high": np.array([1, np.inf])}, "NaN or infinite"),
    ],
)
def test_bad_bounds_are_named(arrays: dict[str, Any], words: str) -> None:
    assert words in (checks.bounds_fault(arrays, 2) or "")


@pytest.mark.parametrize("told", [0, -1, True, 2.5, None, [3], 11])
def test_impossible_counts_are_refused(told: Any) -> None:
    assert checks.count_fault(told, None, 10) is not None


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


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, 1, 4, 4)).astype(np.float32)


def test_a_nodes_own_arrays_become_its_parts() -> None:
    train, validation = (images(6), np.arange(6) % 3), (images(2), np.array([0, 2]))
    held = NodeData.of(train, validation, classes=3).numbered(2**62)
    cohort = held.cohort()
    np.testing.assert_array_equal(cohort.data(2**62, "train").x.numpy(), train[0])
    np.testing.assert_array_equal(cohort.data(2**62, "validation").y.numpy(), [0, 2])
    assert held.federation.size(2**62, "test") == 0


def test_unlabelled_images_are_all_that_is_there() -> None:
    held = NodeData.of(unlabelled=images(5), classes=3, client=1)
    assert len(held.cohort().features("test")[0]) == 5
    assert held.federation.size(1, "train") == 0


@pytest.mark.parametrize("name", ["no.such:thing", "json:nothing", "json", "json:dumps"])
def test_a_wrong_data_function_is_told_in_one_line(name: str) -> None:
    with pytest.raises((FedfluxError, TypeError)):
        load_node_data(name, {}, {})


def test_a_node_that_cannot_load_its_data_is_left_out() -> None:
    grid = make_grid(range(4), {"clients": 3})
    found = play(grid, clients=3, rounds=1)
    assert any("failed in query.hello" in event and "outside 0 to 2" in event for event in found.events)
    assert set(found.known) == {0, 1, 2}


def test_too_few_nodes_are_waited_for_and_then_told_of() -> None:
    with pytest.raises(FedfluxError, match="1 of 2 labelled nodes came within"):
        play(make_grid([0], {}), wait=0.5)


def test_the_client_app_loads_nothing_that_only_the_server_needs() -> None:
    """Every message may start a process."""
    code = "import sys, fedflux.deploy.flower.client_app; print([m for m in ('sklearn', 'pandas') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


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
