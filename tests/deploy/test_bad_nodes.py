"""What a bad node sends is refused by name and leaves no trace in the others' result."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from tests.deploy.staging import Tamper, make_grid, node_id, play

from fedflux.deploy.flower.records import pack, unpack
from fedflux.deploy.flower.strategy import FluxStrategy

BAD = 9
CONFIG: dict[str, Any] = {"rounds": 4, "cluster_round": 2}


@cache
def without() -> FluxStrategy:
    return play(make_grid(range(BAD), {}), min_nodes=9, **CONFIG)


def with_bad(tamper: Tamper, **config: Any) -> FluxStrategy:
    return play(make_grid(range(10), {}, {BAD: tamper}), **{"min_nodes": 10, **CONFIG, **config})


def changed(kind: str, change: Callable[[RecordDict], None]) -> Tamper:
    """Replies to one kind of question, changed in place."""

    def tamper(message: Any, reply: Any) -> Any:
        if message.metadata.message_type != kind:
            return reply
        content = RecordDict(dict(reply.content.items()))
        change(content)
        return Message(content, reply_to=message)

    return tamper


def arrays_changed(kind: str, record: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tamper:
    def in_record(content: RecordDict) -> None:
        content[record] = pack(change(dict(unpack(content[record]))))

    return changed(kind, in_record)


def nan(arrays: dict[str, Any]) -> dict[str, Any]:
    first = next(name for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating))
    spoilt = arrays[first].copy()
    spoilt.flat[0] = np.nan
    return {**arrays, first: spoilt}


def longer(arrays: dict[str, Any]) -> dict[str, Any]:
    first = next(name for name, array in arrays.items() if array.ndim)
    return {**arrays, first: np.concatenate([arrays[first], arrays[first]])}


def far(arrays: dict[str, Any]) -> dict[str, Any]:
    return {**arrays, "mean": (arrays["mean"] + 1e4).astype(np.float32)}


def other_base(content: RecordDict) -> None:
    content["about"] = ConfigRecord({**dict(content["about"]), "base": "0" * 32})


def boast(content: RecordDict) -> None:
    content["metrics"] = MetricRecord({"num-examples": 10**6})


def no_arrays(content: RecordDict) -> None:
    del content["model"]


def nan_accuracy(content: RecordDict) -> None:
    content["metrics"] = MetricRecord({"accuracy": float("nan"), "num-examples": 1})


UPDATES: dict[str, tuple[Tamper, str]] = {
    "NaN": (arrays_changed("train", "model", nan), "NaN"),
    "wrong shape": (arrays_changed("train", "model", longer), "wrong shape"),
    "other names": (arrays_changed("train", "model", lambda a: {f"x{k}": v for k, v in a.items()}), "another model"),
    "other start": (changed("train", other_base), "version 00000000"),
    "false count": (changed("train", boast), "but said"),
    "nothing": (changed("train", no_arrays), "holds no model"),
}


def check_others_are_untouched(found: FluxStrategy, reason: str) -> None:
    plain = without()
    assert reason in found.roster.refused[BAD]
    assert any(f"refused client {BAD} (node {node_id(BAD)})" in event for event in found.events)
    assert {k: v for k, v in found.known.items() if k != BAD} == plain.known
    assert found.state.assignment == plain.state.assignment
    assert found.state.bounds_version == plain.state.bounds_version
    for name, tensor in plain.state.models.tensors.items():
        assert (tensor == found.state.models.tensors[name]).all()


@pytest.mark.parametrize("fault", list(UPDATES))
def test_a_bad_update_is_refused_and_the_others_are_untouched(fault: str) -> None:
    tamper, reason = UPDATES[fault]
    check_others_are_untouched(with_bad(tamper), reason)


def test_a_bad_accuracy_is_refused() -> None:
    found = with_bad(changed("evaluate", nan_accuracy))
    assert "outside 0 to 1" in found.roster.refused[BAD]
    assert BAD not in found.validation[1]


def fails_in_training(tamper: Tamper) -> Tamper:
    """A node that never gets through training, so that it could matter by its descriptor alone."""

    def both(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "train":
            raise RuntimeError("out of memory")
        return tamper(message, reply)

    return both


DESCRIPTORS: dict[str, tuple[Tamper, str]] = {
    "NaN bounds": (arrays_changed("query.bounds", "bounds", nan), "NaN"),
    "bounds of another latent": (arrays_changed("query.bounds", "bounds", longer), "wrong shape"),
    "huge bounds": (
        arrays_changed("query.bounds", "bounds", lambda a: {"low": a["low"] - 1e6, "high": a["high"] + 1e6}),
        "where the median",
    ),
    "NaN descriptor": (arrays_changed("query.descriptor", "descriptor", nan), "NaN"),
    "wrong shape": (arrays_changed("query.descriptor", "descriptor", longer), "do not fit together"),
    "far outside": (arrays_changed("query.descriptor", "descriptor", far), "far outside the bounds"),
    "other bounds": (
        changed("query.descriptor", lambda c: c["about"].__setitem__("bounds-version", "f" * 32)),
        "version ffffffff",
    ),
}


@pytest.mark.parametrize("fault", list(DESCRIPTORS))
def test_a_bad_descriptor_is_refused_and_the_others_are_untouched(fault: str) -> None:
    """Its bounds leave no trace either: they are merged anew without it."""
    tamper, reason = DESCRIPTORS[fault]
    found = with_bad(fails_in_training(tamper))
    check_others_are_untouched(found, reason)
    assert f"client {BAD} (node {node_id(BAD)}) failed in train: RuntimeError: out of memory" in found.events


def test_a_late_node_with_a_bad_descriptor_never_trains() -> None:
    grid = make_grid(range(BAD), {}, {BAD: DESCRIPTORS["far outside"][0]})
    joins_in_round(grid, 3, BAD)
    check_others_are_untouched(play(grid, min_nodes=9, **CONFIG), "far outside the bounds")


def joins_in_round(grid: Any, round: int, client: int) -> None:
    """The client connects while others train."""
    original = grid._app

    def watched(message: Any, context: Any) -> Any:
        due = message.metadata.message_type == "train" and message.content["ask"]["round"] == round
        if due and node_id(client) not in grid.get_node_ids():
            grid.join(node_id(client), {"partition-id": client})
        return original(message, context)

    grid._app = watched


def test_a_late_node_is_placed_with_its_like() -> None:
    """Client 8 and client 0 hold data of one distribution."""
    everyone = play(make_grid(range(10), {}), min_nodes=10, **CONFIG)
    assert everyone.state.cluster(8) == everyone.state.cluster(0)
    grid = make_grid([k for k in range(10) if k != 8], {})
    joins_in_round(grid, 3, 8)
    found = play(grid, min_nodes=9, **CONFIG)
    assert found.state.cluster(8) == found.state.cluster(0)
    assert 8 not in found.validation[3]
    assert 8 in found.validation[4]
    assert 8 in found.known


def test_a_node_that_fails_does_not_stop_the_round() -> None:
    found = with_bad(fails_in_training(lambda message, reply: reply))
    assert BAD not in found.roster.refused
    assert set(found.known) == set(range(10))


def test_a_second_node_cannot_be_the_same_client() -> None:
    grid = make_grid(range(3), {"clients": 3})
    grid.join(1, {"partition-id": 0})
    found = play(grid, clients=3, rounds=1)
    assert any("is client 0 already" in event for event in found.events)
    assert set(found.known) == {0, 1, 2}


@pytest.mark.parametrize(
    "change",
    [
        {"image-shape": [3, 9, 9]},
        {"classes": 7},
        {"examples": 0},
        {"examples": 10**9},
        {"labels": "yes"},
        {"client": "nobody"},
    ],
)
def test_a_node_that_introduces_itself_badly_is_turned_away(change: dict[str, Any]) -> None:
    """Its id comes first, and yet it is the others that say what the federation holds."""

    def lie(content: RecordDict) -> None:
        content["about"] = ConfigRecord({**dict(content["about"]), **change})

    found = with_bad(changed("query.hello", lie), min_nodes=9, max_examples=10**6)
    assert set(found.known) == set(range(BAD))
    assert any(event.startswith("refused") and f"node {node_id(BAD)}" in event for event in found.events)


@pytest.mark.parametrize("aggregation", ["krum", "trimmed-mean"])
def test_robust_aggregation_outvotes_a_liar_within_its_cluster(aggregation: str) -> None:
    """Five clients of one distribution, one of which sends finite nonsense."""
    config = {"clients": 5, "shift": "none", "rounds": 3, "cluster_round": 3, "min_nodes": 5, "trim": 0.2}
    nonsense = arrays_changed("train", "model", lambda a: {k: np.full_like(v, 50) for k, v in a.items()})
    scores = {}
    for how in ("mean", aggregation):
        grid = make_grid(range(5), {"clients": 5, "shift": "none"}, {4: nonsense})
        found = play(grid, aggregation=how, **config)
        scores[how] = np.mean([found.known[client] for client in range(4)])
    assert scores["mean"] < 0.5 < 0.8 < scores[aggregation]


@pytest.mark.parametrize("aggregation", ["mean", "krum", "trimmed-mean"])
def test_buffers_keep_their_types_whatever_averages_them(aggregation: str) -> None:
    config = {"clients": 3, "model": "tests.deploy.staging:normalised", "shift": "none", "rounds": 2}
    found = play(make_grid(range(3), config), aggregation=aggregation, cluster_round=1, **config)
    tensors = found.state.models.tensors
    assert not tensors["features.2.num_batches_tracked"].is_floating_point()
    assert tensors["features.2.num_batches_tracked"].min() > 0
    assert tensors["features.2.running_var"].is_floating_point()
    assert min(found.known.values()) > 0.5
