"""The command line as scripts rely on it: JSON on stdout, progress on stderr, one line and status 2 for bad input."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.runs.making import make_client, read_json, save_clients, strict_json

import fedflux
from fedflux.cli import keeping
from fedflux.cli import main as cli
from fedflux.clustering import CLUSTERERS
from fedflux.data.dataset import Dataset, Examples
from fedflux.errors import FedfluxError
from fedflux.runs.config import SETTINGS
from fedflux.settings import PANELS

SOURCE = Path(__file__).parents[2] / "src"
RUN_KEYS = {
    *("known", "test", "known_per_client", "test_per_client", "worst", "clusters_found", "clusters_true", "ari", "nmi"),
    *("pairs_right", "cluster_round", "rounds", "seconds", "seconds_training", "seconds_descriptor"),
    *("seconds_clustering", "bytes_up", "bytes_down", "engine", "device", "precision", "epsilon", "command", "run_dir"),
}
SHORT = ("--clients", "4", "--rounds", "3", "--cluster-round", "2", "--device", "cpu")


class Answer(NamedTuple):
    status: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The last line of stdout."""
        assert self.status == 0, self.stderr
        return strict_json(self.stdout.splitlines()[-1])


def process(folder: Path, *arguments: str) -> Answer:
    """`python -m fedflux` as a script calls it."""
    command = [sys.executable, "-m", "fedflux", *arguments]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return Answer(done.returncode, done.stdout, done.stderr)


