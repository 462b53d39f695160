"""Several labels a record over Flower's messages: the run is the one that the local engine runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from tests.data.several import LABELS, findings
from tests.deploy.staging import play, played, simulated
from tests.deploy.test_same_as_local import check_same

from fedflux.data import Federation, Partition, partition
from fedflux.deploy.flower.client_app import app
from fedflux.deploy.flower.grid import InProcessGrid
from fedflux.deploy.node import NodeData
from fedflux.errors import FedfluxError
from fedflux.files import write_npz

CLIENTS = 6


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Six clinics in three groups, which name findings otherwise."""
    dataset = findings(CLIENTS, 80)
    file = tmp_path_factory.mktemp("findings") / "own.npz"
    assert dataset.client_clusters is not None
    arrays: dict[str, Any] = {"class_names": np.array(dataset.class_names), "scale": "none"}
    for part, ending in ((dataset.train, ""), (dataset.test, "_test")):
        assert part.client is not None
        arrays |= {f"x{ending}": part.x, f"y{ending}": part.y, f"client{ending}": part.client}
    arrays["cluster"] = dataset.client_clusters[arrays["client"]]
    write_npz(file, arrays)
    told = {"dataset": "npz", "data_dir": str(file), "shift": "none", "clients": CLIENTS, "model": "mlp"}
    return {**told, "rounds": 4, "lr": 0.2, "batch_size": 16}


@pytest.mark.parametrize(
    "variant",
    [
        {"algorithm": "fedavg", "finetune": 2},
        {"algorithm": "flux", "cluster_round": 2},
        {"algorithm": "flux", "cluster_round": 2, "projector": "discriminant"},
        {"algorithm": "flux", "cluster_round": 2, "epsilon": 50.0},
        {"algorithm": "apfl"},
    ],
    ids=lambda variant: "-".join(f"{value}" for value in variant.values()),
)
def test_a_run_is_the_same_deployed(settings: dict[str, Any], variant: dict[str, Any]) -> None:
    told = {**settings, **variant}
    deployed, local = played(range(CLIENTS), **told).result, simulated(**told)
    assert deployed["score"] == local["score"] == "macro ROC AUC"
    if "epsilon" in variant:  # noise is each run's own
        assert deployed["refused"] == {}
        assert len(deployed["known_per_client"]) == CLIENTS
    else:
        check_same(deployed, local)


def test_a_node_with_one_label_a_record_is_let_in_by_nobody(settings: dict[str, Any], tmp_path: Path) -> None:
    """Targets (N,) and (N, L) are two kinds of data; what most nodes hold counts."""
    told = {key.replace("_", "-"): value for key, value in settings.items()}
    grid = InProcessGrid(app, told)
    for client in range(3):
        grid.join(client, {"partition-id": client})
    grid.join(9, {"partition-id": 9, "data": "tests.deploy.test_several_labels:of_one_label"})
    found = play(grid, **settings, algorithm="fedavg", min_nodes=3, expected_nodes=4)
    (reason,) = found.result["turned_away"].values()
    assert "of 6 classes" in reason
    assert "with 6 labels" in reason


def of_one_label(node: Any, run: Any) -> NodeData:
    """The same records, each with one class."""
    federation = _whole()
    x = federation.inputs(0, "train")
    return NodeData.of((x, np.arange(len(x)) % LABELS), classes=LABELS, client=9, scale="none")


def _whole() -> Federation:
    return partition(findings(CLIENTS, 80), Partition("none"))


def test_nodes_hand_over_several_labels() -> None:
    dataset = findings(1, 60)
    held = NodeData.of((dataset.train.x, dataset.train.y), classes=LABELS, scale="none").federation
    assert held.task.several
    assert held.labels(0, "train").shape == dataset.train.y.shape
    blank = NodeData.of(unlabelled=dataset.test.x, classes=LABELS, several=True, scale="none").federation
    assert blank.task.several
    with pytest.raises(FedfluxError, match="labels must have shape"):
        NodeData.of((dataset.train.x, dataset.train.y[:, :3]), classes=LABELS)
