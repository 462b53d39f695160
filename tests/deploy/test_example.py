"""The example folder runs: a model and data of one's own, through the run config that `flwr run` would read."""

import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from fedflux.deploy.flower.grid import InProcessGrid
from fedflux.deploy.flower.server_app import run
from fedflux.deploy.flower.settings import FlowerSettings, read_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    for name in [name for name in sys.modules if name.split(".")[0] == "own"]:
        del sys.modules[name]


def test_the_example_clusters_its_nodes_and_serves_unlabelled_ones(own) -> None:
    grid = InProcessGrid(import_module("own.apps").client, own["config"])
    for number in range(10):
        node = {"partition-id": number, "num-partitions": 10, "labels": number < 8}
        grid.join(500 + number, node)
    found = run(grid, read_settings({**own["config"], "min-nodes": 8}))
    groups = [found.state.cluster(number) for number in range(8)]
    assert groups == [0, 1, 0, 1, 0, 1, 0, 1]
    assert {number: found.placements[number].cluster for number in (8, 9)} == {8: 0, 9: 1}
    assert min(found.known.values()) > 0.7


def test_the_components_are_the_apps(own) -> None:
    apps = import_module("own.apps")
    for component, attribute in (("serverapp", "server"), ("clientapp", "client")):
        assert own["components"][component] == f"own.apps:{attribute}"
        assert hasattr(apps, attribute)


def test_the_example_shows_every_setting_a_user_may_change(own) -> None:
    """Flower refuses to override keys that the app's file does not have."""
    rarely = {"significance", "eps-scale", "assignment", "components", "covariance", "bounds", "max-examples"}
    keys = {name.replace("_", "-") for name in FlowerSettings.__annotations__}
    assert keys - set(own["config"]) == rarely
