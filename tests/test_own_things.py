"""Methods, clusterers, models and datasets of one's own: handed in, by where they are, or by an entry point."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CODE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from torch import nn

from fedflux.algorithms import FedAvg
from fedflux.data.sources.digits import load_digits


@dataclass(frozen=True)
class Own(FedAvg):
    revision: ClassVar[int] = 1


class ByFirst(ClusterMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.labels_ = (np.arange(len(X)) > 0).astype(int)
        return self


class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 8), nn.ReLU())
        self.head = nn.Linear(8, classes)

    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return self.head(self.encode(x))


def digits(data_dir):
    return load_digits(data_dir)
"""
POINTS = {"algorithms": "Own", "clusterers": "ByFirst", "models": "Net", "datasets": "digits"}
WAYS = {
    "method": ("things.Own", "things.Own(None)", "'things:Own'", "'own-algorithms'"),
    "clusterer": ("things.ByFirst", "things.ByFirst()", "'things:ByFirst'", "'own-clusterers'"),
}
"""How one thing is named: a class, an object, where it is, an entry point."""
RUN = "dataset='digits', clients=5, level=3, device='cpu', progress=False"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder to import from, with an installed package in it."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "things.py").write_text(CODE)
    told = folder / "things-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: things\nVersion: 1.0\n")
    lines = [f"[fedflux.{group}]\nown-{group} = things:{name}\n" for group, name in POINTS.items()]
    (told / "entry_points.txt").write_text("\n".join(lines))
    return folder


def start(site: Path, script: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(site), str(ROOT / "src")])
    return subprocess.Popen(
        [sys.executable, "-c", f"import json, things, fedflux\n{script}"],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(site: Path, script: str) -> Any:
    """What a new interpreter prints last, as JSON."""
    running = start(site, script)
    said, errors = running.communicate(timeout=180)
    assert running.returncode == 0, errors[-2000:]
    return json.loads(said.splitlines()[-1])


def compared(site: Path, keyword: str, ways: tuple[str, ...], rest: str) -> tuple[list[Any], set[str]]:
    """The clients' scores of a run by each of the ways, and all identities of these runs."""
    calls = [f"fedflux.run({RUN}, {rest}, {keyword}={way}, out='run{k}')" for k, way in enumerate(ways)]
    scores = python(site, f"print(json.dumps([r['known_per_client'] for r in [{', '.join(calls)}]]))")
    told = [json.loads((site.parent / f"run{k}" / "config.json").read_text()) for k in range(len(ways))]
    return scores, {one["identity"] for one in told}


@pytest.mark.parametrize(
    ("keyword", "ways", "rest"),
    [
        ("algorithm", WAYS["method"], "rounds=2"),
        ("clusterer", WAYS["clusterer"], "rounds=3, cluster_round=1, sharing='none'"),
    ],
)
def test_however_it_is_named_it_is_the_same_run(site: Path, keyword: str, ways: tuple[str, ...], rest: str) -> None:
    scores, identities = compared(site, keyword, ways, rest)
    assert scores == [scores[0]] * len(ways)
    assert len(identities) == 1
    plain = python(site, f"print(json.dumps(fedflux.run({RUN}, {rest}, out='plain')['known_per_client']))")
    assert plain != scores[0], "it was not used at all"


def test_models_and_datasets_are_the_same_runs_by_path_and_by_entry_point(site: Path) -> None:
    scores, identities = compared(site, "model", ("'things:Net'", "'own-models'"), "rounds=1, algorithm='fedavg'")
    assert scores[0] == scores[1]
    assert len(identities) == 1
    handed, other = compared(site, "model", ("things.Net",), "rounds=1, algorithm='fedavg'")
    assert handed[0] == scores[0]
    assert not other & identities, "what is handed in is known by its own lines, not by its file"
    run = "clients=5, level=3, device='cpu', progress=False, rounds=1, algorithm='fedavg'"
    calls = [f"fedflux.run(dataset='{name}', {run}, out='{out}')" for name, out in DATASETS]
    scores = python(site, f"print(json.dumps([r['known_per_client'] for r in [{', '.join(calls)}]]))")
    assert scores[0] == scores[1]
    found = {json.loads((site.parent / out / "config.json").read_text())["identity"] for _, out in DATASETS}
    assert len(found) == 1


DATASETS = (("things:digits", "by-path"), ("own-datasets", "by-point"))


GRIDS = {
    "method": [f"algorithms=[{way}]" for way in WAYS["method"]],
    "clusterer": [f"algorithms=['flux'], cluster_round=1, clusterer={way}" for way in WAYS["clusterer"]],
    "model": [f"algorithms=['fedavg'], model={way}" for way in ("'things:Net'", "'own-models'")],
    "model handed in": ["algorithms=['fedavg'], model=things.Net"],
}
CHANGES = {
    "method": ("revision: ClassVar[int] = 1", "revision: ClassVar[int] = 1  # for good"),
    "clusterer": ("> 0).astype", "> 1).astype"),
    "model": ("nn.Linear(8, classes)", "nn.Linear(8, classes, True)"),
    "model handed in": ("nn.Linear(8, classes)", "nn.Linear(8, classes, True)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GRIDS)
def test_a_store_finds_it_by_every_name_and_tells_it_apart_when_its_source_changes(site: Path, what: str) -> None:
    counts = []
    for source in (CODE, CODE.replace(*CHANGES[what])):
        (site / "things.py").write_text(source)
        for call in GRIDS[what]:
            told = f"{RUN.replace('level', 'levels')}, shifts='px', rounds=2, out='grid', {call}"
            stored = "fedflux.runs.storage.store.Store(pathlib.Path('grid'))"
            counts.append(python(site, f"import pathlib\nfedflux.compare({told})\nprint(len({stored}))"))
    assert counts == [1] * len(GRIDS[what]) + [2] * len(GRIDS[what])


@pytest.mark.slow
@pytest.mark.parametrize("begun", range(4))
def test_it_is_killed_and_goes_on_to_the_same_numbers(site: Path, begun: int) -> None:
    """Begun by one name, and gone on with by the next."""
    ways = WAYS["method"]
    run = f"fedflux.run({RUN}, rounds=40, algorithm={{}}, out='{{}}', resume=True)"
    whole = python(site, f"print(json.dumps({run.format(ways[begun], 'whole')}['known_per_client']))")
    running = start(site, run.format(ways[begun], "cut"))
    log = site.parent / "cut" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= 2:
            break
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert not (site.parent / "cut" / "result.json").exists(), "it was killed too late to show anything"
    for way in (ways[begun], ways[(begun + 1) % len(ways)]):
        again = python(site, f"print(json.dumps({run.format(way, 'cut')}['known_per_client']))")
        assert again == whole
