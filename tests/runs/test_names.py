"""What clients and classes are called, from the data to the result, the exports and the trained run."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.runs.making import make_client, read_json

import fedflux
from fedflux import Federation
from fedflux.cli import main as cli

CLIENTS, CLASSES = ["Łódź", "north", "south"], ["cat", "dog", "newt"]
Maker = Any
CLIENT = make_client(0, 30)
SETTINGS: dict[str, Any] = {"rounds": 2, "cluster_round": 1, "device": "cpu", "progress": False}


def folder(path: Path) -> tuple[str, Path]:
    for client in CLIENTS:
        for number, (picture, label) in enumerate(zip(*CLIENT, strict=True)):
            place = path / client / CLASSES[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 * picture[0]).astype(np.uint8)).save(place / f"{number}.png")
    return "folder", path


def npz(path: Path) -> tuple[str, Path]:
    x, y = CLIENT
    owner = np.repeat(np.arange(3), len(y))
    names: dict[str, Any] = {"client": np.array(CLIENTS)[owner], "client_names": CLIENTS, "class_names": CLASSES}
    np.savez(path.with_suffix(".npz"), x=np.tile(x, (3, 1, 1, 1)), y=np.tile(y, 3), **names)
    return "npz", path.with_suffix(".npz")


def table(path: Path) -> tuple[str, Path]:
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*(f"pixel {k}" for k in range(36)), "client", "label"])
        for client in CLIENTS:
            lines.writerows([*x.reshape(-1), client, CLASSES[y]] for x, y in zip(*CLIENT, strict=True))
    return "csv", path.with_suffix(".csv")


@pytest.mark.parametrize("make", [folder, npz, table], ids=["folder", "npz", "csv"])
def test_names_from_files_to_everything_that_is_written(make: Maker, tmp_path: Path) -> None:
    name, path = make(tmp_path / "data")
    result = fedflux.run(dataset=name, data_dir=path, out=tmp_path / "run", **SETTINGS)
    check_names(result, tmp_path / "run")
    with pytest.raises(SystemExit) as done:
        cli.app(["partition", "--dataset", name, "--data-dir", str(path), "--out", str(tmp_path / "parts")])
    assert done.value.code == 0
    manifest = read_json(tmp_path / "parts" / "manifest.json")
    assert sorted(client["name"] for client in manifest["clients"]) == sorted(CLIENTS)
    assert manifest["class_names"] == CLASSES


def test_names_from_memory_to_everything_that_is_written(tmp_path: Path) -> None:
    x, y = CLIENT
    federation = Federation.from_clients({client: (x, [CLASSES[one] for one in y]) for client in CLIENTS})
    result = fedflux.run(federation, out=tmp_path / "run", **SETTINGS)
    check_names(result, tmp_path / "run")
    assert result["client_names"] == CLIENTS


def check_names(result: fedflux.Result, run: Path) -> None:
    """Names in the result, in its table, in the trained run, and in an exported model."""
    for told in (result, read_json(run / "result.json")):
        assert (sorted(told["client_names"]), told["class_names"]) == (sorted(CLIENTS), CLASSES)
    assert sorted(result.clients.index) == sorted(CLIENTS)
    trained = fedflux.load(run)
    assert (sorted(trained.clients), list(trained.class_names)) == (sorted(CLIENTS), CLASSES)
    assert len(trained.predict(np.zeros((1, *trained.input_shape)), client="Łódź")) == 1
    with pytest.raises(SystemExit) as done:
        cli.app(["export", str(run), "--client", "Łódź", "--out", str(run / "model")])
    assert done.value.code == 0
    card = json.loads((run / "model" / "model.json").read_text(encoding="utf-8"))
    assert (card["client"], card["class_names"]) == ("Łódź", CLASSES)
    (shown,) = page_data(result.report())["runs"]
    assert (sorted(shown["client_names"]), shown["class_names"]) == (sorted(CLIENTS), CLASSES)


def page_data(report: Path) -> Any:
    """What the page of a report draws from."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', report.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_simulated_clients_have_no_names(tmp_path: Path) -> None:
    result = fedflux.run(dataset="digits", clients=3, rounds=1, cluster_round=1, out=tmp_path / "run", device="cpu")
    assert (result["client_names"], result["class_names"]) == (None, None)
