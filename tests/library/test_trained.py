"""What is promised of a run that is opened again: newcomers with labels, devices, files, older runs, time."""

import json
import shutil
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
import torch
from tests.library.damage import READERS, files_of, flip, make_run, put_back
from tests.runs.making import make_client

import fedflux
from fedflux.errors import FedfluxError
from fedflux.library.trained import device_like
from fedflux.runs.storage import digests

OLD = Path(__file__).parents[1] / "runs" / "version_0_1" / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def test_newcomers_with_labels_are_placed_with_those_they_are_like(run: Path) -> None:
    trained = fedflux.load(run)
    plain, negative = make_client(70, 30), make_client(71, 30, negative=True)
    placed = trained.assign({"a": plain[0], "b": negative[0]}, {"a": plain[1], "b": negative[1]})
    assert placed.cluster.tolist() == [trained.clusters["0"], trained.clusters["1"]]
    assert placed.confidence.tolist() == [1.0, 1.0]
    answers = trained.predict({"a": plain[0], "b": negative[0]}, {"a": plain[1], "b": negative[1]})
    assert isinstance(answers, dict)
    assert all(found.shape == (30, 3) for found in answers.values())
    np.testing.assert_array_equal(trained.predict(plain[0], plain[1].astype(str)), answers["a"])


def test_features_that_cannot_tell_clusters_apart_are_warned_of(tmp_path: Path) -> None:
    x = np.concatenate([make_client(k, 60)[0] for k in range(4)])
    y = np.concatenate([(make_client(k, 60)[1] + (k % 2)) % 3 for k in range(4)])
    np.savez(tmp_path / "data.npz", x=x, y=y, client=np.repeat(np.arange(4), 60))
    settings: dict[str, Any] = {
        "rounds": 6,
        "cluster_round": 3,
        "lr": 0.05,
        "scale": "pixels",
        "device": "cpu",
        "store": "none",
    }
    fedflux.run(dataset="npz", data_dir=tmp_path / "data.npz", shift="none", out=tmp_path / "run", **settings)
    trained = fedflux.load(tmp_path / "run")
    assert len(set(trained.clusters.values())) == 2
    with pytest.warns(UserWarning, match=r"clusters of this run differ in P\(Y\|X\), which features cannot show"):
        trained.predict(x[:60])
    for k in range(4):
        own = slice(60 * k, 60 * k + 30)
        assert trained.assign(x[own], y[own]).cluster[0] == trained.clusters[str(k)]


def test_asking_changes_nothing(run: Path) -> None:
    trained = fedflux.load(run)
    x, y = make_client(70, 30)
    before = np.asarray(trained.predict(x))
    trained.predict(x, y)
    trained.model_for(x)
    assert trained.clients == ("0", "1", "2", "3")
    np.testing.assert_array_equal(before, trained.predict(x))


def test_what_cannot_be_asked_is_one_line(run: Path) -> None:
    trained = fedflux.load(run)
    x, y = make_client(70, 30)
    cases: list[tuple[str, Any]] = [
        ("30 records but 3 labels", lambda: trained.predict(x, y[:3])),
        ("30 records but 2 groups", lambda: trained.assign(x, group=[1, 2])),
        ("give y as a mapping from the same names", lambda: trained.predict({"a": x}, {"b": y})),
        ("give y as a mapping from the same names", lambda: trained.predict({"a": x}, y)),
        ("takes one client's inputs, without labels", lambda: trained.predict(x, y, client="0")),
        ("x holds NoneType", lambda: trained.predict(None)),
        ("int holds no records; give a row a record", lambda: trained.predict(3)),
        ("no client was given", lambda: trained.predict({})),
        ("label 7 is none of the run's classes: 0, 1, 2", lambda: trained.predict(x, y + 7)),
        ("unknown client 'north'", lambda: trained.predict(x, client="north")),
    ]
    for words, ask in cases:
        with pytest.raises(FedfluxError, match=words) as told:
            ask()
        assert "\n" not in str(told.value)


def test_a_run_goes_to_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [device_like(device) for device in ("cpu", "cuda", "cuda:3")] == ["cpu", "cpu", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_like(device) for device in ("cpu", "cuda", "cuda:1", "cuda:2")] == ["cpu", "cuda", "cuda:1", "cuda"]


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_run_made_on_a_gpu_loads_on_a_machine_without_one(
    engine: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    told = json.loads((copied / "config.json").read_text())
    told["ran_on"] |= {"device": "cuda:0", "engine": engine}
    (copied / "config.json").write_text(json.dumps(told))
    names = [name for name in digests.kept_files(copied) if name != "result.json"]
    digests.save_digests(copied, names, (copied / "result.json").read_bytes())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    x, _ = make_client(70, 30)
    found = np.asarray(fedflux.load(copied).predict(x))
    np.testing.assert_allclose(found, np.asarray(fedflux.load(run).predict(x)), atol=1e-5)


def test_a_model_that_stayed_with_a_deployed_client_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, algorithm="apfl")
    names = [name for name in digests.kept_files(run) if name not in ("result.json", "personal-personal.safetensors")]
    digests.save_digests(run, names, (run / "result.json").read_bytes())
    trained = fedflux.load(run)
    x, _ = make_client(70, 30)
    assert np.asarray(trained.predict(x)).shape == (30, 3)
    for ask in (lambda: trained.model("0"), lambda: trained.predict(x, client="0")):
        with pytest.raises(FedfluxError, match="client '0' left no model here: models of its own stay with a deployed"):
            ask()


def test_nothing_is_pickled(run: Path) -> None:
    assert {path.suffix for path in files_of(run)} <= {".json", ".jsonl", ".npz", ".safetensors"}
    for path in run.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype.kind in "biufU" for name in arrays.files)


def test_a_run_of_version_0_1_says_what_it_lacks() -> None:
    words = r"made by fedflux 0.1.0 and has no trained.json to place clients with; fedflux report and cluster read it"
    with pytest.raises(FedfluxError, match=words):
        fedflux.load(OLD)


def test_flipped_bytes_of_a_run_of_version_0_1_are_never_a_traceback(tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD, tmp_path / "run"))
    refusals: list[str] = []
    before, rng = {path: path.read_bytes() for path in files_of(run)}, np.random.default_rng(3)
    for _ in range(150):
        flip(list(before)[int(rng.integers(len(before)))], rng)
        for name in ("report", "cluster", "predict"):
            try:
                READERS[name](run)
            except FedfluxError as error:
                refusals.append(str(error))
        put_back(before)
    assert len(refusals) > 150
    assert not [line for line in refusals if "\n" in line]


def test_a_digits_run_is_loaded_and_answers_at_once(tmp_path: Path) -> None:
    fedflux.run(dataset="digits", clients=10, rounds=2, cluster_round=1, out=tmp_path / "run", store="none")
    begin = process_time()
    trained = fedflux.load(tmp_path / "run")
    trained.predict(np.zeros((20, *trained.input_shape), dtype=np.uint8))
    assert process_time() - begin < 2.0
