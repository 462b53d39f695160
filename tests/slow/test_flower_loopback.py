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
from tests.deploy.staging import make_grid as near_grid
from tests.deploy.staging import play, played, simulated

from fedflux.deploy.flower.loopback import Loopback
from fedflux.files import read_lines, read_object

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower"
DIGITS: dict[str, Any] = {"model": "mlp", "data": "fedflux.deploy.flower.simulated:data"}
UNLABELLED = (4, 5)
KILLED, LATE, STRANGER = 2, 3, 9
SIX: dict[str, Any] = {"clients": 6, "seed": 18, "level": 4, "cluster-round": 2, "min-nodes": 3}
"""Six clients of two distributions: 0, 2 and 4 of one, 1, 3 and 5 of the other."""
WANTED = [0, 1, 0, 1]
FOUR: dict[str, Any] = {"clients": 4, "seed": 18, "level": 4, "rounds": 4, "shift": "px", "dataset": "digits"}


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
    folders = {f"{what}-dir": str(here.folder / what / str(client)) for what in ("model", "state")}
    return {"partition-id": client, "labels": client not in UNLABELLED, **folders}


def start(here: Loopback, client: int, register: bool = True) -> None:
    here.make_node(f"node-{client}", register)
    here.start_node(f"node-{client}", configuration(here, client))


def said(here: Loopback, name: str, words: str) -> int:
    return here.log(name).read_text(encoding="utf-8", errors="replace").count(words)


def saved_round(folder: Path) -> int:
    return max((int(path.stem[6:]) for path in (folder / "checkpoints").glob("round-*.json")), default=0)


def finished(here: Loopback, out: Path, running: "subprocess.Popen[bytes]", name: str) -> dict[str, Any]:
    wait_for("end of the run", lambda: running.poll() is not None, 400)
    result = read_object(out / "result.json")
    assert result is not None, here.log(name).read_text(encoding="utf-8")
    return result


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
        here.kill("superlink")
        wait_for("end of the first run", lambda: running.poll() is not None, 120)
        assert not (out / "result.json").exists()
        assert saved_round(out) == 4

        here.start_superlink()
        resumed = here.submit(APP, {**config, "resume": True}, "resumed")
        result = finished(here, out, resumed, "resumed")
        assert said(here, "resumed", "round 5 of 5: validation") >= 1
        held = {client: read_object(here.folder / "model" / str(client) / "model.json") for client in (0, *UNLABELLED)}
        models = {client: load_file(here.folder / "model" / str(client) / "model.safetensors") for client in held}
        assert said(here, f"node-{STRANGER}", "Receiving") == 0

    assert any(event["event"].startswith("resumed after round 4") for event in read_lines(out / "events.jsonl"))
    assert result["assignment"][:4] == WANTED
    assert result["refused"] == {}
    scores = result["known_per_client"]
    assert [k for k, score in enumerate(scores) if score is not None] == [0, 1, 3]
    assert min(scores[k] for k in (0, 1, 3)) > 70
    clusters = load_file(out / "models.safetensors")
    for one in result["unlabelled"]:
        assert one["cluster"] == WANTED[one["client"] - 2]
        told = held[one["client"]]
        assert told is not None
        assert (told["cluster"], told["posterior"]) == (one["cluster"], pytest.approx(one["posterior"]))
    for client, model in models.items():
        cluster = WANTED[client % 2]
        assert all((tensor == clusters[name][cluster]).all() for name, tensor in model.items())
    page = tmp_path / "report.html"
    command = [sys.executable, "-m", "fedflux", "report", str(out), "--out", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_a_deployment_gives_the_local_engines_clusters_and_accuracies(tmp_path: Path) -> None:
    """Real processes, the in-process Grid and the local engine, on the same partition with the same seed."""
    local, near = simulated(**FOUR), played(range(4), **FOUR)
    with Loopback(tmp_path / "here") as here:
        here.start_superlink()
        for client in range(4):
            here.make_node(f"node-{client}")
            here.start_node(f"node-{client}", {"partition-id": client})
        config = {**DIGITS, **FOUR, "min-nodes": 4, "expected-nodes": 4, "out": str(tmp_path / "run")}
        result = finished(here, tmp_path / "run", here.submit(APP, config), "run")
    assert result["assignment"] == local["assignment"] == near.assignment
    assert len(set(local["assignment"])) > 1
    assert abs(result["known"] - local["known"]) < 2
    assert result["exchanges"] == near.result["exchanges"]
    for way in ("wire_up", "wire_down"):
        assert sum(result[way].values()) == pytest.approx(sum(near.result[way].values()), rel=1e-3)


def test_ray_simulation_gives_the_local_engines_clusters_and_accuracies(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'flwr[simulation]'")
    local = simulated(**FOUR)
    with Loopback(tmp_path / "here") as here:
        here.start_superlink(ray=True)
        config = {**DIGITS, **FOUR, "min-nodes": 4, "expected-nodes": 4, "out": str(tmp_path / "run")}
        result = finished(here, tmp_path / "run", here.submit(APP, config, simulated=4), "run")
    assert result["assignment"] == local["assignment"]
    assert abs(result["known"] - local["known"]) < 2


def test_a_deployed_run_goes_on_in_another_process(tmp_path: Path) -> None:
    """What real nodes began, nodes in this process finish: the folder is that of any run."""
    config = {**FOUR, "min_nodes": 4, "rounds": 2, "algorithm": "fedavg"}
    with Loopback(tmp_path / "here") as here:
        here.start_superlink()
        for client in range(4):
            here.make_node(f"node-{client}")
            here.start_node(f"node-{client}", {"partition-id": client})
        told = {key.replace("_", "-"): value for key, value in config.items()}
        finished(here, tmp_path / "run", here.submit(APP, {**DIGITS, **told, "out": str(tmp_path / "run")}), "run")
    found = play(near_grid(range(4), config), out=tmp_path / "run", resume=True, **{**config, **DIGITS})
    assert found.result["rounds"] == 2
    assert set(found.known) == {0, 1, 2, 3}


def test_the_documented_command_shows_every_round_as_it_ends(tmp_path: Path) -> None:
    """Six nodes, two of them without labels, ten rounds, within four minutes on two cores."""
    command = [sys.executable, "-u", "-m", "fedflux.deploy.flower.loopback", "--app", str(APP)]
    command += ["--nodes", "6", "--unlabelled", "4,5", "--out", str(tmp_path)]
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        rounds = (line for line in running.stdout if "validation" in line and " of 10:" in line)
        seen = [time.monotonic() - begin for _ in rounds]
        assert running.wait() == 0
    took = time.monotonic() - begin
    assert len(seen) >= 10
    assert seen[4] < took - 20  # long before the end
    assert took < 240
    result = read_object(tmp_path / "run" / "result.json")
    assert result is not None
    assert result["assignment"][:4] == [0, 1, 0, 1]


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
