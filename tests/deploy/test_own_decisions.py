"""What a node allows, keeps and spends is decided by its own configuration, and outlives its processes."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from flwr.app import RecordDict
from tests.deploy.staging import Played, make_grid, node_id, play, played, round_of, same_models, watched

from fedflux import operations
from fedflux.data.sources import load
from fedflux.deploy.flower.records import InContext
from fedflux.deploy.node.memory import MODELS, OnDisk, put_slot, slot_rounds, trim_models

ODD = 3
SMALL: dict[str, Any] = {"clients": 4, "rounds": 2, "cluster_round": 1, "min_nodes": 4}


def with_node(config: dict[str, Any], client: int = ODD, **settings: Any) -> Played:
    told = {**SMALL, **settings}
    grid = make_grid(range(4), told)
    grid.join(node_id(client), {"partition-id": client, **config})
    return play(grid, **told)


def declined(found: Played, client: int = ODD) -> list[str]:
    """What a client did not answer by its own decision."""
    start = f"client {client} (node {node_id(client)}) declined "
    return [event.removeprefix(start) for event in found.events if event.startswith(start)]


def test_a_node_answers_only_what_it_allows() -> None:
    found = with_node({"allow": "train, evaluate, latent-bounds"})
    words = "descriptor: this node does not allow 'descriptor': it allows train, evaluate, latent-bounds"
    assert declined(found)[0] == words
    assert found.result["refused"] == {}
    assert found.assignment[ODD] == -1
    assert all(label >= 0 for k, label in enumerate(found.assignment) if k != ODD)


def test_members_that_decline_tries_belong_all_the_same() -> None:
    """Others' validation parts say how sure a placement is; nobody has failed."""
    found = with_node({"allow": "train, evaluate, latent-bounds, descriptor"})
    words = [event.split(":")[0] for event in declined(found)]
    assert words == ["placement-tries", "placement"]
    assert not any("failed in" in event for event in found.events)
    assert found.result["refused"] == {}
    assert found.assignment[ODD] >= 0
    assert found.result["known_per_client"][ODD] is not None
    told = {one["client"]: one for one in found.result["test_placements"]}
    assert told[ODD]["confidence"] is None
    assert all(one["confidence"] > 0 for client, one in told.items() if client != ODD)


def test_a_rule_must_be_allowed_too() -> None:
    found = with_node({"allow": "train, evaluate"}, algorithm="apfl")
    assert declined(found)[0].startswith("train: this node does not allow 'apfl-mixing'")
    allowed = with_node({"allow": "train, evaluate, apfl-mixing"}, algorithm="apfl")
    assert declined(allowed) == []


def test_a_node_may_keep_whole_parts_to_itself() -> None:
    found = with_node({"splits": "train, validation"}, algorithm="fedavg")
    assert found.result["known_per_client"][ODD] is None
    assert all(score is not None for k, score in enumerate(found.result["known_per_client"]) if k != ODD)
    assert found.engine.roster.nodes[ODD].stored[2] == 0
    assert found.result["refused"] == {}


