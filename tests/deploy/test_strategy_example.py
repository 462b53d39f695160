"""FLUX's clusters in a Flower strategy of one's own: the example runs, and gives every cluster its own model."""

import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

import torch
from flwr.app import ArrayRecord, Context, RecordDict
from torch import nn

from fedflux.deploy.flower.grid import InProcessGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_strategy"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Its modules by name."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield lambda name: import_module(f"clusters.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "clusters"]:
        del sys.modules[name]


def test_nodes_are_clustered_by_what_they_see_and_train_their_clusters_models(example: Callable[[str], Any]) -> None:
    torch.manual_seed(0)
    grid = InProcessGrid(example("client").app, {})
    for number in range(6):
        grid.join(500 + number, {"partition-id": number})
    strategy = example("strategy").ClusteredFedAvg(fraction_evaluate=0.0)
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=8)
    assert [strategy.cluster[500 + number] for number in range(6)] == [0, 1, 0, 1, 0, 1]
    states = [record.to_torch_state_dict() for record in strategy.models.values()]
    assert len(states) == 2
    assert not torch.equal(states[0]["1.weight"], states[1]["1.weight"])
    assert result.train_metrics_clientapp[8]["right"] > result.train_metrics_clientapp[3]["right"]


def test_the_server_app_prints_the_clusters(example: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    grid = InProcessGrid(example("client").app, {})
    for number in range(4):
        grid.join(number, {"partition-id": number})
    example("server").app(grid, Context(1, 0, {}, RecordDict(), {}))
    assert "clusters {0: 0, 1: 1, 2: 0, 3: 1}" in capsys.readouterr().out


def test_the_apps_are_short() -> None:
    components = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    assert components["components"] == {"serverapp": "clusters.server:app", "clientapp": "clusters.client:app"}
    for path in (EXAMPLE / "clusters").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
