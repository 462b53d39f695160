"""Over Flower's messages the federation is the one that the local engine runs: clusters, accuracies, bytes."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from tests.deploy.staging import make_grid, node_id, play

from fedflux.algorithms import Flux, Settings
from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.deploy.flower.strategy import FluxStrategy
from fedflux.engine import LoopEngine, Training, one_thread
from fedflux.models import build_model
from fedflux.runs.config import make_config
from fedflux.runs.runner import run_config

EVERYONE = range(10)


@pytest.fixture(scope="module")
def over_flower() -> FluxStrategy:
    return play(make_grid(EVERYONE, {}), min_nodes=10)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    options = {"dataset": "digits", "shift": "px", "level": 4, "clients": 10, "seed": 42, "engine": "loop"}
    return run_config(make_config({**options, "out": str(tmp_path_factory.mktemp("local") / "run"), "store": "none"}))


def test_the_clusters_are_the_same(over_flower: FluxStrategy, local) -> None:
    assert [over_flower.state.cluster(client) for client in EVERYONE] == local["assignment"]
    assert len(set(local["assignment"])) > 1
    assert over_flower.state.cluster_round == local["cluster_round"]


def test_the_accuracies_are_the_same(over_flower: FluxStrategy, local) -> None:
    scores = [100 * over_flower.known[client] for client in EVERYONE]
    np.testing.assert_allclose(scores, local["known_per_client"], atol=1e-9)


def test_the_bytes_are_those_of_the_local_count_within_framing(over_flower: FluxStrategy, local) -> None:
    traffic, rounds = over_flower.exchange.traffic, local["rounds"]
    up = sum(sum(one.up.values()) for one in traffic.values())
    down = sum(sum(one.down.values()) for one in traffic.values())
    model = over_flower.state.models.model_bytes()
    # the model that scores a round is the next one's start, so only the last round's is one more than the local count
    assert local["bytes_up"] < up < 1.01 * local["bytes_up"]
    assert local["bytes_down"] + 10 * model < down < 1.01 * (local["bytes_down"] + 10 * model)
    quiet = [r for r in range(2, rounds + 1) if r != local["cluster_round"]]
    for r in quiet:
        assert 10 * model < sum(traffic[r].up.values()) < 1.01 * 10 * model
        assert 10 * model < sum(traffic[r].down.values()) < 1.01 * 10 * model


def test_descriptors_cost_what_the_local_engine_counts(over_flower: FluxStrategy) -> None:
    traffic = over_flower.exchange.traffic[over_flower.state.cluster_round or 0]
    sent = over_flower.state.descriptors
    assert sent is not None
    content = sum(array[0].nbytes for name, array in sent.items() if name != "schema")
    headers = 10 * len(sent) * 160 + 10 * 200  # numpy's header and the name of each block, and what is said beside
    assert 10 * content < traffic.up["query.descriptor"] < 10 * content + headers
    assert traffic.down["query.bounds"] < 10 * 100  # the model is named, not sent again


def test_a_restarted_node_is_sent_the_model_again() -> None:
    config = {"rounds": 2, "clients": 3}
    grid = make_grid(range(3), config)
    plain = play(make_grid(range(3), config), **config)

    def forgetful(message, context):
        if message.metadata.message_type == "train" and message.content["ask"]["round"] == 2:
            context.state.clear()
        return original(message, context)

    original, grid._app = grid._app, forgetful
    again = play(grid, **config)
    assert again.known == plain.known
    model = plain.state.models.model_bytes()
    assert plain.exchange.traffic[2].down["train"] < model
    assert 3 * model < again.exchange.traffic[2].down["train"] < 3.1 * model


def federation() -> Federation:
    told = Partition(shift="px", level=4, clients=10, seed=42)
    return partition(load("digits", None), told)


def test_unlabelled_nodes_get_the_model_and_distance_that_the_core_gives_them(tmp_path) -> None:
    unlabelled, config = {2, 8}, {"rounds": 6}
    grid = make_grid(EVERYONE, config, unlabelled=unlabelled)
    for client in unlabelled:
        grid.join(node_id(client), {"partition-id": client, "labels": False, "model-dir": str(tmp_path / str(client))})
    found = play(grid, min_nodes=8, **config)

    clients = federation()
    blind = clients.blind()
    algorithm = Flux(Settings(rounds=6, training=Training(2, 16, 0.05, 0.9), seed=42))
    engine = LoopEngine(build_model("mlp", clients.image_shape, 10, 42), "cpu", "fp32", clients.dataset.pixels)
    labelled = [client for client in EVERYONE if client not in unlabelled]
    with one_thread():
        state = algorithm.init(blind, engine)
        for r in range(1, 7):
            state, _ = algorithm.round(state, blind.cohort(labelled, r), engine)
        wanted = algorithm.unseen(state, blind.cohort(sorted(unlabelled)).features("test"), engine)
    assert state.clusters is not None
    assert [found.state.cluster(client) for client in labelled] == state.assignment[labelled].tolist()
    assert wanted.distances is not None
    for row, client in enumerate(sorted(unlabelled)):
        placement = found.placements[client]
        assert placement.taken
        assert placement.cluster == wanted.weights[row].argmax()
        np.testing.assert_allclose(placement.distances, wanted.distances[row], rtol=1e-6)
        assert (tmp_path / str(client) / "model.safetensors").exists()
    truth = clients.truth
    assert truth is not None
    friends = {client: [other for other in labelled if truth[other] == truth[client]] for client in unlabelled}
    assert all(friends.values())
    for client, others in friends.items():
        assert {found.state.cluster(other) for other in others} == {found.placements[client].cluster}


def test_clusters_are_found_anew_as_in_the_core_when_many_have_come() -> None:
    """Six clients are clustered after round 2, three more come while round 3 is trained."""
    early, late = [0, 1, 2, 3, 4, 5], [6, 7, 8]
    grid = make_grid(early, {"rounds": 5})
    original = grid._app

    def watched(message, context):
        if message.metadata.message_type == "train" and message.content["ask"]["round"] == 3:
            for client in late:
                if node_id(client) not in grid.get_node_ids():
                    grid.join(node_id(client), {"partition-id": client})
        return original(message, context)

    grid._app = watched
    found = play(grid, rounds=5, cluster_round=2, min_nodes=6)

    blind = federation().blind()
    algorithm = Flux(Settings(rounds=5, training=Training(2, 16, 0.05, 0.9), seed=42, cluster_round=2))
    engine = LoopEngine(build_model("mlp", blind.image_shape, 10, 42), "cpu", "fp32", blind.dataset.pixels)
    with one_thread():
        state = algorithm.init(blind, engine)
        for r in range(1, 6):
            state, _ = algorithm.round(state, blind.cohort(early if r <= 3 else early + late, r), engine)
    assert state.clustered == found.state.clustered == 9
    assert [found.state.cluster(client) for client in early + late] == state.assignment[early + late].tolist()
    for name, tensor in state.models.tensors.items():
        assert (tensor == found.state.models.tensors[name]).all()


def test_unlabelled_nodes_never_train() -> None:
    asked = []
    grid = make_grid(range(4), {"clients": 4, "rounds": 3}, unlabelled={3})
    original = grid._app

    def watched(message, context):
        asked.append((context.node_config["partition-id"], message.metadata.message_type))
        return original(message, context)

    grid._app = watched
    found = play(grid, clients=4, rounds=3, cluster_round=1)
    assert {kind for client, kind in asked if client == 3} == {"query.hello", "query.assign"}
    assert (0, "train") in asked
    assert 3 in found.placements
    assert "3" not in found.state.assignment
