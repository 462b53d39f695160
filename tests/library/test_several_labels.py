"""A run on records with several labels, from its file to answers for clients that it has never seen."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

import fedflux
from fedflux.data.scaling import UNCHANGED
from fedflux.data.tasks.areas import macro_auc
from fedflux.errors import FedfluxError
from fedflux.files import write_npz
from fedflux.library.export import STATE, export_client
from fedflux.library.module import ClientModel
from fedflux.library.predict import predict_file
from fedflux.library.trained import TrainedRun
from fedflux.models import build_model

LABELS = 4
PLAIN = {"engine": "loop", "store": "none"}


def clinic(rng: np.random.Generator, scanner: int, records: int = 100) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Records of one of two scanners, which show findings in other places."""
    looks = np.random.default_rng(7).normal(size=(2, LABELS, 12)) * 1.5
    y = (rng.random((records, LABELS)) < (0.2, 0.3, 0.4, 0.5)).astype(np.int64)
    x = y @ looks[scanner] + 2 * scanner + rng.normal(size=(records, 12))
    return x.astype(np.float32), y


@dataclass(frozen=True)
class Fixture:
    """A finished run."""

    folder: Path
    result: dict[str, Any]
    run: TrainedRun


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    folder, rng = tmp_path_factory.mktemp("several"), np.random.default_rng(3)
    parts = [clinic(rng, k % 2) for k in range(8)]
    arrays = {
        "x": np.concatenate([x for x, _ in parts]),
        "y": np.concatenate([y for _, y in parts]),
        "client": np.repeat([f"clinic {k}" for k in range(8)], 100),
        "cluster": np.repeat(np.arange(8) % 2, 100),
        "class_names": np.array(["oedema", "mass", "nodule", "fibrosis"]),
    }
    write_npz(folder / "own.npz", arrays)
    told: dict[str, Any] = {
        "rounds": 6,
        "lr": 0.2,
        "batch_size": 16,
        "unseen": 2,
        "finetune": 2,
        "engine": "loop",
        "store": "none",
    }
    found = fedflux.run(dataset="npz", data_dir=str(folder / "own.npz"), shift="none", out=folder / "run", **told)
    return Fixture(folder, dict(found), fedflux.load(folder / "run"))


def test_scores_are_macro_auc_in_percent(made: Fixture) -> None:
    result = made.result
    assert result["score"] == "macro ROC AUC"
    assert result["pairs_right"] == 1
    for key in ("known", "test", "unseen"):
        assert isinstance(result[key], float)
        assert 75 < result[key] < 100
    assert result["worst"] == min(result["known_per_client"])


def test_unseen_clients_are_placed_by_their_mixture_of_kinds(made: Fixture) -> None:
    placements = made.result["unseen_placements"]
    assert isinstance(placements, list)
    truth = made.result["unseen_truth"]
    assert isinstance(truth, list)
    clusters = made.run.clusters
    for one, scanner in zip(placements, truth, strict=True):
        same = {clusters[f"clinic {k}"] for k in range(8) if k % 2 == scanner and f"clinic {k}" in clusters}
        assert {one["cluster"]} == same
        assert one["novel"] is False


def test_answers_are_sigmoids(made: Fixture) -> None:
    x, y = clinic(np.random.default_rng(11), 1, 300)
    p = made.run.predict(x)
    assert isinstance(p, np.ndarray)
    assert p.shape == (300, LABELS)
    assert macro_auc(p.astype(np.float64), y) > 0.8
    labelled = made.run.predict(x, y)
    assert isinstance(labelled, np.ndarray)
    assert macro_auc(labelled.astype(np.float64), y) > 0.8
    model = made.run.model_for(x)
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(x)).sigmoid().numpy(), p, atol=1e-5)
    with pytest.raises(FedfluxError, match="0 or 1"):
        made.run.predict(x, y[:, 0])


def test_a_mixture_of_models_averages_sigmoids() -> None:
    models = [build_model("mlp", (12,), LABELS, seed, 0, False) for seed in (1, 2)]
    mixed = ClientModel(models, [0.25, 0.75], UNCHANGED, None, several_labels=True).eval()
    x = 4 * torch.randn(50, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = 0.25 * models[0](x).sigmoid() + 0.75 * models[1](x).sigmoid()
        torch.testing.assert_close(mixed(x).sigmoid(), expected)


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_a_file_of_new_clients_is_answered(made: Fixture, suffix: str) -> None:
    x, y = clinic(np.random.default_rng(12), 0)
    write_npz(made.folder / "new.npz", {"x": x, "y": y})
    out = made.folder / f"answers.{suffix}"
    (told,) = predict_file(made.run, made.folder / "new.npz", out)["clients"]
    assert told["accuracy"] is None
    p = made.run.predict(x)
    assert isinstance(p, np.ndarray)
    assert told["macro_auc"] == pytest.approx(100 * macro_auc(p.astype(np.float64), y))
    names = np.array(made.run.class_names)
    if suffix == "npz":
        answers = np.load(out)["answer"].tolist()
    else:
        answers = [row["answer"] for row in csv.DictReader(out.open())]
    assert answers == [";".join(names[row >= 0.5]) for row in p]


def test_an_exported_model_says_how_its_scores_are_read(made: Fixture) -> None:
    name = made.run.clients[0]
    told = export_client(made.run, name, made.folder / "exported")
    x = torch.from_numpy(clinic(np.random.default_rng(13), 0)[0])
    program = torch.export.load(Path(told["path"]) / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(x), made.run.model(name)(x))
    assert "sigmoid" in (made.folder / "exported" / "model.json").read_text()
    assert load_file(made.folder / "exported" / STATE)


def test_metrics_of_ones_own_get_targets_and_probabilities(made: Fixture, tmp_path: Path) -> None:
    shapes = set()

    def brier(labels: NDArray[np.int64], probabilities: NDArray[np.float32]) -> float:
        shapes.add((labels.shape[1:], probabilities.shape[1:]))
        return float(((labels - probabilities) ** 2).mean())

    told: dict[str, Any] = {
        "rounds": 1,
        "algorithm": "fedavg",
        "engine": "loop",
        "store": "none",
        "out": tmp_path / "run",
    }
    result = fedflux.run(
        dataset="npz", data_dir=str(made.folder / "own.npz"), shift="none", metrics={"brier": brier}, **told
    )
    assert shapes == {((LABELS,), (LABELS,))}
    assert 0 < result["metrics"]["brier"]["known"] < 1
