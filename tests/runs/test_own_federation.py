"""Federations of people's own data, run: clients without labels, of the test alone, at any scale; what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cli.test_cli import Call, call
from torch import Tensor, nn

import fedflux
from fedflux import Federation, FedfluxError
from fedflux.data import Partition, partition
from fedflux.data.sources import load

__all__ = ["call"]

SETTINGS: dict[str, Any] = {"rounds": 4, "cluster_round": 2, "device": "cpu", "progress": False, "lr": 0.1}


def rows(seed: int, count: int = 60, flipped: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Whole numbers of two features; the second decides, one way or the other."""
    x = np.random.default_rng(seed).integers(-40, 40, (count, 2)) + np.array([500, 0])
    y = (x[:, 1] > 0).astype(np.int64)
    return x, 1 - y if flipped else y


def test_whoever_has_no_labels_is_answered_and_not_scored() -> None:
    federation = Federation.from_clients(
        {**{f"c{k}": rows(k) for k in range(4)}, "quiet": (rows(9)[0], None)}, test={"late": rows(8)}
    )
    result = fedflux.run(federation, **SETTINGS, metrics={"right": lambda y, p: float((p.argmax(1) == y).mean())})
    assert result["unseen_names"] == ["quiet", "late"]
    assert result["unseen_per_client"][0] is None
    assert result["unseen"] == result["unseen_per_client"][1] > 80
    assert [one["cluster"] for one in result["unseen_placements"]] == [0, 0]
    assert result["client_names"] == [f"c{k}" for k in range(4)]


def test_a_known_client_without_test_labels_has_no_score() -> None:
    clients = {f"c{k}": rows(k) for k in range(4)}
    test = {name: (x[:20], None if name == "c1" else y[:20]) for name, (x, y) in clients.items()}
    result = fedflux.run(Federation.from_clients(clients, test=test), **SETTINGS)
    assert [score is None for score in result["known_per_client"]] == [False, True, False, False]
    assert result["known"] > 80


@pytest.mark.parametrize("engine", ["loop", "processes", "stacked"])
def test_every_engine_leaves_them_out(engine: str) -> None:
    clients = {f"c{k}": rows(k) for k in range(3)}
    federation = Federation.from_clients({**clients, "quiet": (rows(9)[0], None)})
    assert fedflux.run(federation, **SETTINGS, engine=engine)["unseen_per_client"] is None


def test_shifts_of_labels_refuse_them() -> None:
    federation = Federation.from_clients({"a": rows(0), "b": rows(1), "quiet": (rows(9)[0], None)})
    with pytest.raises(FedfluxError, match="py deals and changes labels, and some clients of federation have none"):
        fedflux.run(federation, **SETTINGS, shift="py")


def test_the_same_table_at_four_scales_scores_alike() -> None:
    def known(change: Any) -> float:
        own = {f"c{k}": rows(k, 150, flipped=k > 2) for k in range(6)}
        result = fedflux.run(
            Federation.from_clients({name: (change(x), y) for name, (x, y) in own.items()}), **SETTINGS
        )
        assert result.known is not None
        return result.known

    everything = np.concatenate([rows(k, 150)[0] for k in range(6)])
    mean, deviation = everything.mean(axis=0), everything.std(axis=0)
    scores = [
        known(change)
        for change in (
            lambda x: x,
            lambda x: x.astype(np.float32),
            lambda x: x * 1000.0,
            lambda x: (x - mean) / deviation,
        )
    ]
    assert min(scores) > 85
    assert max(scores) - min(scores) <= 1


def test_a_run_of_a_federation_is_the_run_of_its_file(tmp_path: Path) -> None:
    clients = {f"c{k}": rows(k, flipped=k > 1) for k in range(4)}
    x, y = (np.concatenate(column) for column in zip(*clients.values(), strict=True))
    np.savez(tmp_path / "own.npz", x=x, y=y, client=np.repeat(list(clients), 60))
    results = [
        fedflux.run(Federation.from_clients(clients), **SETTINGS),
        fedflux.run(Federation.from_npz(tmp_path / "own.npz"), **SETTINGS),
        fedflux.run(dataset="npz", data_dir=tmp_path / "own.npz", out=tmp_path / "run", **SETTINGS),
    ]
    for one in results:
        assert one["known_per_client"] == results[0]["known_per_client"]
        assert one["client_names"] == list(clients)


