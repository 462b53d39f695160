"""What a bad node sends is refused by name and leaves no trace in the others' result."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from tests.deploy.staging import (
    Played,
    Tamper,
    make_grid,
    node_id,
    play,
    played,
    same_models,
)

from fedflux.deploy.flower.checks import FaultError, scores_of
from fedflux.deploy.flower.records import pack, unpack

BAD = 5
METHODS = ("flux", "fedavg", "ifca")
CONFIG: dict[str, Any] = {"clients": 6, "rounds": 3, "cluster_round": 2, "clusters": 3}


def settings(algorithm: str) -> dict[str, Any]:
    unread = {"flux": ("clusters",), "fedavg": ("clusters", "cluster_round"), "ifca": ("cluster_round",)}[algorithm]
    return {"algorithm": algorithm, **{key: value for key, value in CONFIG.items() if key not in unread}}


@cache
def without(algorithm: str = "flux") -> Played:
    return played(range(BAD), **settings(algorithm))


def with_bad(tamper: Tamper, algorithm: str = "flux", **config: Any) -> Played:
    told = {"min_nodes": 6, **settings(algorithm), **config}
    return play(make_grid(range(6), told, {BAD: tamper}), **told)


def changed(kind: str, change: Callable[[RecordDict], None], asks: str = "") -> Tamper:
    """Replies to one kind of question, changed in place; `asks` names the query."""

    def tamper(message: Any, reply: Any) -> Any:
        named = f'"name": "{asks}"' in message.content["ask"]["outline"]
        if message.metadata.message_type != kind or (asks and not named):
            return reply
        content = RecordDict(dict(reply.content.items()))
        change(content)
        return Message(content, reply_to=message)

    return tamper


def arrays_changed(record: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[RecordDict], None]:
    def in_record(content: RecordDict) -> None:
        if record in content:
            content[record] = pack(change(dict(unpack(content[record]))))

    return in_record


def nan(arrays: dict[str, Any]) -> dict[str, Any]:
    first = next(name for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating))
    spoilt = arrays[first].copy()
    spoilt.flat[0] = np.nan
    return {**arrays, first: spoilt}


def longer(arrays: dict[str, Any]) -> dict[str, Any]:
    first = next(name for name, array in arrays.items() if array.ndim)
    return {**arrays, first: np.concatenate([arrays[first], arrays[first]])}


def told(**changes: Any) -> Callable[[RecordDict], None]:
    """Other plain values."""

    def in_about(content: RecordDict) -> None:
        content["about"] = ConfigRecord({**dict(content["about"]), **changes})

    return in_about


def without_models(content: RecordDict) -> None:
    for name in [name for name in content if name.startswith("models/")]:
        del content[name]


def huge(arrays: dict[str, Any]) -> dict[str, Any]:
    """A value that claims to be everywhere in more numbers than any memory holds."""
    name, array = next(iter(arrays.items()))
    rest = {key: value for key, value in arrays.items() if key != name}
    return {**rest, f"{name}@99999999x99999999": array.ravel()[:1]}


UPDATES: dict[str, tuple[Tamper, str]] = {
    "NaN": (changed("train", arrays_changed("models/0", nan)), "NaN"),
    "wrong shape": (changed("train", arrays_changed("models/0", longer)), "wrong shape"),
    "wrong type": (
        changed("train", arrays_changed("models/0", lambda a: {k: v.astype(np.float64) for k, v in a.items()})),
        "wrong type",
    ),
    "other names": (
        changed("train", arrays_changed("models/0", lambda a: {f"x{k}": v for k, v in a.items()})),
        "another model",
    ),
    "a memory bomb": (changed("train", arrays_changed("models/0", huge)), "wrong shape"),
    "other start": (changed("train", told(base="0" * 32)), "version 00000000"),
    "false count": (changed("train", told(examples=10**6)), "but said"),
    "nothing": (changed("train", without_models), "holds 0 models"),
    "a model that nobody sent": (changed("train", told(same=["f" * 32])), "models"),
    "no text": (changed("train", lambda content: content.__delitem__("about")), "version"),
}


def check_others_are_untouched(found: Played, reason: str, algorithm: str = "flux") -> None:
    plain = without(algorithm)
    assert reason in found.result["refused"][str(BAD)]
    assert any(f"refused client {BAD} (node {node_id(BAD)})" in event for event in found.events)
    assert {k: v for k, v in found.known.items() if k != BAD} == plain.known
    assert BAD not in found.known
    assert found.assignment[:BAD] == plain.assignment
    assert same_models(found, plain)


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("fault", list(UPDATES))
def test_a_bad_update_is_refused_and_the_others_are_untouched(fault: str, algorithm: str) -> None:
    tamper, reason = UPDATES[fault]
    check_others_are_untouched(with_bad(tamper, algorithm), reason, algorithm)


def fails_in_training(tamper: Tamper) -> Tamper:
    """A node that never gets through training, so that it could matter by its answers alone."""

    def both(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "train":
            raise RuntimeError("out of memory")
        return tamper(message, reply)

    return both


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("value", [float("nan"), 1.5, -0.1])
def test_a_bad_accuracy_is_refused(value: float, algorithm: str) -> None:
    """What it trained before it lied was good and stays; where it gave no update, nothing of it is left."""
    lie = arrays_changed("answer", lambda arrays: {"score": np.full_like(arrays["score"], value)})
    found = with_bad(changed("evaluate", lie), algorithm)
    assert "outside 0 to 1" in found.result["refused"][str(BAD)]
    assert BAD not in found.known
    alone = with_bad(fails_in_training(changed("evaluate", lie)), algorithm)
    check_others_are_untouched(alone, "outside 0 to 1", algorithm)


@pytest.mark.parametrize(
    ("score", "right"),
    [([0.5, 0.25], True), ([np.nan, np.nan], True), ([0.5, np.nan], False), ([0.5, 1.5], False), ([0.5], False)],
)
def test_labels_that_are_all_alike_give_no_predictor_a_score(score: list[float], right: bool) -> None:
    """Of several labels; whoever scores one predictor can score the others."""
    content = {"answer": pack({"score": np.array(score)})}
    if right:
        np.testing.assert_array_equal(scores_of(content, 2, empty=False, several=True), score)
    else:
        with pytest.raises(FaultError, match="outside 0 to 1"):
            scores_of(content, 2, empty=False, several=True)


def answers(query: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tamper:
    return changed("query.ask", arrays_changed("answer", change), query)


QUERIES: dict[str, tuple[str, Tamper, str]] = {
    "NaN bounds": ("flux", answers("latent-bounds", nan), "NaN"),
    "bounds of another latent": ("flux", answers("latent-bounds", longer), "wrong shape"),
    "bounds upside down": (
        "flux",
        answers("latent-bounds", lambda a: {"low": a["high"] + 1, "high": a["low"]}),
        "upside down",
    ),
    "huge bounds": (
        "flux",
        answers("latent-bounds", lambda a: {"low": a["low"] - 1e6, "high": a["high"] + 1e6}),
        "where the median",
    ),
    "no bounds": ("flux", changed("query.ask", lambda c: c.__delitem__("answer"), "latent-bounds"), "lack low"),
    "NaN descriptor": ("flux", answers("descriptor", nan), "NaN"),
    "descriptor of a wrong shape": ("flux", answers("descriptor", longer), "do not fit together"),
    "descriptor far outside": (
        "flux",
        answers("descriptor", lambda a: {**a, "mean": (a["mean"] + 1e4).astype(np.float32)}),
        "far outside the bounds",
    ),
    "descriptor of a wrong type": (
        "flux",
        answers("descriptor", lambda a: {**a, "mean": a["mean"].astype(np.float64)}),
        "wrong type",
    ),
    "descriptor of other data": (
        "flux",
        answers("descriptor", lambda a: {**a, "count": a["count"] + np.uint32(1)}),
        "but said",
    ),
    "descriptor under other bounds": (
        "flux",
        changed("query.ask", told(base="f" * 32), "descriptor"),
        "version ffffffff",
    ),
    "NaN losses": ("ifca", answers("mean-losses", nan), "NaN"),
    "losses of fewer models": ("ifca", answers("mean-losses", lambda a: {"mean": a["mean"][:-1]}), "wrong shape"),
    "losses below zero": ("ifca", answers("mean-losses", lambda a: {"mean": -a["mean"]}), "below zero"),
}


@pytest.mark.parametrize("fault", list(QUERIES))
def test_a_bad_answer_is_refused_and_the_others_are_untouched(fault: str) -> None:
    """Its bounds leave no trace either: they are merged anew without it."""
    algorithm, tamper, reason = QUERIES[fault]
    found = with_bad(fails_in_training(tamper), algorithm)
    check_others_are_untouched(found, reason, algorithm)
    if algorithm == "flux":
        assert f"client {BAD} (node {node_id(BAD)}) failed in train: RuntimeError: out of memory" in found.events
