"""Nodes that fail, diverge, fall silent, come late or claim to be somebody else; and liars that are outvoted."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from tests.deploy.staging import make_grid, node_id, play, played, round_of, same_models, watched
from tests.deploy.test_bad_nodes import (
    BAD,
    METHODS,
    QUERIES,
    arrays_changed,
    changed,
    check_others_are_untouched,
    fails_in_training,
    settings,
    told,
    with_bad,
    without,
)

from fedflux.deploy.node.roster import Roster


def test_a_late_node_with_a_bad_descriptor_never_trains() -> None:
    config = {**settings("flux"), "min_nodes": 5}
    grid = make_grid(range(BAD), config, {BAD: QUERIES["descriptor far outside"][1]})
    found = play(joins_in_round(grid, 2, BAD), **config)
    check_others_are_untouched(found, "far outside the bounds")


def joins_in_round(grid: Any, round: int, client: int) -> Any:
    """The client connects while others train."""

    def join(message: Any, context: Any) -> None:
        due = message.metadata.message_type == "train" and round_of(message) == round
        if due and node_id(client) not in grid.get_node_ids():
            grid.join(node_id(client), {"partition-id": client})

    return watched(grid, join)


def test_a_late_node_is_placed_with_its_like() -> None:
    """Client 8 and client 0 hold data of one distribution."""
    config: dict[str, Any] = {"rounds": 4, "cluster_round": 2}
    everyone = played(**config)
    assert everyone.assignment[8] == everyone.assignment[0]
    grid = joins_in_round(make_grid([k for k in range(10) if k != 8], config), 3, 8)
    found = play(grid, min_nodes=9, **config)
    assert found.assignment[8] == found.assignment[0]
    assert 8 in found.known


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_node_that_fails_does_not_stop_the_round(algorithm: str) -> None:
    found = with_bad(fails_in_training(lambda message, reply: reply), algorithm)
    assert found.result["refused"] == {}
    assert set(found.known) == set(range(6))
    if algorithm != "flux":  # there it has described itself, and may be a cluster
        assert same_models(found, without(algorithm))


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_dropped_answer_costs_a_node_the_round_and_no_more(algorithm: str) -> None:
    def silent(message: Any, context: Any) -> None:
        if message.metadata.message_type == "train" and round_of(message) == 1 and context.node_id == node_id(BAD):
            grid._replies = Forgetful(grid._replies)

    config = {**settings(algorithm), "min_nodes": 6, "timeout": 0.2}
    grid = make_grid(range(6), config)
    found = play(watched(grid, silent), **config)
    assert any("failed in train: no answer in time" in event for event in found.events)
    assert found.result["refused"] == {}
    assert set(found.known) == set(range(6))


class Forgetful(dict[str, Any]):
    """Loses the next answer that is put into it."""

    lost = False

    def __setitem__(self, key: str, value: Any) -> None:
        if self.lost:
            super().__setitem__(key, value)
        self.lost = True


def test_divergence_at_a_node_is_its_own() -> None:
    """A node whose training leaves the finite numbers is refused by name, and the run goes on."""
    config = {**settings("fedavg"), "data": "tests.deploy.test_odd_nodes:exploding", "lr": 0.05, "min_nodes": 6}
    found = play(make_grid(range(6), config), **config)
    assert "its update is not finite" in found.result["refused"][str(BAD)]
    assert f"client {BAD} diverged in round 1" in found.result["refused"][str(BAD)]
    plain = play(make_grid(range(BAD), config), **{**config, "min_nodes": BAD})
    assert same_models(found, plain)


def exploding(node_config: Any, run_config: Any) -> Any:
    """One node's pixels are beyond measure."""
    from fedflux.deploy.node import NodeData

    number = int(node_config["partition-id"])
    draw = np.random.default_rng(number)
    x, y = draw.random((40, 1, 4, 4)).astype(np.float32), np.arange(40) % 4
    x = x * np.float32(1e30) if number == BAD else x
    return NodeData.of((x, y), (x, y), (x, y), classes=4, scale="pixels")


def test_a_second_node_cannot_be_the_same_client() -> None:
    grid = make_grid(range(3), {"clients": 3})
    grid.join(1, {"partition-id": 0})
    found = play(grid, clients=3, rounds=1)
    assert any("is client 0 already" in event for event in found.events)
    assert set(found.known) == {0, 1, 2}