@pytest.mark.parametrize(
    "federation",
    [
        lambda: partition(load("digits"), Partition("px", 4, 5)),
        lambda: Federation.from_clients({"a": rows(0), "b": rows(1)}).limited(3),
    ],
)
def test_a_federation_that_is_no_data_of_its_own_is_refused(federation: Any) -> None:
    with pytest.raises(FedfluxError, match="this federation cannot be run as it is"):
        fedflux.run(federation(), **SETTINGS)


class TwoInputs(nn.Module):
    """Takes an image and a text."""

    encoder = "image"

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(2, 4)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        return self.image(x) + text


class Plain(nn.Module):
    """Has as many outputs as it is told, whatever the classes are."""

    encoder = "hidden"

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 4)
        self.head = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.hidden(x))
        return scores


def fails(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    raise RuntimeError("no such layer")


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (TwoInputs, {}, "TwoInputs"),
        (TwoInputs(), {}, "TwoInputs"),
        (Plain(7), {}, "7"),
        (Plain(1), {}, "1"),
        (fails, {}, "no such layer"),
        (lambda: nn.Linear(2, 2), {}, "encode"),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), {}, "Sequential fails on inputs of shape (2,)"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), {}, "Sequential shows no latents"),
        (lambda: None, {}, "must return an nn.Module, not NoneType"),
        (3, {}, "int is no model"),
        (lambda: Plain(2), {"engine": "processes"}, "define it in a module of its own"),
    ],
)
def test_models_that_do_not_fit(model: Any, options: dict[str, Any], says: str, tmp_path: Path) -> None:
    federation = Federation.from_clients({"a": rows(0), "b": rows(1)})
    with pytest.raises(FedfluxError) as caught:
        fedflux.run(federation, model=model, out=tmp_path / "run", **{**SETTINGS, **options})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "result.json").exists()


HEAD = "age,client,label\n"
X, Y, OWNER = np.arange(24.0).reshape(12, 2), np.arange(12) % 2, np.repeat(["a", "b"], 6)
HOLED = np.where(X == 9, np.nan, X)
FILES: list[tuple[str, str | dict[str, Any], str]] = [
    ("own.csv", HEAD + "1,a,0\n2,a\n", "own.csv, line 3: 2 cells, but the first line names 3 columns"),
    ("own.csv", HEAD + "1,a,0\nnan,b,1\n", "own.csv, line 3 (client 'b'): column 'age' holds nan; fill it or drop"),
    ("own.csv", "", "own.csv: is empty; the first line names the columns"),
    ("own.csv", "age,client,kind\n1,a,0\n", "own.csv: unknown column 'label'"),
    ("own.npz", {"x": HOLED, "y": Y, "client": OWNER}, "row 4 (client 'a') of 'x' holds NaN or infinite values"),
    ("own.npz", {"x": X, "y": Y, "clinet": OWNER}, "unknown key 'clinet': did you mean 'client'?"),
    ("own.npz", {"x": X, "y": Y[:5], "client": OWNER}, "12 examples in 'x' but 5 in 'y'"),
    ("own.npz", {"x": X, "y": Y, "client": OWNER, "client_names": ["a", "b", "a"]}, "client 'a' is named twice"),
    ("own.npz", {"x": X[:0], "y": Y[:0]}, "'x' holds no example"),
    ("own.npz", {"x": X.astype(str), "y": Y}, "'x' holds <U32; give numbers"),
]


@pytest.mark.parametrize(("name", "content", "says"), FILES, ids=[says[:40] for _, _, says in FILES])
def test_a_broken_file_ends_with_status_2_in_one_line_and_leaves_nothing(
    tmp_path: Path, call: Call, name: str, content: str | dict[str, Any], says: str
) -> None:
    if isinstance(content, str):
        (tmp_path / name).write_text(content, encoding="utf-8")
    else:
        np.savez(tmp_path / name, **content)
    kind = name.partition(".")[2]
    done = call("run", "--dataset", kind, "--data-dir", str(tmp_path / name), "--out", str(tmp_path / "run"))
    assert (done.status, done.stdout) == (2, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == [name]
