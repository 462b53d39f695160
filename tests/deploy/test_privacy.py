"""A private run: noise is made at the node, which counts what it spends and charges a release once."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from filelock import FileLock, Timeout

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedflux[flower]'")
pytest.importorskip("opendp", reason="needs OpenDP: pip install 'fedflux[privacy]'")

from tests.deploy.staging import Played, make_grid, node_id, play

from fedflux.deploy.flower.records import unpack
from fedflux.deploy.node import NodeData
from fedflux.deploy.node.answering import LocalNode
from fedflux.deploy.node.memory import OnDisk
from fedflux.deploy.node.requests import Ask, Asked, Sent, Train
from fedflux.descriptors.inputs import AskOctaves, AskSpread, AskSums
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.engine import Job, Key, Training
from fedflux.errors import FedfluxError
from fedflux.files import read_object

EPSILON = 200.0
PRIVATE: dict[str, Any] = {"clients": 4, "rounds": 2, "cluster_round": 2, "min_nodes": 4, "epsilon": EPSILON}


class PowerCutError(BaseException):
    """The server dies."""


class Log:
    """Every message that was sent, both ways."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.answers: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self.arrays: list[np.ndarray[Any, Any]] = []

    def watch(self, grid: Any, dies_after: int | None = None) -> Any:
        original = grid._app

        def answer(message: Any, context: Any) -> Any:
            outline = message.content["ask"]["outline"]
            reply = original(message, context)
            for content in (message.content, reply.content):
                for name, record in content.items():
                    if name not in ("ask", "about"):
                        self.arrays += [np.asarray(array) for array in unpack(record).values()]
            if message.metadata.message_type == "query.ask":
                name = outline.split('"query": {"name": "')[1].split('"')[0]
                who = (context.node_id, name)
                self.asked.append(who)
                if "answer" in reply.content:
                    self.answers.setdefault(who, []).append(unpack(reply.content["answer"]))
                if dies_after is not None and sum(one[1] == "descriptor" for one in self.asked) == dies_after:
                    raise PowerCutError
            return reply

        grid._app = answer
        return grid


def grid_of(folder: Path | None = None, **node: Any) -> Any:
    grid = make_grid(range(4), PRIVATE)
    for client in range(4):
        own = {} if folder is None else {"state-dir": str(folder / str(client))}
        grid.join(node_id(client), {"partition-id": client, **own, **node})
    return grid


def declined(found: Played) -> list[str]:
    """What nodes did not answer by their own decision; nothing else went wrong."""
    assert not any("failed in" in event for event in found.events)
    return [event.split(" declined ")[1] for event in found.events if " declined " in event]


@pytest.mark.parametrize(("assignment", "asked"), [("mixture", "placement"), ("calibrated", "unlabelled-descriptor")])
def test_no_exact_moment_leaves_a_node(assignment: str, asked: str, tmp_path: Path) -> None:
    """The same run without noise says what the exact moments are; no message of the private one holds any of them."""
    exact, private = Log(), Log()
    settings = {**PRIVATE, "assignment": assignment}
    with patch("fedflux.descriptors.privacy.accounting.gaussian_noise", lambda values, scale: values):
        play(exact.watch(grid_of(tmp_path / "exact")), **settings)
    found = play(private.watch(grid_of(tmp_path / "private")), **settings)
    assert {name for _, name in private.asked} == {"descriptor", asked}
    for client in range(4):
        for name in {"descriptor", asked} - {"placement"}:
            (noisy,) = private.answers[node_id(client), name]
            (secret,) = exact.answers[node_id(client), name]
            for block in ("mean", "spread", "validation_mean"):
                if block in secret:
                    assert noisy[block].shape == secret[block].shape
                    assert holds(exact, secret[block])
                    assert not holds(private, secret[block])
    assert EPSILON * (1 - 1e-3) < found.result["epsilon"] <= EPSILON + 1e-6
    choosing = "release no descriptor, only their choice" in found.result["privacy_scope"]
    assert choosing == (assignment == "mixture")


def holds(log: Log, secret: np.ndarray[Any, Any]) -> bool:
    """Whether some message holds these numbers, to three digits."""
    return any(array.shape == secret.shape and np.allclose(array, secret, rtol=1e-3, atol=0) for array in log.arrays)


