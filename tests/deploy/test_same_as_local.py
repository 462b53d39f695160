"""Over Flower's messages a run is the one that the local engine runs: clusters, accuracies, counts, few bytes more."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from tests.deploy.staging import make_grid, node_id, play, played, round_of, simulated, watched

from fedflux.algorithms import ALGORITHMS
from fedflux.algorithms.check_stage import NORMALISED
from fedflux.data import Partition, populate
from fedflux.data.sources import load
from fedflux.deploy.flower.records import unpack
from fedflux.deploy.node import NodeData

TRUTH = ("oracle", "flux-prior")
MIXTURES = ("fedem", "fedrc")
SHORT: dict[str, Any] = {"rounds": 3, "clients": 6}


def check_same(found: dict[str, Any], local: dict[str, Any]) -> None:
    assert found["assignment"] == local["assignment"]
    for name in ("known_per_client", "test_per_client"):
        assert (found[name] is None) == (local[name] is None)
        if local[name] is not None:
            np.testing.assert_allclose(np.array(found[name], float), np.array(local[name], float), atol=1e-9)
    for name in ("cluster_round", "clusters_found", "clusters_true", "ari", "bytes_up", "bytes_down", "rounds"):
        assert found[name] == local[name], name
    assert found["refused"] == {}
    assert found["engine"] == "flower"


def check_bytes(found: dict[str, Any], local: dict[str, Any], model: int, evaluated: int) -> None:
    """The model that scores a round is the start of the next one, so only the last round's comes on top."""
    wire = {way: {int(r): count for r, count in found[f"wire_{way}"].items()} for way in ("up", "down")}
    up, down = (sum(count for r, count in wire[way].items() if r) for way in ("up", "down"))
    last = evaluated * model * len(found["assignment"])
    assert local["bytes_up"] < up < 1.05 * local["bytes_up"] + 20_000
    assert down < 1.05 * (local["bytes_down"] + last) + 20_000


def model_bytes(found: dict[str, Any], folder: Any) -> int:
    from safetensors.torch import load_file

    return sum(
        tensor[0].numel() * tensor.element_size() for tensor in load_file(folder / "models.safetensors").values()
    )


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"atp"}))
def test_a_method_is_the_same_deployed(algorithm: str) -> None:
    settings = {**SHORT, "algorithm": algorithm, **({"rounds": 2} if algorithm in MIXTURES else {})}
    if "cluster_round" in ALGORITHMS[algorithm].reads:
        settings["cluster_round"] = 2
    if ALGORITHMS[algorithm].needs_batch_norm:
        settings["model"] = NORMALISED
    deployed, local = played(range(6), **settings), simulated(**settings)
    check_same(deployed.result, local)
    models = len(next(iter(deployed.models.values()))) if algorithm in MIXTURES else 1
    check_bytes(deployed.result, local, model_bytes(deployed.result, deployed.folder), models)


def test_atp_is_the_same_deployed() -> None:
    """Its fifty exchanges of a few numbers are mostly envelopes."""
    settings = {"rounds": 1, "clients": 3, "algorithm": "atp"}
    deployed, local = played(range(3), **settings), simulated(**settings)
    check_same(deployed.result, local)
    exchanges, model = 51 * 3, model_bytes(deployed.result, deployed.folder)
    assert deployed.wire("up") < local["bytes_up"] + 1_500 * exchanges
    assert deployed.wire("down") < local["bytes_down"] + 3 * model + 3_000 * exchanges


@pytest.mark.parametrize(
    "variant",
    [
        {"shift": "py", "duplicate": 2, "cluster_round": 2},
        {"shift": "pygx", "patterns": "shared", "cluster_round": 2},
        {"shift": "pxgy", "patterns": "shared", "cluster_round": 2},
        {"participation": 0.5, "cluster_round": 2, "rounds": 4},
        {"finetune": 2, "cluster_round": 2},
        {"projector": "discriminant", "cluster_round": 2},
        {"covariance": "full", "bounds": "scalar", "cluster_round": 2},
        {"answer": "both", "cluster_round": 1},
        {"sharing": "trunk", "shift": "pygx", "cluster_round": 1},
        {"shift": "pxgy", "cluster_round": 1, "rounds": 8, "server_momentum": 0.5},
        {"shift": "pygx", "cluster_round": 1, "finetune": 2},
        {"algorithm": "flux-dynamic", "drift": "after:2", "cluster_round": 1},
        {"algorithm": "flux-dynamic", "drift": "after:2", "shift": "py", "cluster_round": 1},
        {"algorithm": "apfl", "participation": 0.5},
        {"algorithm": "local", "participation": 0.5, "rounds": 4},
        {"algorithm": "fedavg", "finetune": 2, "server_momentum": 0.5},
        {"algorithm": "fedavg", "scale": "standardise"},
        {"optimiser": "adam", "schedule": "cosine", "cluster_round": 1, "finetune": 2},
        {"algorithm": "fedem", "optimiser": "adamw", "weight_decay": 0.1, "schedule": "cosine", "rounds": 2},
        {"algorithm": "apfl", "optimiser": "adam", "weight_decay": 0.1, "schedule": "cosine"},
    ],
    ids=lambda variant: "-".join(f"{value}" for value in variant.values()),
)
def test_flux_and_others_are_the_same_in_many_settings(variant: dict[str, Any]) -> None:
    settings = {**SHORT, **variant}
    check_same(played(range(6), **settings).result, simulated(**settings))


