"""Anybody's model as a plain module, and as files that plain PyTorch opens: they score what the session scored."""

import json
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fedflux
from fedflux.errors import FedfluxError
from fedflux.library.export import export_client
from fedflux.library.trained import TrainedRun
from fedflux.models.protocol import EncoderHead

Part = tuple[NDArray[Any], NDArray[np.int64]]
NAMES, CLASSES = ("north", "south", "east"), ("red", "green", "blue")
SETTINGS: dict[str, Any] = {
    "shift": "none", "rounds": 2, "cluster_round": 1, "device": "cpu", "lr": 0.05, "batch_size": 8, "progress": False,
}  # fmt: skip


class Tokens(EncoderHead):
    """The mean of embedded tokens: its inputs are integers."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Embedding(20, 8), Mean())
        self.classifier = nn.Linear(8, classes)


class Mean(nn.Module):
    """Over the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """One vector a record."""
        return x.mean(dim=1)


def records(kind: str, seed: int, count: int = 40) -> Part:
    """Records of three classes that are easy to tell apart, in the kind's form."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    if kind == "tokens":
        return rng.integers(0, 6, (count, 5)) + 6 * y[:, None], y
    if kind == "table":
        return 50.0 + 30.0 * y[:, None] + rng.normal(0, 9, (count, 4)) * np.array([1, 10, 0.1, 1]), y
    side = 8 if kind == "bytes" else 16
    pictures = 60 * y[:, None, None, None] + rng.integers(0, 60, (count, 3 if kind == "colour" else 1, side, side))
    return pictures.astype(np.uint8), y


def trained(kind: str, folder: Path, **options: Any) -> tuple[TrainedRun, dict[str, Part]]:
    """A run on three clients, one of which has two classes under each other's names, with their test parts."""
    parts: list[tuple[str, str, Part]] = []
    for seed, name in enumerate(NAMES):
        swap = np.array([1, 0, 2]) if name == "east" else np.arange(3)
        for end, (x, y) in (("", records(kind, seed)), ("_test", records(kind, 10 + seed, 21))):
            parts.append((name, end, (x, swap[y])))
    arrays: dict[str, Any] = {"client_names": np.array(NAMES), "class_names": np.array(CLASSES)}
    for end in ("", "_test"):
        own = [(name, part) for name, where, part in parts if where == end]
        arrays[f"x{end}"], arrays[f"y{end}"] = (np.concatenate([part[k] for _, part in own]) for k in (0, 1))
        arrays[f"client{end}"] = np.repeat([name for name, _ in own], [len(part[1]) for _, part in own])
    np.savez(folder / "data.npz", **arrays)
    settings = {**SETTINGS, **options, "out": folder / "run", "store": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fedflux.run(dataset="npz", data_dir=str(folder / "data.npz"), **settings)
        return fedflux.load(folder / "run"), {name: part for name, end, part in parts if end}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp, bytes": ("bytes", {"model": "mlp"}),
    "lenet5, fine-tuned": ("colour", {"model": "lenet5", "finetune": 1}),
    "resnet9, batch norm": ("colour", {"model": "resnet9", "rounds": 1, "epochs": 1, "batch_size": 20}),
    "standardised table": ("table", {"model": "mlp"}),
    "token ids, own module": ("tokens", {"model": Tokens, "scale": "none"}),
    "apfl, a mixture with a model of its own": ("table", {"model": "mlp", "algorithm": "apfl"}),
    "fedem, a mixture of several": ("table", {"model": "mlp", "algorithm": "fedem", "clusters": 2}),
}


def accuracy(scores: Tensor, y: NDArray[np.int64]) -> float:
    return 100 * float((scores.argmax(dim=1).numpy() == y).mean())


EXPORTED = [name for name in CASES if name not in ("mlp, bytes", "fedem, a mixture of several")]
Run = tuple[TrainedRun, dict[str, Part]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A run of each case, made when it is asked for."""
    made: dict[str, Run] = {}

    def run_of(case: str) -> Run:
        if case not in made:
            kind, options = CASES[case]
            made[case] = trained(kind, tmp_path_factory.mktemp("run"), **options)
        return made[case]

    return run_of


@pytest.mark.parametrize("case", CASES)
def test_a_clients_model_scores_its_recorded_accuracy(case: str, runs: Callable[[str], Run]) -> None:
    run, tests = runs(case)
    assert run.clients == NAMES
    assert run.class_names == CLASSES
    assert sum(run.result["known_per_client"]) > 0
    for number, (name, (x, y)) in enumerate(tests.items()):
        model = run.model(name)
        assert not model.training
        with torch.no_grad():
            scores = model(torch.as_tensor(x))
        np.testing.assert_allclose(scores.softmax(dim=1).numpy(), np.asarray(run.predict(x, client=name)), atol=2e-6)
        assert accuracy(scores, y) == pytest.approx(run.result["known_per_client"][number], abs=1e-6)


PLAIN = """
    import json, sys
    import numpy as np, torch
    from safetensors.torch import load_file
    folder, data = sys.argv[1:]
    told = json.load(open(f"{folder}/model.json"))
    records = np.load(data)
    x = torch.as_tensor(records["x"]).to(getattr(torch, told["input"]["type"]))
    assert list(x.shape[1:]) == told["input"]["shape"]
    assert told["input"].get("range") == ([0, 255] if told["scaling"]["kind"] == "pixels" else None)
    program = torch.export.load(f"{folder}/model.pt2")
    with torch.no_grad():
        scores = program.module()(x)
        one = program.module()(x[:1])
    torch.testing.assert_close(one, scores[:1], atol=1e-5, rtol=1e-4)
    state = load_file(f"{folder}/model.safetensors")
    assert state.keys() == program.state_dict.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in program.state_dict.items())
    assert not [name for name in sys.modules if name.startswith("fedflux")]
    answers = [told["class_names"][k] for k in scores.argmax(dim=1)]
    print(json.dumps({"accuracy": 100 * float(np.mean(np.array(answers) == records["y"])), "known": told["known"]}))
"""


@pytest.mark.parametrize("case", EXPORTED)
def test_an_exported_model_scores_it_in_plain_pytorch(case: str, runs: Callable[[str], Run], tmp_path: Path) -> None:
    run, tests = runs(case)
    told = export_client(run, "east", tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        *("model.json", "model.pt2", "model.safetensors")
    ]
    assert told["client"] == "east"
    x, y = tests["east"]
    np.savez(tmp_path / "data.npz", x=x, y=np.array(run.class_names)[y])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PLAIN), str(tmp_path / "model"), str(tmp_path / "data.npz")],
        capture_output=True, text=True, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["known"] == run.result["known_per_client"][2]
    assert found["accuracy"] == pytest.approx(found["known"], abs=1e-6)


def test_a_client_is_named_or_numbered(runs: Callable[[str], Run]) -> None:
    run, _ = runs("standardised table")
    by_name, by_number = run.model("south").state_dict(), run.model(1).state_dict()
    assert all(torch.equal(tensor, by_number[name]) for name, tensor in by_name.items())
    with pytest.raises(FedfluxError, match=r"unknown client 'suth': did you mean 'south'\?"):
        run.model("suth")
    with pytest.raises(FedfluxError, match="unknown client '3': choose from east, north, south"):
        run.model(3)