@pytest.mark.parametrize(
    ("assignment", "charged"),
    [("mixture", [["train", "validation"]]), ("calibrated", [["test"], ["train", "validation"]])],
)
def test_a_resumed_run_gets_the_same_release_and_is_charged_once(
    assignment: str, charged: list[list[str]], tmp_path: Path
) -> None:
    """The server dies once everyone has described itself, before that is on disk. A choice is not charged."""
    first, second, settings = Log(), Log(), {**PRIVATE, "assignment": assignment}
    with pytest.raises(PowerCutError):
        play(first.watch(grid_of(tmp_path), dies_after=4), out=tmp_path / "run", **settings)
    found = play(second.watch(grid_of(tmp_path)), out=tmp_path / "run", resume=True, **settings)
    assert found.result["refused"] == {}
    for client in range(3):  # the fourth one's answer was on its way
        (before,), (after,) = (log.answers[node_id(client), "descriptor"] for log in (first, second))
        assert all((before[name] == after[name]).all() for name in before)
    for client in range(4):
        ledger = read_object(tmp_path / str(client) / "ledger.json")
        assert ledger is not None
        (account,) = ledger.values()
        assert account["epsilon"] == EPSILON
        assert sorted(account["releases"].values()) == charged


def test_a_node_refuses_to_spend_more_than_it_has(tmp_path: Path) -> None:
    found = play(grid_of(tmp_path / "poor", **{"max-epsilon": 10}), **PRIVATE)
    words = "ε would be 200 in all, and this node's max-epsilon is 10"
    assert f"descriptor: {words}" in declined(found)
    assert not (tmp_path / "poor" / "0" / "ledger.json").exists()

    rich = {"max-epsilon": 300.0}
    assert declined(play(grid_of(tmp_path / "rich", **rich), **PRIVATE)) == []
    again = play(grid_of(tmp_path / "rich", **rich), **{**PRIVATE, "lr": 0.02})
    assert "descriptor: ε would be 400 in all, and this node's max-epsilon is 300" in declined(again)


def test_a_node_with_a_budget_answers_nothing_exactly(tmp_path: Path) -> None:
    settings = {key: value for key, value in PRIVATE.items() if key != "epsilon"}
    found = play(grid_of(tmp_path, **{"max-epsilon": 1000}), **settings)
    assert "latent-bounds: this node has a max-epsilon: it answers 'latent-bounds' only with noise" in declined(found)
    homeless = play(grid_of(None, **{"max-epsilon": 1000}), **PRIVATE)
    assert any("max-epsilon needs a state-dir" in words for words in declined(homeless))


def test_an_unlabelled_node_with_a_budget_chooses_and_spends_nothing(tmp_path: Path) -> None:
    """Its choice leaves: a posterior and a score. Where it allows that not either, it is served like anybody."""
    private, settings = Log(), {**PRIVATE, "clients": 5, "min_nodes": 4}

    def grid(**node: Any) -> Any:
        made, folder = make_grid(range(4), settings), str(tmp_path / "own")
        made.join(node_id(4), {"partition-id": 4, "labels": False, "state-dir": folder, "max-epsilon": 0.1, **node})
        return made

    found = play(private.watch(grid()), **settings)
    assert declined(found) == []
    (placed,) = found.result["unlabelled"]
    assert (placed["client"], placed["calibrated"], placed["novel"]) == (4, False, False)
    assert private.asked.count((node_id(4), "placement")) == 1
    assert {name for node, name in private.asked if node == node_id(4)} == {"placement"}
    assert not (tmp_path / "own" / "ledger.json").exists()

    silent = play(grid(allow="unlabelled-descriptor"), **settings)
    words = "placement: this node does not allow 'placement': it allows unlabelled-descriptor"
    assert declined(silent) == [words]