@pytest.mark.parametrize(
    "change",
    [
        {"input-shape": [3, 9, 9]},
        {"input-shape": [1, 2**13, 2**12]},
        {"classes": 7},
        {"stored": [0, 1, 1]},
        {"stored": [10**9, 1, 1]},
        {"stored": [-5, 1, 1]},
        {"copies": 3},
        {"scale": '{"kind": "pixels", "mean": [0.1], "deviation": [0.2]}'},
        {"labels": "yes"},
        {"client": "nobody"},
        {"client": 10**9},
    ],
    ids=str,
)
def test_a_node_that_introduces_itself_badly_is_turned_away(change: dict[str, Any]) -> None:
    """Its id comes first, and yet it is the others that say what the federation holds."""
    found = with_bad(changed("query.hello", told(**change)), "fedavg", min_nodes=5, max_examples=10**6)
    assert set(found.known) == set(range(BAD))
    assert any(event.startswith(f"refused node {node_id(BAD)}") for event in found.events)
    assert str(node_id(BAD)) in found.result["turned_away"]
    assert same_models(found, without("fedavg"))


HALVES = '{"kind": "pixels", "mean": [0.5], "deviation": [0.5]}'


def hello(client: int, side: int) -> dict[str, Any]:
    counts = {"client": client, "stored": [5, 1, 1], "copies": 1, "classes": 4}
    kind = {"input-shape": [1, side, side], "scale": HALVES, "integers": False, "several": False}
    return {**counts, **kind, "labels": True, "keeps": False}


def test_the_kind_of_data_is_what_most_hold_before_the_first_round() -> None:
    """Whoever comes first decides nothing, not even who its client is; once a round has begun it is settled."""
    roster = Roster(100)
    assert roster.admit({5: hello(0, 9)}) == []
    assert [line[:15] for line in roster.admit({6: hello(0, 4)})] == ["refused node 6:"]
    lines = roster.admit({7: hello(1, 4)})
    assert lines[0] == "let node 6 in after all"
    assert [line[:15] for line in lines[1:]] == ["refused node 5:"]
    assert {client: node.id for client, node in roster.nodes.items()} == {0: 6, 1: 7}
    assert roster.federation(0, 0).input_shape == (1, 4, 4)
    roster.admit({8: hello(2, 9), 9: hello(3, 9)})
    assert set(roster.nodes) == {0, 1}
    assert "at most 16,777,216" in Roster(100).admit({5: hello(0, 5000)})[0]
    many = {**hello(0, 4), "classes": 10**12, "several": True}
    assert "classes: at most 16,777,216" in Roster(100).admit({5: many})[0]


@pytest.mark.parametrize("scale", ["[" * 200_000, f'{{"kind": "none", "mean": [1{"0" * 400}], "deviation": [1]}}', 7])
def test_no_introduction_ends_the_run(scale: Any) -> None:
    roster = Roster(100)
    (line,) = roster.admit({5: {**hello(0, 4), "scale": scale}})
    assert "does not introduce itself properly" in line
    assert roster.admit({6: hello(1, 4)}) == []


@pytest.mark.parametrize("algorithm", ["flux", "fedavg"])
@pytest.mark.parametrize("aggregation", ["krum", "trimmed-mean"])
def test_robust_aggregation_outvotes_a_liar_within_its_cluster(aggregation: str, algorithm: str) -> None:
    """Five clients of one distribution, one of which sends finite nonsense."""
    config = {"clients": 5, "shift": "none", "rounds": 3, "min_nodes": 5, "trim": 0.2, "algorithm": algorithm}
    nonsense = arrays_changed("models/0", lambda a: {k: np.full_like(v, 50) for k, v in a.items()})
    scores = {}
    for how in ("mean", aggregation):
        grid = make_grid(range(5), {"clients": 5, "shift": "none"}, {4: changed("train", nonsense)})
        found = play(grid, aggregation=how, **config)
        scores[how] = np.mean([found.known[client] for client in range(4)])
    assert scores["mean"] < 50 < 80 < scores[aggregation]


@pytest.mark.parametrize("aggregation", ["mean", "krum", "trimmed-mean"])
def test_buffers_keep_their_types_whatever_averages_them(aggregation: str) -> None:
    config = {"clients": 3, "model": "tests.deploy.staging:normalised", "shift": "none", "rounds": 2}
    found = play(make_grid(range(3), config), aggregation=aggregation, cluster_round=1, **config)
    tensors = found.models
    assert not tensors["features.2.num_batches_tracked"].is_floating_point()
    assert tensors["features.2.num_batches_tracked"].min() > 0
    assert tensors["features.2.running_var"].is_floating_point()
    assert min(found.known.values()) > 50