def test_a_node_without_labels_never_trains_whatever_it_is_asked() -> None:
    """Even where the server takes it for one that has labels."""
    lies: list[Any] = []

    def lie(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "query.hello":
            reply.content["about"]["labels"] = True
            reply.content["about"]["stored"] = [10, 10, 10]
        elif "declined" in reply.content["about"]:
            lies.append(reply.content["about"]["declined"])
        return reply

    grid = make_grid(range(4), SMALL, {ODD: lie}, unlabelled=(ODD,))
    found = play(grid, **SMALL)
    assert ODD not in found.known
    words = "this node has no labels: it answers placement, subspace, unlabelled-descriptor; not train"
    assert any(words in lie for lie in lies)


def test_another_revision_is_refused_with_both_numbers() -> None:
    """A node whose fedflux answers otherwise says so, and the run goes on without it."""
    original = operations.unpack

    def older(packed: Any, device: str = "cpu") -> Any:
        newer = packed.name == "latent-bounds" and here["node"] == node_id(ODD)
        return original(replace(packed, revision=packed.revision + 1) if newer else packed, device)

    here = {"node": 0}
    grid = make_grid(range(4), SMALL)
    watched(grid, lambda message, context: here.update(node=context.node_id))
    with patch("fedflux.deploy.node.requests.unpack", older):
        found = play(grid, **SMALL)
    assert "latent-bounds: operation 'latent-bounds' has revision 1 here, and 2 is asked for" in declined(found)


def test_the_nodes_own_data_function_wins() -> None:
    found = with_node({"data": "tests.deploy.test_own_decisions:mirrored"}, algorithm="fedavg")
    assert found.engine.roster.nodes[ODD].stored == (7, 2, 3)


def mirrored(node_config: Any, run_config: Any) -> Any:
    """A few digits in three channels, as the others have them."""
    from fedflux.deploy.node import NodeData

    source = load("digits", None)
    x, y = np.repeat(source.train.x[:12], 3, axis=1), source.train.y[:12]
    return _like_digits(NodeData.of((x[:7], y[:7]), (x[7:9], y[7:9]), (x[9:], y[9:]), classes=10), source.scaling)


def _like_digits(data: Any, scaling: Any) -> Any:
    dataset = replace(data.federation.dataset, scaling=scaling)
    return replace(data, federation=replace(data.federation, dataset=dataset))


def test_nodes_without_a_number_are_numbered_as_they_come(tmp_path: Path) -> None:
    """The number is bound to the node id, and found again when the run goes on."""
    config = {"data": "tests.deploy.test_own_decisions:mirrored", "rounds": 2, "algorithm": "local", "min_nodes": 2}
    grid = make_grid([], config)
    for id in (77, 33):
        grid.join(id, {"name": id})

    def late(message: Any, context: Any) -> None:
        if round_of(message) == 1 and message.metadata.message_type == "train" and 11 not in grid.get_node_ids():
            grid.join(11, {"name": 11})

    found = play(watched(grid, late), out=tmp_path, **config)
    assert {node.id: client for client, node in found.engine.roster.nodes.items()} == {33: 0, 77: 1, 11: 2}
    again = make_grid([], config)
    for id in (11, 77):
        again.join(id, {"name": id})
    resumed = play(again, out=tmp_path, resume=True, **config)
    assert {node.id: client for client, node in resumed.engine.roster.nodes.items()} == {77: 1, 11: 2}


@pytest.mark.parametrize("algorithm", ["local", "apfl"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_what_a_client_keeps_outlives_a_restart_of_its_node(tmp_path: Path, algorithm: str, on_disk: bool) -> None:
    config = {"clients": 3, "rounds": 3, "algorithm": algorithm, "min_nodes": 3}
    plain = played(range(3), **config)
    grid = make_grid(range(3), config)
    for client in range(3):
        own = {"state-dir": str(tmp_path / str(client))} if on_disk else {}
        grid.join(node_id(client), {"partition-id": client, **own})

    def restart(message: Any, context: Any) -> None:
        due = message.metadata.message_type == "train" and round_of(message) == 3
        if due and context.node_id not in restarted:
            restarted.add(context.node_id)
            context.state.clear()

    restarted: set[int] = set()

    found = play(watched(grid, restart), **config)
    assert len(restarted) == 3
    assert (found.known == plain.known) == on_disk
    assert found.result["exchanges"]["3"] == (2 if on_disk else 3)  # the model to begin from had to be asked for
    if on_disk:
        run = found.engine._run
        rounds = [made for made, _ in slot_rounds(OnDisk(tmp_path / "0"), run, "personal")]
        assert rounds == [2, 3]


def test_the_last_two_rounds_of_a_slot_are_kept(tmp_path: Path) -> None:
    memory = OnDisk(tmp_path)
    for round in (1, 2, 3):
        put_slot(memory, "run", "mine", round, {"w": np.array([round])})
    put_slot(memory, "other", "mine", 7, {"w": np.array([7])})
    assert [made for made, _ in slot_rounds(memory, "run", "mine")] == [2, 3]
    put_slot(memory, "run", "mine", 2, {"w": np.array([20])})  # a run that went one round back
    assert [made for made, _ in slot_rounds(memory, "run", "mine")] == [2]
    assert memory[slot_rounds(memory, "run")[-1][1]]["w"] == 20


def test_handed_out_models_are_what_clients_answer_with(tmp_path: Path) -> None:
    """A cluster's model; for APFL the blend of the common and the client's own, for FedPer the two joined."""
    from safetensors.torch import load_file

    from fedflux.files import read_object

    for algorithm in ("flux", "apfl", "fedper", "fedem"):
        config = {**SMALL, "algorithm": algorithm, "clusters": 2}
        config = {key: value for key, value in config.items() if algorithm != "flux" or key != "clusters"}
        grid = make_grid(range(4), config)
        for client in range(4):
            folder = str(tmp_path / algorithm / str(client))
            grid.join(node_id(client), {"partition-id": client, "model-dir": folder})
        found = play(grid, **config)
        told = read_object(tmp_path / algorithm / "0" / "model.json")
        assert told is not None
        assert sum(told["weights"].values()) == pytest.approx(1)
        assert len(told["weights"]) == (2 if algorithm == "fedem" else 1)
        held = load_file(tmp_path / algorithm / "0" / next(iter(told["weights"])))
        assert held.keys() == found.models.keys()
        if algorithm == "flux":
            cluster = found.assignment[0]
            assert all((tensor == found.models[name][cluster]).all() for name, tensor in held.items())
        if algorithm == "fedper":
            shared = {name: bool((tensor == found.models[name][0]).all()) for name, tensor in held.items()}
            assert shared == {name: not name.startswith("classifier.") for name in held}


def test_two_runs_of_one_node_do_not_mix(tmp_path: Path) -> None:
    config = {"clients": 2, "rounds": 2, "algorithm": "local", "min_nodes": 2}
    plain = played(range(2), **config)

    def again() -> Played:
        grid = make_grid(range(2), config)
        for client in range(2):
            grid.join(node_id(client), {"partition-id": client, "state-dir": str(tmp_path / str(client))})
        return play(grid, out=tmp_path / "run", **config)

    assert again().known == again().known == plain.known
    assert same_models(again(), plain)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_node_forgets_the_models_that_it_used_longest_ago(tmp_path: Path, on_disk: bool) -> None:
    memory = OnDisk(tmp_path / "node") if on_disk else InContext(RecordDict())
    memory["slot/mine@run@1"] = {"w": np.zeros(1)}
    for k in range(MODELS + 3):
        memory[f"model/{k}"] = {"w": np.array([k])}
        time.sleep(0.01)
    assert memory["model/1"]["w"] == 1  # used again
    trim_models(memory, 2, 100)
    held = {name for name in memory if name.startswith("model/")}
    assert len(held) == MODELS
    assert "model/1" in held
    assert held.isdisjoint({"model/0", "model/2", "model/3"})
    trim_models(memory, 2, 2**30)
    assert [name for name in memory if name.startswith("model/")] == [f"model/{MODELS + 2}", "model/1"]
    assert "slot/mine@run@1" in memory