def test_a_node_with_a_budget_tries_nothing_and_chooses_by_its_test_images_alone(tmp_path: Path) -> None:
    def ask(name: str, split: str, features: Any) -> Any:
        node = LocalNode({"max-epsilon": 100.0}, None, OnDisk(tmp_path), "flux")  # type: ignore[arg-type]
        query = SimpleNamespace(passes=lambda: [SimpleNamespace(split=split, labelled=False)])
        with patch.object(LocalNode, "_open", lambda *_: query), patch.object(LocalNode, "_asked", lambda *_: {}):
            return node.answer(Ask(ASKED, (), Sent(name, 1, {}, "{}"), features), {})

    assert ask("placement", "test", "test").arrays == {}
    for split, features in (("train", "train"), ("train", "test"), ("test", None)):
        with pytest.raises(FedfluxError, match="it chooses by the images of its test part alone"):
            ask("placement", split, features)
    with pytest.raises(FedfluxError, match="it answers 'placement-tries' only with noise"):
        ask("placement-tries", "validation", None)


def test_a_damaged_ledger_is_no_empty_ledger(tmp_path: Path) -> None:
    play(grid_of(tmp_path), **PRIVATE)
    for client in range(4):
        (tmp_path / str(client) / "ledger.json").write_text("{", encoding="utf-8")
    again = play(grid_of(tmp_path, **{"max-epsilon": 10_000}), **{**PRIVATE, "lr": 0.02})
    assert any("ledger.json is damaged" in words for words in declined(again))


def test_a_promise_is_for_so_many_releases_and_no_more(tmp_path: Path) -> None:
    from fedflux.deploy.node.ledger import Ledger

    ledger, privacy = Ledger(tmp_path, 5.0), Privacy("gaussian", 2.0, 1e-5, releases=2)
    for key in ("a", "b", "b"):
        ledger.charge("run", privacy, key, frozenset(("train", "validation")))
    ledger.charge("run", privacy, "c", frozenset(("test",)))
    with pytest.raises(FedfluxError, match="its train part was released 2 times, and ε is for 2"):
        ledger.charge("run", privacy, "d", frozenset(("train",)))
    ledger.charge("other run", privacy, "a", frozenset(("train",)))
    with pytest.raises(FedfluxError, match="ε would be 6 in all"):
        ledger.charge("third run", privacy, "a", frozenset(("train",)))
    with pytest.raises(FedfluxError, match=r"ε would be 5\.5 in all"):
        ledger.charge("run", Privacy("gaussian", 1.5, 1e-5, releases=9), "e", frozenset(("train",)))


def test_scaling_has_one_release_of_each_kind_and_a_share_of_one_budget(tmp_path: Path) -> None:
    from fedflux.deploy.node.ledger import Ledger

    ledger, privacy = Ledger(tmp_path, 3.0), Privacy("gaussian", 2.0, 1e-5, releases=2, scaling=True)
    for key, part in (("a", "scaling octaves"), ("b", "scaling sums"), ("c", "train"), ("d", "train")):
        ledger.charge("run", privacy, key, frozenset((part,)))
    with pytest.raises(FedfluxError, match="its scaling sums part was released 1 times, and ε is for 1"):
        ledger.charge("run", privacy, "another reach", frozenset(("scaling sums",)))
    with pytest.raises(FedfluxError, match="ε would be 4 in all"):
        ledger.charge("run", replace(privacy, scaling=False), "e", frozenset(("validation",)))


def test_a_node_with_a_budget_has_its_inputs_scaled_with_noise(tmp_path: Path) -> None:
    """Sums of a node that answers nothing exactly; asked again for the same, it gives the same."""
    records = np.random.default_rng(0).normal(50, 9, (90, 2)), np.arange(90) % 2
    data = NodeData.of(train=records, classes=2, client=0)
    node = LocalNode({"max-epsilon": 3.0, "state-dir": str(tmp_path)}, data, OnDisk(tmp_path), "flux")
    privacy = Privacy("gaussian", 2.0, 1e-5, scaling=True)

    def ask(query: Any) -> Any:
        return node.answer(Ask(ASKED, (), Sent.of(query)), {}).arrays

    with pytest.raises(FedfluxError, match="it answers 'input-spread' only with noise"):
        ask(AskSpread(2))
    first, again = (ask(AskOctaves(2, privacy))["sums"] for _ in range(2))
    assert (first == again).all()
    assert ask(AskSums(2, privacy, np.array([64.0, 64.0])))["sums"].shape == (2, 2)
    with pytest.raises(FedfluxError, match="its scaling sums part was released 1 times"):
        ask(AskSums(2, privacy, np.array([50.0, 64.0])))


