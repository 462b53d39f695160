"""The example folder runs: a model and data of one's own, through the run config that `flwr run` would read."""

import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from fedflux.deploy.flower.grid import InProcessGrid
from fedflux.deploy.flower.server_app import run
from fedflux.deploy.flower.settings import DeploymentSettings, read_settings
from fedflux.runs.settings import AllSettings
from fedflux.settings import plain_defaults

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
HERE = ("engine", "device", "precision", "store", "samples")
"""Settings of `fedflux run` that say how and where simulated clients run."""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    for name in [name for name in sys.modules if name.split(".")[0] == "own"]:
        del sys.modules[name]


def test_the_example_clusters_its_nodes_and_serves_unlabelled_ones(own: dict[str, Any], tmp_path: Path) -> None:
    grid = InProcessGrid(import_module("own.apps").client, own["config"])
    for number in range(10):
        node = {"partition-id": number, "num-partitions": 10, "labels": number < 8}
        grid.join(500 + number, node)
    found = run(grid, {**own["config"], "min-nodes": 8, "out": str(tmp_path / "run")})
    assert found["assignment"] == [0, 1, 0, 1, 0, 1, 0, 1, -1, -1]
    assert {one["client"]: one["cluster"] for one in found["unlabelled"]} == {8: 0, 9: 1}
    assert min(score for score in found["known_per_client"] if score is not None) > 70
    assert found["clusters_true"] is None


def test_the_components_are_the_apps(own: dict[str, Any]) -> None:
    apps = import_module("own.apps")
    for component, attribute in (("serverapp", "server"), ("clientapp", "client")):
        assert own["components"][component] == f"own.apps:{attribute}"
        assert hasattr(apps, attribute)


def test_the_example_shows_every_setting_a_user_may_change(own: dict[str, Any]) -> None:
    """Flower refuses to override keys that the app's file does not have."""
    keys = dict(plain_defaults(AllSettings, DeploymentSettings, without=HERE))
    assert set(own["config"]) == set(keys)
    changed = {key for key, value in own["config"].items() if value != keys[key]}
    assert changed == {"model", "data", "batch-size", "lr", "clients"}
    config, deployment = read_settings(own["config"])
    assert (config.algorithm, config.cluster_round, config.epsilon) == ("flux", "auto", None)
    assert deployment.data == "own.data:load"
