"""Odd federations through a whole run, for every clusterer: they finish, in silence, with JSON that is JSON."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.making import Client, make_client, read_json, read_rounds, run_npz, save_clients

from fedflux.clustering import CLUSTERERS

FEDERATIONS: dict[str, Callable[[], list[Client]]] = {
    "one client": lambda: [make_client(0, 12)],
    "two clients": lambda: [make_client(0, 12), make_client(1, 12, negative=True)],
    "all different": lambda: [make_client(k, 12, negative=k % 2 == 0, noise=0.05 * k) for k in range(5)],
    "a client with one example": lambda: [make_client(0, 12), make_client(1, 12), make_client(2, 1)],
    "a client with one class": lambda: [make_client(0, 12), make_client(1, 12, (1,)), make_client(2, 12)],
    "a class nobody has": lambda: [make_client(k, 12, (0, 2)) for k in range(3)],
    "one example each": lambda: [make_client(k, 1) for k in range(3)],
    "blank images": lambda: [(np.zeros((8, 1, 6, 6), np.float32), np.arange(8) % 2) for _ in range(3)],
}


def quiet_run(data: Path, out: Path, clusterer: str, clients: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*features never change")
        count = min(2, clients) if clusterer == "kmeans" else None
        return run_npz(data, out, clusterer=clusterer, clusters=count)


@pytest.mark.parametrize("clusterer", CLUSTERERS)
@pytest.mark.parametrize("name", FEDERATIONS)
def test_odd_federations_finish(name: str, clusterer: str, tmp_path: Path) -> None:
    clients = FEDERATIONS[name]()
    result = quiet_run(save_clients(tmp_path / "data.npz", clients), tmp_path / "run", clusterer, len(clients))
    assert read_json(tmp_path / "run" / "result.json") == result
    read_rounds(tmp_path / "run")
    assert 1 <= result["clusters_found"] <= len(clients)
    assert len(result["assignment"]) == len(clients)
    assert (result["clusters_true"], result["ari"], result["pairs_right"]) == (None, None, None)
    testless = [len(y) == 1 for _, y in clients]
    for part in ("known", "test"):
        scores = result[f"{part}_per_client"]
        if all(testless):
            assert scores is result[part] is None
        else:
            assert [score is None for score in scores] == testless
    with np.load(tmp_path / "run" / "descriptors.npz") as described:
        assert all(np.isfinite(described[key]).all() for key in described.files)


@pytest.mark.parametrize("clusterer", CLUSTERERS)
@pytest.mark.parametrize("count", [2, 5])
def test_copies_of_one_client_are_one_cluster(count: int, clusterer: str, tmp_path: Path) -> None:
    """Four training examples, so that no validation part is drawn and the copies train on the same arrays."""
    data = save_clients(tmp_path / "data.npz", [make_client(0, 4)] * count, [make_client(1, 9)] * count)
    result = quiet_run(data, tmp_path / "run", clusterer, count)
    assert result["assignment"] == [0] * count
    assert result["clusters_found"] == 1
    assert len(set(result["known_per_client"])) == 1


@pytest.mark.parametrize("clusterer", CLUSTERERS)
def test_two_clear_groups_are_told_apart(clusterer: str, tmp_path: Path) -> None:
    """The counterpart of the copies above: a clusterer that always says one would fail here."""
    clients = [make_client(k, 40, negative=k >= 4, noise=0.02) for k in range(8)]
    result = quiet_run(save_clients(tmp_path / "data.npz", clients), tmp_path / "run", clusterer, 8)
    first, second = set(result["assignment"][:4]), set(result["assignment"][4:])
    assert not first & second


def test_truth_of_the_file_is_compared_with(tmp_path: Path) -> None:
    clients = [make_client(k, 12, negative=k >= 2, noise=0.02) for k in range(4)]
    cluster = np.repeat(["up", "up", "down", "down"], 12)
    data = save_clients(tmp_path / "data.npz", clients, cluster=cluster)
    result = run_npz(data, tmp_path / "run", algorithm="oracle")
    assert result["assignment"] == [0, 0, 1, 1]
    assert (result["clusters_true"], result["ari"]) == (2, 1.0)
