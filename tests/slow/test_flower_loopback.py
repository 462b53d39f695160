"""A federation of real processes with TLS and keys: kills, a late node, a stranger, a dead server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from safetensors.torch import load_file
from tests.deploy.staging import make_grid, play

from fedflux.deploy.flower.checkpoint import load_checkpoint
from fedflux.deploy.flower.loopback import Loopback
from fedflux.files import read_object
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower"
DIGITS: dict[str, Any] = {"model": "mlp", "data": "fedflux.deploy.flower.simulated:data"}
UNLABELLED = (4, 5)
KILLED, LATE, STRANGER = 2, 3, 9
SIX: dict[str, Any] = {"clients": 6, "seed": 18, "level": 4, "cluster-round": 2, "min-nodes": 3}
"""Six clients of two distributions: 0, 2 and 4 of one, 1, 3 and 5 of the other."""
WANTED = {"0": 0, "1": 1, "2": 0, "3": 1}


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that are started import this source."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.2)


def configuration(here: Loopback, client: int) -> dict[str, Any]:
    return {
        "partition-id": client,
        "labels": client not in UNLABELLED,
        "model-dir": str(here.folder / "held" / str(client)),
    }


def start(here: Loopback, client: int, register: bool = True) -> None:
    here.make_node(f"node-{client}", register)
    here.start_node(f"node-{client}", configuration(here, client))


def said(here: Loopback, name: str, words: str) -> int:
    return here.log(name).read_text(encoding="utf-8", errors="replace").count(words)


def saved_round(folder: Path) -> int:
    return max((int(path.stem[6:]) for path in folder.glob("round-*.safetensors")), default=0)


def test_six_nodes_survive_what_happens_to_machines(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = {**DIGITS, **SIX, "out": str(out), "rounds": 5}
    with Loopback(tmp_path / "here") as here:
        here.start_superlink()
        for client in (0, 1, KILLED, *UNLABELLED):
            start(here, client)
        start(here, STRANGER, register=False)
        wait_for("end of the stranger", lambda: here.returncode(f"node-{STRANGER}") is not None, 60)
        assert here.returncode(f"node-{STRANGER}") != 0

        running = here.submit(APP, config)
        wait_for("clusters", lambda: saved_round(out) >= 2, 300)
        start(here, LATE)
        wait_for("round 3's training", lambda: said(here, f"node-{KILLED}", "Receiving: train message") >= 3, 120)
        here.kill(f"node-{KILLED}")
        wait_for("round 4", lambda: saved_round(out) >= 4, 300)
        wait_for("round 5's training", lambda: said(here, "node-0", "Receiving: train message") >= 5, 120)
        before, _ = load_checkpoint(out)
        assert before is not None
        assert before.assignment == WANTED
        here.kill("superlink")
        wait_for("end of the first run", lambda: running.poll() is not None, 120)
        assert not (out / "result.json").exists()

        here.start_superlink()
        resumed = here.submit(APP, {**config, "resume": True}, "resumed")
        wait_for("end of the resumed run", lambda: resumed.poll() is not None, 400)
        result = read_object(out / "result.json")
        assert result is not None, here.log("resumed").read_text(encoding="utf-8")
        held = {client: read_object(here.folder / "held" / str(client) / "model.json") for client in UNLABELLED}
        models = {client: load_file(here.folder / "held" / str(client) / "model.safetensors") for client in UNLABELLED}
        assert said(here, f"node-{STRANGER}", "Receiving") == 0

    assert any(event.startswith("resumed after round 4") for event in result["events"])
    assert result["assignment"] == dict(before.assignment) == WANTED
    assert set(result["known_per_client"]) == {"0", "1", "3"}
    assert min(result["known_per_client"].values()) > 70
    for client in UNLABELLED:
        cluster = WANTED[str(client - 2)]
        placement = result["unlabelled"][str(client)]
        assert placement["taken"]
        assert placement["cluster"] == cluster
        assert placement["distance"] == min(placement["distances"])
        told = held[client]
        assert told is not None
        assert (told["cluster"], told["distance"]) == (cluster, pytest.approx(placement["distance"]))
        for name, tensor in load_file(out / f"cluster-{cluster}.safetensors").items():
            assert (tensor == models[client][name]).all()


def test_a_deployment_gives_the_local_engines_clusters_and_accuracies(tmp_path: Path) -> None:
    """Real processes, the in-process Grid and the local engine, on the same partition with the same seed."""
    told = {"clients": 4, "seed": 18, "level": 4, "rounds": 4, "shift": "px", "dataset": "digits"}
    local = run_config(make_config({**told, "engine": "loop", "out": str(tmp_path / "local"), "store": "none"}))
    near = play(make_grid(range(4), told), **told, min_nodes=4)
    with Loopback(tmp_path / "here") as here:
        here.start_superlink()
        for client in range(4):
            here.make_node(f"node-{client}")
            here.start_node(f"node-{client}", {"partition-id": client})
        config = {**DIGITS, **told, "min-nodes": 4, "out": str(tmp_path / "run")}
        running = here.submit(APP, config)
        wait_for("end of the run", lambda: running.poll() is not None, 400)
        result = read_object(tmp_path / "run" / "result.json")
        assert result is not None, here.log("run").read_text(encoding="utf-8")
    assert [result["assignment"][str(client)] for client in range(4)] == local["assignment"]
    assert len(set(local["assignment"])) > 1
    assert near.state.assignment == result["assignment"]
    assert abs(result["known"] - local["known"]) < 2
    wire = {r: (t.down, t.up) for r, t in near.exchange.traffic.items()}
    assert {int(r): (t["down"], t["up"]) for r, t in result["bytes"].items()} == wire


def test_ray_simulation_gives_the_local_engines_clusters_and_accuracies(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'flwr[simulation]'")
    told = {"clients": 4, "seed": 18, "level": 4, "rounds": 4, "shift": "px", "dataset": "digits"}
    local = run_config(make_config({**told, "engine": "loop", "out": str(tmp_path / "local"), "store": "none"}))
    with Loopback(tmp_path / "here") as here:
        here.start_superlink(ray=True)
        config = {**DIGITS, **told, "min-nodes": 4, "out": str(tmp_path / "run")}
        running = here.submit(APP, config, simulated=4)
        wait_for("end of the run", lambda: running.poll() is not None, 400)
        result = read_object(tmp_path / "run" / "result.json")
        assert result is not None, here.log("run").read_text(encoding="utf-8")
    assert [result["assignment"][str(client)] for client in range(4)] == local["assignment"]
    assert abs(result["known"] - local["known"]) < 2


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedflux.deploy.flower.loopback", "--app", str(APP), "--nodes", "2"]
    script = subprocess.Popen([*command, "--out", str(tmp_path)], start_new_session=True, stdout=subprocess.DEVNULL)
    wait_for("run", lambda: (tmp_path / "logs" / "run.log").exists(), 120)
    time.sleep(5)
    assert started_in(tmp_path)
    os.kill(script.pid, signal.SIGINT)
    assert script.wait(60) == 130
    assert started_in(tmp_path) == []


def started_in(folder: Path) -> list[str]:
    """The command lines of processes that work in a folder or were told of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            inside = Path(os.readlink(path / "cwd")).is_relative_to(folder)
        except OSError:
            continue
        if ("flwr" in line or "flower" in line) and "--app" not in line and (inside or str(folder) in line):
            found.append(line)
    return found
