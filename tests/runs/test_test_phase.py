"""Where unlabelled clients have no test phase, and what is said of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.clustering.making import Population, describe_samples
from tests.runs.making import Client, make_client, run_npz, save_clients

from fedflux.algorithms.base import Described
from fedflux.clustering import with_centroids
from fedflux.data import Federation
from fedflux.data.dataset import Dataset, Examples
from fedflux.runs.config import make_config
from fedflux.runs.ending.test_phase import no_test_phase
from fedflux.runs.evaluation import told_of_clusters

CLASSES = (0, 1, 2)
FLUX = {"rounds": 4, "cluster_round": 3, "lr": 0.1, "batch_size": 16}


def relabelled(client: Client) -> Client:
    """The same records; classes 0 and 1 have each other's labels."""
    x, y = client
    return x, np.array([1, 0, 2])[y]


def clients(kinds: str) -> list[Client]:
    """`a`: as they are; `b`: other labels; `n`: negatives."""
    made = [make_client(seed, 90, CLASSES, negative=kind == "n") for seed, kind in enumerate(kinds)]
    return [relabelled(one) if kind == "b" else one for one, kind in zip(made, kinds, strict=True)]


def test_clusters_that_differ_in_concept_leave_no_test_phase(tmp_path: Path) -> None:
    data = save_clients(tmp_path / "data.npz", clients("aaabbb"), class_names=np.array(["cat", "dog", "owl"]))
    result = run_npz(data, tmp_path / "run", **FLUX)
    assert result["clusters_found"] == 2
    assert result["why"][0]["shift"] == "P(Y|X)"
    assert "class cat of cluster 0 is dog of cluster 1" in result["why"][0]["words"]
    assert result["no_test_phase"] == "features cannot show P(Y|X), in which clusters 0 and 1 differ"
    assert [result[key] for key in ("test", "test_per_client", "test_worst", "test_placements")] == [None] * 4
    assert min(result["known_per_client"]) > 90


def test_clients_whose_cluster_has_no_twin_keep_their_scores(tmp_path: Path) -> None:
    result = run_npz(save_clients(tmp_path / "data.npz", clients("aabbnn")), tmp_path / "run", **FLUX)
    assert result["clusters_found"] == 3
    assert result["test"] is result["test_worst"] is result["test_quantile10"] is None
    assert [score is None or np.isnan(score) for score in result["test_per_client"]] == [True] * 4 + [False] * 2
    assert [place["client"] for place in result["test_placements"]] == [4, 5]
    assert "4 of 6 clients have none" in result["no_test_phase"]


def test_clusters_that_features_show_have_a_test_phase(tmp_path: Path) -> None:
    result = run_npz(save_clients(tmp_path / "data.npz", clients("aaannn")), tmp_path / "run", **FLUX)
    assert result["clusters_found"] == 2
    assert result["no_test_phase"] is None
    assert result["test"] > 90


def test_twins_are_found_among_many_clusters_too() -> None:
    """Of 26 clusters far from each other the last two hold the same records under other labels: the 325th pair."""
    rng, world, many = np.random.default_rng(0), Population(0, classes=4, length=4), 26
    drawn = [world.draw(rng, 120) for _ in range(many)]
    held = [(z + 30.0 * min(k, many - 2), y if k < many - 1 else (y + 1) % 4) for k, (z, y) in enumerate(drawn)]
    labels = np.arange(many)
    clusters = with_centroids(describe_samples(held, 4), labels)
    described = Described(labels, {}, labels, clusters)
    method: Any = SimpleNamespace(described=lambda state: described, reads=frozenset())
    config = make_config({"shift": "none"})
    why = told_of_clusters(config, method, None, {})["why"]
    found = no_test_phase(config, federation(True), labels, why)
    assert found is not None
    assert found.clients[-2:].all()


def federation(own: bool) -> Federation:
    x, y = make_client(0, 12)
    owner = np.repeat(np.arange(2), 6) if own else None
    part = Examples(x, y, owner)
    names = ("a", "b") if own else None
    made: Any = type("Fake", (), {"dataset": Dataset("d", part, part, 3, names)})()
    federation: Federation = made
    return federation


WHY = [{"clusters": [0, 1], "shift": "P(Y) + P(Y|X)"}, {"clusters": [0, 2], "shift": "P(X)"}]


@pytest.mark.parametrize(("shift", "own", "none"), [("px", False, False), ("px", True, True), ("none", False, True)])
def test_of_simulated_shifts_it_is_known_what_differs(shift: str, own: bool, none: bool) -> None:
    found = no_test_phase(make_config({"shift": shift}), federation(own), np.array([0, 1, 2, -1]), WHY)
    assert (found is not None) == none
    if found is not None:
        assert found.clients.tolist() == [True, True, False, False]


def test_a_simulated_concept_shift_has_none_whatever_was_found() -> None:
    found = no_test_phase(make_config({"shift": "pygx+py"}), federation(False), np.array([0, 1]), None)
    assert found is not None
    assert found.clients.all()
    assert "what shifts" in found.words


def test_a_shift_on_top_of_clients_of_their_own_is_said(tmp_path: Path) -> None:
    data = save_clients(tmp_path / "data.npz", clients("aaa"))
    with pytest.warns(UserWarning, match=r"^npz has clients of its own: py is simulated on top .*--shift none"):
        run_npz(data, tmp_path / "run", shift="py", level=3)


def test_data_of_ones_own_is_not_shifted_unless_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('dataset = "npz"\n')
    assert [make_config(told, config).shift for told, config in [({"dataset": "npz"}, None), ({}, file)]] == [
        "none"
    ] * 2
    assert make_config({"dataset": "folder", "shift": "px"}).shift == "px"
    assert make_config({}).shift == "px"