def test_exchanges_are_few() -> None:
    """A round is training and scoring; meeting everyone is one more, clustering two, and a ballot one."""
    found = played(cluster_round=2, rounds=4, projector="discriminant").result
    assert found["exchanges"]["1"] == 3
    assert found["exchanges"]["2"] == 2 + 3
    assert found["exchanges"]["3"] == 2  # both branches begin from one model: nothing to vote on yet
    assert found["exchanges"]["4"] == 3
    alone = played(cluster_round=2, rounds=4, sharing="none").result
    assert alone["exchanges"]["3"] == alone["exchanges"]["4"] == 2
    assert played(cluster_round=1, rounds=1).result["exchanges"]["1"] == 3 + 2


def test_bounds_travel_and_the_projector_is_derived() -> None:
    sent: list[set[str]] = []

    def look(message: Any, context: Any) -> None:
        if message.metadata.message_type == "query.ask":
            sent.append(set(message.content["arrays"]) if "arrays" in message.content else set())
            assert set(message.content) <= {"ask", "arrays"}  # the model is named, not sent again

    play(watched(make_grid(range(4), {"clients": 4}), look), clients=4, min_nodes=4, rounds=1, cluster_round=1)
    names = set().union(*sent)
    assert any("bounds.low" in name for name in names)
    assert not any("projector" in name or "components" in name for name in names)


def test_several_predictors_share_their_models_on_the_wire() -> None:
    """Six shares of the general model are weighed on two models; what is held from before is named."""
    sent: list[int] = []

    def look(message: Any, context: Any) -> None:
        outline = message.content["ask"]["outline"]
        if message.metadata.message_type == "evaluate" and outline.count('"weights"') == 6:
            sent.append(len(message.content) - 1)

    config = {"clients": 4, "rounds": 3, "cluster_round": 1, "answer": "both"}
    play(watched(make_grid(range(4), config), look), min_nodes=4, **config)
    assert (
        sent == [0] * 4 + [1] * 4
    )  # after clustering both are the one that everyone has; later the general one is new


def test_a_restarted_node_is_sent_the_model_again() -> None:
    config = {"rounds": 2, "clients": 3, "algorithm": "fedavg"}
    grid = make_grid(range(3), config)

    def forget(message: Any, context: Any) -> None:
        if message.metadata.message_type == "train" and round_of(message) == 2 and "lost" not in context.run_config:
            context.state.clear()
            context.run_config["lost"] = True

    plain, again = played(range(3), **config), play(watched(grid, forget), min_nodes=3, **config)
    assert again.known == plain.known
    model = model_bytes(plain.result, plain.folder)
    assert plain.result["wire_down"]["2"] < 3 * 1.05 * model
    assert 2 * 3 * model < again.result["wire_down"]["2"] < 2 * 3 * 1.05 * model
    assert again.result["exchanges"]["2"] == 3


@pytest.mark.parametrize(("algorithm", "query"), [("pacfl", "subspace"), ("feroma", "unlabelled-descriptor")])
def test_unlabelled_nodes_are_asked_by_their_inputs_alone(tmp_path: Path, algorithm: str, query: str) -> None:
    """And answered by one model, which the node keeps: the nearest client's, or that of its cluster."""
    from fedflux.files import read_object

    config: dict[str, Any] = {"rounds": 3, "clients": 6, "algorithm": algorithm, "cluster_round": 1}
    config = {
        key: value for key, value in config.items() if key in ALGORITHMS[algorithm].reads or key != "cluster_round"
    }
    grid, asked = make_grid(range(6), config, unlabelled=(4,)), []
    grid.join(node_id(4), {"partition-id": 4, "labels": False, "model-dir": str(tmp_path)})

    def look(message: Any, context: Any) -> None:
        if message.metadata.message_type == "query.ask" and message.metadata.dst_node_id == node_id(4):
            asked.append(message.content["ask"]["outline"])

    play(watched(grid, look), min_nodes=5, **config)
    assert len(asked) == 1
    assert f'"name": "{query}"' in asked[0]
    told = read_object(tmp_path / "model.json")
    assert told is not None
    assert list(told["weights"].values()) == [1.0]