def test_private_runs_need_no_folder() -> None:
    assert play(grid_of(), **PRIVATE).result["refused"] == {}


GAUSSIAN = Privacy("gaussian", 2.0, 1e-5)
ASKED = Asked("run", "mlp", 0, 1)


class Counting(LocalNode):
    """Its n-th release is n; the query is a promise, and nothing else."""

    def _open(self, sent: Any) -> Any:
        return SimpleNamespace(privacy=self.config["promise"], passes=lambda: [SimpleNamespace(split="train")])

    def _asked(self, request: Ask, query: Any) -> Any:
        with pytest.raises(Timeout):
            FileLock(Path(str(self.config["state-dir"])) / "ledger.lock").acquire(timeout=0)
        return {"n": np.array([next(self.config["numbers"])])}


def counting(folder: Path, promise: Privacy = GAUSSIAN, config: Any = None, drifts: bool = False) -> Any:
    """Ask a node, which answers with the number of the release."""
    federation: Any = SimpleNamespace(at=lambda _: object() if drifts else federation)
    own = {"promise": promise, "numbers": count(), "state-dir": str(folder), **(config or {})}
    node = Counting(own, SimpleNamespace(federation=federation), OnDisk(folder), "flux")  # type: ignore[arg-type]

    def ask(asked: Asked) -> int:
        return int(node.answer(Ask(asked, (), Sent("descriptor", 1, {}, "{}")), {}).arrays["n"][0])

    return ask


def test_a_node_with_a_budget_trusts_no_noise_that_the_server_scales(tmp_path: Path) -> None:
    paper = Privacy("paper", 2.0, 1e-5)
    with pytest.raises(FedfluxError, match="its noise is gaussian, not 'paper'"):
        counting(tmp_path, paper, {"max-epsilon": 100.0})(ASKED)
    assert counting(tmp_path, paper)(ASKED) == 0


def test_a_node_with_a_budget_refuses_a_larger_delta(tmp_path: Path) -> None:
    loose = replace(GAUSSIAN, delta=0.5)
    with pytest.raises(FedfluxError, match=r"δ would be 0\.5, and this node's max-delta is 1e-05"):
        counting(tmp_path, loose, {"max-epsilon": 100.0})(ASKED)
    with pytest.raises(FedfluxError, match=r"δ would be 0\.5, and this node's max-delta is 0\.1"):
        counting(tmp_path, loose, {"max-delta": 0.1})(ASKED)
    assert counting(tmp_path, loose, {"max-epsilon": 100.0, "max-delta": 0.5})(ASKED) == 0


def test_a_node_with_a_budget_prepares_no_training(tmp_path: Path) -> None:
    node = LocalNode({"max-epsilon": 100.0}, None, OnDisk(tmp_path), "flux")  # type: ignore[arg-type]
    preparation = Sent("sums", 1, {}, "{}")
    request = Train(ASKED, (), (Job(0, (0,)),), Training(1, 8, 0.1, 0.0), Key(1, 1), preparation=preparation)
    with pytest.raises(FedfluxError, match="it does not prepare 'sums', which tells exact sums"):
        node.answer(request, {})


def test_the_same_question_gets_the_same_release_in_any_round(tmp_path: Path) -> None:
    ask = counting(tmp_path / "lost")
    assert ask(ASKED) == ask(replace(ASKED, round=2)) == 0
    drifting = counting(tmp_path / "drifting", drifts=True)
    assert drifting(ASKED) == drifting(ASKED) == 0
    with pytest.raises(FedfluxError, match="was released 1 times"):
        drifting(replace(ASKED, round=2))
    often = counting(tmp_path / "often", replace(GAUSSIAN, releases=2))
    assert [often(ASKED), often(ASKED), often(replace(ASKED, round=2))] == [0, 0, 1]


def test_a_release_is_of_one_part_of_the_data(tmp_path: Path) -> None:
    ask = counting(tmp_path, replace(GAUSSIAN, releases=3))
    assert [ask(ASKED), ask(replace(ASKED, part=(0, 1, 2))), ask(replace(ASKED, most=5))] == [0, 1, 2]