Call = Callable[..., Answer]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The same command line inside this process, in a folder of its own; quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def answer(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedflux", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        code = stop.value.code
        assert code is None or isinstance(code, int)
        return Answer(code or 0, *capsys.readouterr())

    return answer


# the contract, in real processes


def test_run_and_cluster_answer_with_json_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    done = process(tmp_path, "run", "--shift", "px", "--level", "3", *SHORT, "--out", "run", "--json")
    result = done.json()
    assert done.stdout.count("\n") == 1
    assert "3/3" in done.stderr
    assert result.keys() >= RUN_KEYS
    assert len(result["known_per_client"]) == len(result["test_per_client"]) == 4
    assert (result["run_dir"], result["rounds"], result["engine"], result["device"]) == ("run", 3, "loop", "cpu")
    assert result == read_json(tmp_path / "run" / "result.json")

    again = process(tmp_path, "cluster", "run", "--clusterer", "hdbscan", "--json")
    clusters = again.json()
    assert again.stdout.count("\n") == 1
    assert clusters.keys() >= {"labels", "clusters_found", "ari", "pairs_right"}
    assert len(clusters["labels"]) == 4


def test_doctor_answers_with_json(tmp_path: Path) -> None:
    done = process(tmp_path, "doctor", "--json")
    result = done.json()
    assert done.stdout.count("\n") == 1
    assert result["ok"] is True
    assert {"python", "torch", "device", "write access", "self-test"} <= {check["check"] for check in result["checks"]}
    assert list(tmp_path.iterdir()) == []


def test_partition_answers_with_json(tmp_path: Path) -> None:
    done = process(tmp_path, "partition", "--shift", "py", "--clients", "2", "--out", "parts", "--json")
    assert done.json() == {"clients": 2, "path": "parts"}
    assert done.stdout.count("\n") == 1
    assert (tmp_path / "parts" / "manifest.json").exists()


def test_bad_input_in_a_real_process(tmp_path: Path) -> None:
    done = process(tmp_path, "run", "--dataset", "mnist", "--data-dir", "nowhere", "--json")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("fedflux: mnist: data folder nowhere does not exist")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_run_with_130_and_keeps_its_folder(tmp_path: Path) -> None:
    script = (  # a background job, such as this test's, may be born deaf to the signal
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fedflux.cli.main import main; main()"
    )
    command = [sys.executable, "-c", script, "run", "--rounds", "100000", "--out", "run", "--json"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True) as running:
        limit = time.monotonic() + 60
        while not (tmp_path / "run" / "checkpoints" / "round-0002.json").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert stdout == ""
    assert re.fullmatch(
        "fedflux: stopped after round [1-9][0-9]*; go on with: fedflux run --out run --resume", stderr.splitlines()[-1]
    )
    assert "Traceback" not in stderr
    assert not (tmp_path / "run" / "result.json").exists()


# the contract, in this process


def test_until_clustered_stops_there_and_saves_the_descriptors(call: Call, tmp_path: Path) -> None:
    result = call("run", *SHORT, "--until", "clustered", "--out", "run", "--json").json()
    assert result.keys() >= RUN_KEYS
    assert (result["rounds"], result["cluster_round"]) == (2, 2)
    for key in ("known", "test", "known_per_client", "test_per_client", "worst"):
        assert result[key] is None
    assert result["clusters_found"] >= 1
    assert result["pairs_right"] is not None
    with np.load(tmp_path / "run" / "descriptors.npz") as described:
        assert described["clients"].tolist() == [0, 1, 2, 3]
    assert call("cluster", "run", "--json").json()["labels"] == result["assignment"]


@pytest.mark.parametrize(("algorithm", "shift"), [("flux", "pygx"), ("flux", "pygx+py"), ("local", "px")])
def test_no_test_phase_where_it_is_undefined(call: Call, algorithm: str, shift: str) -> None:
    result = call("run", *SHORT, "--algorithm", algorithm, "--shift", shift, "--json").json()
    assert (result["test"], result["test_per_client"]) == (None, None)
    assert result["known"] is not None


def test_without_truth_the_scores_of_clusters_are_null(call: Call) -> None:
    result = call("run", *SHORT, "--shift", "dirichlet", "--json").json()
    assert [result[key] for key in ("clusters_true", "ari", "nmi", "pairs_right")] == [None] * 4
    assert result["test"] is not None


def test_partition_writes_what_it_says(call: Call, tmp_path: Path) -> None:
    answer = call("partition", "--shift", "px", "--clients", "3", "--out", "parts", "--json")
    assert answer.json() == {"clients": 3, "path": "parts"}
    assert answer.stdout.count("\n") == 1
    manifest = read_json(tmp_path / "parts" / "manifest.json")
    assert {entry["file"] for entry in manifest["clients"]} | {"manifest.json"} == set(os.listdir("parts"))
    for entry in manifest["clients"]:
        with np.load(tmp_path / "parts" / entry["file"]) as client:
            assert len(client["x_train"]) == len(client["y_train"]) == entry["train"]
    assert call("partition", "--clients", "3", "--out", "parts").status == 0  # its own folder may be used again


def test_a_run_without_out_goes_into_a_folder_of_its_settings(call: Call, tmp_path: Path) -> None:
    command = ("run", "--algorithm", "fedavg", "--clients", "2", "--rounds", "1", "--json")
    folders = [call(*command, "--seed", seed).json()["run_dir"] for seed in ("1", "2", "1")]
    assert folders[0] == folders[2] != folders[1]
    assert sorted(os.listdir("runs")) == sorted([*(Path(folder).name for folder in set(folders)), "fedflux.sqlite"])
    assert all(Path(folder).parent == Path("runs") for folder in folders)


def test_people_see_tables_and_the_folder_in_one_piece(call: Call, tmp_path: Path) -> None:
    folder = f"a[bold]b[/x] {'long ' * 30}".strip()
    done = call("run", *SHORT, "--shift", "px", "--out", folder)
    assert done.status == 0, done.stderr
    assert f"saved in {folder}" in done.stdout.splitlines()
    assert "known association" in done.stdout
    shown = call("cluster", folder, "--clusterer", "hdbscan")
    assert (shown.status, "hdbscan" in shown.stdout) == (0, True)
    parts = call("partition", "--clients", "2", "--out", f"parts {folder[:20]}")
    assert parts.stdout.splitlines() == [f"2 clients written to parts {folder[:20]}"]


def test_doctor_says_when_runs_cannot_be_written(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("fedflux.cli.doctor._self_test", lambda: fake_check("[/oops]"))
    done = call("doctor", "--out", "file/runs")
    assert done.status == 1
    assert "[/oops]" in done.stdout
    answer = call("doctor", "--out", "file/runs", "--json")
    checks = {check["check"]: check for check in strict_json(answer.stdout)["checks"]}
    assert answer.status == 1
    assert checks["write access"]["ok"] is False
    assert checks["self-test"]["ok"] is True
    assert call("doctor", "--out", "new/runs", "--json").json()["ok"] is True
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def fake_check(detail: str) -> dict[str, Any]:
    return {"check": "self-test", "ok": True, "needed": True, "detail": detail}


def test_doctor_reports_a_self_test_that_fails(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no arithmetic today")

    monkeypatch.setattr("fedflux.cli.doctor.run_config", broken)
    done = call("doctor", "--json")
    assert done.status == 1
    assert "no arithmetic today" in done.stdout


def test_version_and_help(call: Call) -> None:
    assert call("--version").stdout.strip() == fedflux.__version__
    bare = call()
    assert (bare.status, bare.stderr) == (2, "")
    assert "partition" in bare.stdout
    for command in ("run", "cluster", "partition", "doctor"):
        shown = call(command, "--help")
        assert shown.status == 0
        assert "--json" in shown.stdout


def test_help_names_the_presets_defaults(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(call("run", "--help").stdout.replace("│", " ").split())
    rounds = "default: 10; cifar100, heart-disease 15; officehome 40; chexpert, nih-cxr 20"
    assert f"communication rounds ({rounds})" in shown
    rates = "default: 0.005; digits 0.05; heart-disease 0.0005; folder, npz, csv 0.01"
    assert f"learning rate; 0.001 for Adam unless given ({rates})" in shown
    assert f"{', '.join(CLUSTERERS)} (default: {SETTINGS['clusterer'].default})" in shown


def test_help_shows_every_setting_and_what_people_use_first_comes_first(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = call("run", "--help").stdout
    at = {name: shown.index(f"─ {name} ─") for name in PANELS}
    assert list(at.values()) == sorted(at.values())
    places = {name: shown.index(f"│ {one.flag} ") for name, one in SETTINGS.items()}
    for name, one in SETTINGS.items():
        assert max(start for start in at.values() if start < places[name]) == at[one.panel]
    first = [name for name in SETTINGS if places[name] < at["Data in detail"]]
    assert 15 <= len(first) <= 25
    assert {"dataset", "shift", "algorithm", "model", "rounds", "lr", "engine", "out", "preset"} <= set(first)
    for name in ("projector", "answer", "novel", "assignment", "clip", "server_momentum"):
        assert SETTINGS[name].panel == "Experiments"


def test_settings_that_the_method_does_not_read_are_said_on_stderr(call: Call) -> None:
    run = ("run", "--clients", "3", "--rounds", "1", "--json")
    done = call(*run, "--algorithm", "fedavg", "--clusterer", "hdbscan", "--redescribe", "2")
    assert done.status == 0
    lines = done.stderr.splitlines()
    assert lines.count("fedavg does not read --clusterer") == lines.count("fedavg does not read --redescribe") == 1
    assert "does not read" not in call(*run, "--algorithm", "fedavg", "--preset", "paper").stderr


def test_a_comparison_says_once_what_none_of_its_methods_reads(call: Call) -> None:
    grid = ("--algorithms", "fedavg,local", "--shifts", "px,py", "--clients", "3", "--rounds", "1", "--out", "grid")
    done = call("compare", *grid, "--clusters", "3", "--finetune", "1", "--json")
    assert done.status == 0
    assert [line for line in done.stderr.splitlines() if "read" in line] == ["none of fedavg, local reads --clusters"]


def test_a_number_of_clusters_asks_for_kmeans(call: Call) -> None:
    assert call("run", *SHORT, "--until", "clustered", "--out", "run", "--json").status == 0
    answer = call("cluster", "run", "--clusters", "2", "--json").json()
    assert (answer["clusterer"], answer["clusters_found"]) == ("kmeans", 2)
    refused = call("cluster", "run", "--clusters", "2", "--clusterer", "hdbscan")
    assert (refused.status, "hdbscan finds the number by itself" in refused.stderr) == (2, True)


def test_an_unexpected_failure_is_one_line_and_status_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setattr(keeping, "recluster", broken)
    done = call("cluster", "run")
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr == "fedflux: ZeroDivisionError: by nothing (FEDFLUX_DEBUG=1 shows where)\n"
    monkeypatch.setenv("FEDFLUX_DEBUG", "1")
    assert "Traceback" in call("cluster", "run").stderr


def test_ctrl_c_is_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(keeping, "recluster", interrupt)
    done = call("cluster", "run")
    assert (done.status, done.stdout, done.stderr) == (130, "", "fedflux: stopped\n")


def test_stores_are_joined_and_exported(call: Call, tmp_path: Path) -> None:
    for place in ("here", "there"):
        call("run", *SHORT, "--algorithm", "fedavg" if place == "here" else "local", "--out", f"{place}/run", "--json")
    merged = call("store", "merge", "here", "there", "--json").json()
    assert (merged["cells"], merged["added"], merged["known"]) == (2, 1, 0)
    assert call("store", "export", "here", "--out", "cells.csv", "--json").json() == {"cells": 2, "path": "cells.csv"}
    assert (tmp_path / "cells.csv").read_text().count("\n") == 3
    for command in (("merge", "new", "nowhere"), ("export", "nowhere")):
        assert call("store", *command).status == 2
    assert not (tmp_path / "new").exists()


def test_compare_and_report_answer_with_json(call: Call, tmp_path: Path) -> None:
    grid = ("--algorithms", "fedavg,flux", "--shifts", "px", "--clients", "3", "--rounds", "1")
    answer = call("compare", *grid, "--out", "grid", "--json").json()
    assert {line["algorithm"] for line in answer["cells"]} == {"fedavg", "flux"}
    assert answer.keys() >= {"cells", "paper"}
    page = call("report", "grid", "--json").json()["report"]
    assert "plotly" in Path(tmp_path / page).read_text(encoding="utf-8")


# bad input


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with what it holds."""
    found = sorted(folder.rglob("*"))
    return {
        str(path): path.read_bytes() if path.is_file() else None for path in found if "__pycache__" not in str(path)
    }


def idx_files(folder: Path) -> None:
    """MNIST's four files with three images each."""
    folder.mkdir()
    for part in ("train", "t10k"):
        header = b"".join(number.to_bytes(4, "big") for number in (0x803, 3, 28, 28))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(3 * 28 * 28))
        header = b"".join(number.to_bytes(4, "big") for number in (0x801, 3))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes([0, 1, 2]))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and config files, good and bad, that the cases below name."""
    folder = tmp_path_factory.mktemp("inputs")
    good = make_client(0, 12)
    save_clients(folder / "good.npz", [good, make_client(1, 12)])
    x, y = good
    bad = x.copy()
    bad[3, 0, 0, 0] = np.nan
    np.savez(folder / "nan.npz", x=bad, y=y)
    np.savez(folder / "fraction.npz", x=x, y=y + 0.5)
    (folder / "text.npz").write_text("not an archive")
    idx_files(folder / "mnist")
    idx_files(folder / "cut")
    cut = folder / "cut" / "t10k-images-idx3-ubyte"
    cut.write_bytes(cut.read_bytes()[:-1])
    (folder / "empty").mkdir()
    (folder / "file").write_text("mine")
    (folder / "full").mkdir()
    (folder / "full" / "config.json").write_text('{"mine": true}')
    (folder / "broken.toml").write_text("level = ")
    (folder / "types.toml").write_text('level = "high"')
    (folder / "keys.toml").write_text("levle = 3")
    (folder / "drift.toml").write_text('drift = "after:2"\n')
    (folder / "factories.py").write_text(
        "from torch import nn\n"
        "from fedflux.models import MLP\n"
        "def text(shape, classes): return 'model'\n"
        "def wide(shape, classes): return MLP(shape, classes + 1)\n"
        "def latentless(shape, classes): return nn.Flatten()\n"
        "def failing(shape, classes): raise OSError('no weights')\n"
        "class Two(MLP):\n def forward(self, x, mask): return super().forward(x)\n"
        "class Pair(MLP):\n def forward(self, x): return super().forward(x), x\n"
        "class Lost(MLP):\n def forward(self, x): return super().forward(x) / 0\n"
    )
    return folder


NPZ = "run --dataset npz --shift none --data-dir"
BAD = {
    "no command": ("rum", "No such command"),
    "unknown flag": ("run --speed 9", "No such option: --speed"),
    "unknown dataset": ("run --dataset minst", "unknown dataset 'minst': did you mean 'mnist'?"),
    "unknown shift": ("run --shift pz", "unknown shift 'pz': choose from dirichlet, none, px"),
    "unknown algorithm": ("run --algorithm flax", "unknown algorithm 'flax': did you mean 'flux'?"),
    "unknown clusterer": ("run --clusterer dbscan", "unknown clusterer 'dbscan': did you mean"),
    "unknown model": ("run --model lenet", "unknown model 'lenet': did you mean 'lenet5'?"),
    "unknown engine": ("run --engine lop", "unknown engine 'lop': did you mean 'loop'?"),
    "unknown device": ("run --device gpu", "unknown device 'gpu': choose auto, cpu, cuda or cuda:N"),
    "absent device": ("run --device cuda:99", "device 'cuda:99' is not there"),
    "unknown precision": ("run --precision fp8", "--precision 'fp8' does not fit"),
    "unknown until": ("run --until done", "--until 'done' does not fit: give clustered"),
    "unknown patterns": ("run --patterns odd", "--patterns 'odd' does not fit"),
    "unknown covariance": ("run --covariance round", "--covariance 'round' does not fit"),
    "level 9": ("run --level 9", "level 9 does not exist: choose 1 (mild) to 8 (strong)"),
    "level 0": ("run --level 0", "level 0 does not exist"),
    "level in words": ("run --level high", "'--level'"),
    "half a round": ("run --rounds 1.5", "'--rounds'"),
    "seed in words": ("run --seed x", "'--seed'"),
    "lr in words": ("run --lr fast", "'--lr'"),
    "no clients": ("run --clients 0", "0 clients"),
    "more clients than samples": ("run --clients 1798", "1798 clients but only"),
    "more clients than its own": (f"{NPZ} {{inputs}}/good.npz --clients 3", "its own 2 clients; 3 were asked for"),
    "late cluster round": ("run --cluster-round 99", "--cluster-round 99 is outside the rounds 1 to 10"),
    "cluster round in words": ("run --cluster-round soon", "--cluster-round 'soon' does not fit"),
    "lr 0": ("run --lr 0", "--lr 0.0: give a value above 0"),
    "lr inf": ("run --lr inf", "--lr inf"),
    "momentum 1": ("run --momentum 1", "--momentum 1.0 is outside 0 to 1"),
    "clip -1": ("run --clip -1", "--clip -1.0: give a value above 0"),
    "server momentum -1": ("run --server-momentum -1", "--server-momentum -1.0 is outside 0 to 1"),
    "finetune below 0": ("run --finetune -1", "--finetune -1: give 0 or more epochs"),
    "privacy of fedavg": (
        "run --algorithm fedavg --epsilon 1",
        "--epsilon protects descriptors, and fedavg sends none",
    ),
    "a mechanism without a budget": ("run --dp paper", "--dp paper needs a budget: --epsilon E"),
    "finetune of local": ("run --algorithm local --finetune 2", "--finetune: local has no one model a client"),
    "participation 0": ("run --participation 0", "--participation 0.0"),
    "strength 2": ("run --strength 2", "strength 2.0 is outside 0 to 1"),
    "bank 0": ("run --bank 0", "bank of 0 patterns"),
    "kmeans without number": ("run --clusterer kmeans", "kmeans needs the number of clusters: --clusters M"),
    "kmeans with too many": ("run --clusterer kmeans --clusters 11", "--clusters 11, but 10 clients take part"),
    "kmeans with more than take part": (
        "run --clusterer kmeans --clusters 5 --participation 0.4",
        "--clusters 5, but 4 clients take part",
    ),
    "clusters in words": ("run --clusters many", "--clusters 'many' does not fit"),
    "clusters 0": ("run --clusters 0", "--clusters 0: give 1 or more"),
    "true count without truth": (f"{NPZ} {{inputs}}/good.npz --clusters true", "no true clusters"),
    "true count under dirichlet": ("run --shift dirichlet --clusters true", "no true clusters"),
    "oracle without truth": (f"{NPZ} {{inputs}}/good.npz --algorithm oracle", "no true clusters"),
    "prior without truth": (f"{NPZ} {{inputs}}/good.npz --algorithm flux-prior", "no true clusters"),
    "data folder absent": ("run --dataset mnist --data-dir {inputs}/nowhere", "nowhere does not exist"),
    "data folder a file": ("run --dataset mnist --data-dir {inputs}/file", "is not a folder"),
    "truncated idx": ("run --dataset mnist --data-dir {inputs}/cut", "t10k-images-idx3-ubyte: truncated"),
    "too few idx images": ("run --dataset mnist --data-dir {inputs}/mnist", "10 clients but only 3 training examples"),
    "npz unnamed": ("run --dataset npz", "npz: no data folder given"),
    "npz absent": (f"{NPZ} {{inputs}}/none.npz", "none.npz does not exist"),
    "npz unreadable": (f"{NPZ} {{inputs}}/text.npz", "not a readable .npz file"),
    "nan pixels": (f"{NPZ} {{inputs}}/nan.npz", "row 3 of 'x' holds NaN or infinite values"),
    "fractional labels": (f"{NPZ} {{inputs}}/fraction.npz", "in 'y'; give integers or text"),
    "folder empty": ("run --dataset folder --data-dir {inputs}/empty", "empty"),
    "model too large for images": ("run --model lenet5", "lenet5 needs images of 12×12 or more, not 8×8"),
    "factory's module absent": ("run --model no_such_module:make", "cannot import 'no_such_module'"),
    "factory absent": ("run --model factories:none", "'factories' has no callable 'none'"),
    "factory of text": ("run --model factories:text", "must return an nn.Module, not str"),
    "factory too wide": ("run --model factories:wide", "MLP gives outputs of shape (2, 11), not (2, 10)"),
    "factory without latents": ("run --model factories:latentless", "Flatten shows no latents"),
    "model of two inputs": ("run --model factories:Two --engine loop", "Two takes several inputs (x, mask)"),
    "model of two inputs, stacked": ("run --model factories:Two --engine stacked", "Two takes several inputs"),
    "model of two inputs, processes": ("run --model factories:Two --engine processes", "Two takes several inputs"),
    "model of two outputs": ("run --model factories:Pair", "Pair.forward gives tuple, not a tensor"),
    "model without numbers": ("run --model factories:Lost", "Lost gives outputs that are no finite numbers"),
    "factory that fails": ("run --model factories:failing", "OSError: no weights"),
    "out below a file": ("run --out {inputs}/file/run", "cannot write fedflux run to"),
    "out a file": ("run --out {inputs}/file", "cannot write fedflux run to"),
    "out of others": ("run --out {inputs}/full", "holds other files and no fedflux run"),
    "config absent": ("run --config {inputs}/none.toml", "cannot read config file"),
    "config a folder": ("run --config {inputs}/full", "cannot read config file"),
    "config broken": ("run --config {inputs}/broken.toml", "is not valid TOML"),
    "config of wrong types": ("run --config {inputs}/types.toml", "--level 'high' does not fit: give a whole number"),
    "config of unknown keys": ("run --config {inputs}/keys.toml", "unknown setting 'levle': did you mean 'level'?"),
    "cluster without a run": ("cluster", "Missing argument"),
    "cluster a run that is absent": ("cluster {inputs}/nowhere", "does not exist: give the folder of a run"),
    "cluster a folder without one": ("cluster {inputs}/full", "holds no descriptors.npz"),
    "cluster a text": ("cluster {inputs}/text.npz", "is not a readable .npz file"),
    "cluster other arrays": ("cluster {inputs}/good.npz", "not a descriptor file"),
    "partition without out": ("partition", "Missing option '--out'"),
    "partition below a file": ("partition --out {inputs}/file/parts", "cannot write partition to"),
    "partition among others": ("partition --out {inputs}/full", "holds other files and no partition"),
    "partition level 9": ("partition --level 9 --out parts", "level 9 does not exist"),
    "partition of drift": ("partition --config {inputs}/drift.toml --out parts", "leave out drift"),
    "test drift without test phase": ("run --shift pygx --drift test", "pygx has no test phase"),
    "test drift of a mix": ("run --shift pygx+py --drift test", "pygx+py has no test phase"),
    "drift in one round": ("run --rounds 1 --drift after:1", "give --rounds 2 or more"),
    "partition unknown shift": ("partition --shift pz --out parts", "unknown shift 'pz'"),
}


@pytest.fixture
def untouched(inputs: Path, tmp_path: Path) -> Iterator[None]:
    """Fails if a test leaves anything behind, or changes what was there."""
    before = everything(inputs)
    yield
    assert everything(inputs) == before
    assert everything(tmp_path) == {}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing(
    case: str, call: Call, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(inputs))
    arguments, words = BAD[case]
    done = call(*arguments.format(inputs=inputs).split(" "), "--json")
    assert done.status == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("fedflux: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.usefixtures("untouched")
def test_absent_files_without_a_network(call: Call, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody listens there, so it refuses at once
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    done = call("run", "--dataset", "fmnist", "--data-dir", str(inputs / "empty"), "--json")
    assert (done.status, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Downloading data from")]
    assert len(lines) == 1
    assert lines[0].startswith("fedflux: fmnist: train-images-idx3-ubyte.gz")
    assert "no connection" in lines[0]


@pytest.mark.usefixtures("untouched")
def test_a_folder_that_was_not_there_is_not_made(call: Call, inputs: Path, tmp_path: Path) -> None:
    for arguments in (f"{NPZ} {inputs}/nan.npz --out new", f"partition --clients 1798 --out {tmp_path}/a/b"):
        assert call(*arguments.split(" ")).status == 2


def test_an_earlier_run_is_untouched_by_bad_input(call: Call, inputs: Path, tmp_path: Path) -> None:
    assert call("run", *SHORT, "--out", "run").status == 0
    before = everything(tmp_path)
    for flags in ("--model lenet5", "--level 9", f"--dataset npz --data-dir {inputs}/nan.npz", "--device gpu"):
        assert call("run", "--out", "run", *flags.split(" ")).status == 2
    assert everything(tmp_path) == before


def test_what_makes_the_cases_bad_is_what_they_say(call: Call, inputs: Path, tmp_path: Path) -> None:
    """The good neighbours of the bad files are accepted."""
    short = "--rounds 1 --device cpu --json --out"
    assert call(*f"{NPZ} {inputs}/good.npz {short} a".split(" ")).status == 0
    mnist = shutil.copytree(inputs / "mnist", tmp_path / "mnist")
    assert call(*f"run --dataset mnist --data-dir {mnist} --clients 3 {short} b".split(" ")).status == 0
    assert call(*f"run --dataset mnist --data-dir {tmp_path} --clients 3 {short} c".split(" ")).status == 0


@pytest.mark.parametrize(("part", "label"), [("training", -1), ("training", 3), ("test", -2), ("test", 3)])
def test_a_dataset_refuses_labels_out_of_range(part: str, label: int) -> None:
    x, y = make_client(0, 6)
    wrong = y.copy()
    wrong[4] = label
    train, test = (Examples(x, wrong if part == name else y) for name in ("training", "test"))
    with pytest.raises(FedfluxError, match=f"{part} part: label {label} of example 4 is outside 0 to 2"):
        Dataset("mine", train, test, classes=3)


def test_flags_win_over_the_config_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('shift = "py"\nrounds = 2\nclients = 3\nalgorithm = "fedavg"\nout = "run"\n')
    result = call("run", "--config", "run.toml", "--rounds", "1", "--json").json()
    config = read_json(tmp_path / "run" / "config.json")
    assert (result["rounds"], result["run_dir"]) == (1, "run")
    assert (config["rounds"], config["shift"], config["clients"], config["lr"]) == (1, "py", 3, 0.05)
    assert shell_words(result["command"]) >= {"--rounds", "1", "--shift", "py", "--algorithm", "fedavg"}


def shell_words(command: str) -> set[str]:
    return set(command.split(" "))