def test_unlabelled_nodes_get_the_models_that_the_core_gives_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from fedflux.files import read_object

    unlabelled = (2, 8)
    alone: dict[str, Any] = {"rounds": 6, "sharing": "none"}  # one model a cluster, so that weights are the posterior
    grid = make_grid(range(10), alone, unlabelled=unlabelled)
    for client in unlabelled:
        folder = str(tmp_path / str(client))
        grid.join(node_id(client), {"partition-id": client, "labels": False, "model-dir": folder})
    asked: set[tuple[int, str]] = set()
    watched(grid, lambda message, context: asked.add((message.metadata.dst_node_id, message.metadata.message_type)))
    found = play(grid, min_nodes=8, **alone)

    placed = {one["client"]: one for one in found.result["unlabelled"]}
    assert set(placed) == set(unlabelled)
    truth, assignment = found.result["truth"], found.assignment
    for client in unlabelled:
        kinds = {kind for node, kind in asked if node == node_id(client)}
        assert kinds == {"query.hello", "query.ask", "query.hand_out"}
        friends = [k for k in range(10) if truth[k] == truth[client] and k not in unlabelled]
        assert friends
        assert {assignment[k] for k in friends} == {placed[client]["cluster"]}
        assert assignment[client] == -1
        told = read_object(tmp_path / str(client) / "model.json")
        assert told is not None
        assert all(told[name] == value for name, value in placed[client].items())
        assert {"posterior", "confidence", "calibrated", "novel"} <= told.keys()
        assert "distances" not in told
        used = [m for m, share in enumerate(told["posterior"]) if share]
        assert list(told["weights"].values()) == [told["posterior"][m] for m in used]
        for name, m in zip(told["weights"], used, strict=True):
            held = load_file(tmp_path / str(client) / name)
            assert all((tensor == found.models[key][m]).all() for key, tensor in held.items())


def held_out(node_config: Any, run_config: Any) -> NodeData:
    """Client `partition-id` of eight that train and two that `--unseen 2` holds out."""
    told = {key: value for key, value in run_config.items() if key in ("shift", "level", "seed", "patterns")}
    dealt = populate(load("digits", None), Partition(**told, clients=8, unseen=2))
    return NodeData(dealt.everyone.blind(), int(node_config["partition-id"]))


@pytest.mark.parametrize("shift", ["px", "pxgy"])
def test_unlabelled_nodes_are_placed_like_held_out_clients_and_tell_only_their_choice(shift: str) -> None:
    settings: dict[str, Any] = {"shift": shift, "patterns": "shared", "rounds": 3, "cluster_round": 2, "clients": 8}
    left: dict[int, list[dict[str, tuple[int, ...]]]] = {8: [], 9: []}

    def look(message: Any, reply: Any) -> Any:
        """What leaves the node besides its introduction: every record, and every array by name and shape."""
        client = (1000 - message.metadata.dst_node_id) // 7
        if message.metadata.message_type != "query.hello":
            assert set(reply.content) == {"about", "answer"}
            assert set(reply.content["about"]) == {"base"}  # which question it answers
            left[client].append({name: array.shape for name, array in unpack(reply.content["answer"]).items()})
        return reply

    data = {"data": "tests.deploy.test_same_as_local:held_out"}
    grid = make_grid(range(10), {**settings, **data}, dict.fromkeys(left, look), unlabelled=left)
    deployed = play(grid, **settings, **data, min_nodes=8, expected_nodes=8).result
    local = simulated(**settings, unseen=2)
    assert [one["client"] for one in deployed["unlabelled"]] == [8, 9]
    assert deployed["unlabelled"] == local["unseen_placements"]
    assert deployed["test_placements"] == local["test_placements"]
    clusters = local["clusters_found"]
    assert left == {client: [{"posterior": (clusters,), "score": ()}] for client in (8, 9)}


def test_clusters_are_found_anew_when_many_have_come() -> None:
    """Six clients are clustered after round 2, three more come while round 3 is trained."""
    late = (6, 7, 8)
    grid = make_grid(range(6), {"rounds": 5})

    def join(message: Any, context: Any) -> None:
        if message.metadata.message_type == "train" and round_of(message) == 3:
            for client in late:
                if node_id(client) not in grid.get_node_ids():
                    grid.join(node_id(client), {"partition-id": client})

    found = play(watched(grid, join), rounds=5, cluster_round=2, min_nodes=6)
    truth = found.result["truth"]
    pairs = [(a, b) for a in range(9) for b in range(a)]
    assert [found.assignment[a] == found.assignment[b] for a, b in pairs] == [truth[a] == truth[b] for a, b in pairs]
    assert found.result["exchanges"]["4"] == 5  # hello and descriptors of the three, a ballot, training, scoring
