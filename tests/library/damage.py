"""Run folders with faults in them, and everybody who reads one: what they answer, or with which line they refuse."""

import json
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.runs.making import make_client, save_clients

import fedflux
from fedflux.errors import FedfluxError
from fedflux.library.export import export_client
from fedflux.library.predict import predict_file
from fedflux.library.result import Result
from fedflux.runs.storage.store import STORE_FILE, Store, export_store, merge_stores
from fedflux.studies.recluster import recluster
from fedflux.studies.report.collect import collect, without_timings

NEW = np.stack([make_client(seed, 8)[0] for seed in (50, 51)])
Reader = Callable[[Path], Any]


def make_run(folder: Path, *, seed: int = 42, **options: Any) -> Path:
    """A finished run of four small clients in two clusters, with a store beside it; where it lies."""
    clients = [make_client(k, 60, negative=k % 2 == 1) for k in range(4)]
    data = save_clients(folder / "data.npz", clients)
    settings = {"shift": "none", "rounds": 3, "cluster_round": 2, "samples": "keep", "scale": "pixels"}
    run = folder / "run"
    fedflux.run(dataset="npz", data_dir=data, out=run, device="cpu", seed=seed, **{**settings, **options})
    np.savez(folder / "new.npz", x=NEW.reshape(-1, *NEW.shape[2:]), client=np.repeat(["a", "b"], NEW.shape[1]))
    return run


def predicted(run: Path) -> Any:
    """What new clients are answered with."""
    placed, answers = fedflux.load(run).answer({"a": NEW[0], "b": NEW[1]})
    assert placed is not None
    return [placed.cluster.tolist(), placed.posterior.tolist(), {k: v.tolist() for k, v in answers.items()}]


def predicted_from_file(run: Path) -> Any:
    """The same by file."""
    out = run.parent / "predictions.csv"
    found = predict_file(fedflux.load(run), run.parent / "new.npz", out)
    return [found["clients"], out.read_text(encoding="utf-8")]


def exported(run: Path) -> Any:
    """A client's model."""
    out = run.parent / "exported"
    shutil.rmtree(out, ignore_errors=True)
    export_client(fedflux.load(run), 1, out)
    return [(out / "model.safetensors").read_bytes(), (out / "model.json").read_bytes()]


def reported(run: Path) -> Any:
    """What the page shows; a run that it lists as damaged is refused."""
    shown = collect([run])
    if shown["damaged"]:
        raise FedfluxError(shown["damaged"][0]["reason"])
    return json.dumps(shown, sort_keys=True)


def clustered(run: Path) -> Any:
    """The labels of the run's descriptors."""
    return recluster(run, "calibrated", None)


def resumed(run: Path) -> Any:
    """What a finished run is answered with when it is asked for again; without its result it is finished anew."""
    return without_timings({**fedflux.run(out=run, resume=True, store="none"), "run_dir": None})


def tables(run: Path) -> Any:
    """The tables of a run's result."""
    result = Result(fedflux.load(run).result, run)
    return [result.clients.to_csv(), result.rounds.to_csv()]


READERS: Mapping[str, Reader] = {
    "report": reported,
    "cluster": clustered,
    "predict": predicted,
    "predict a file": predicted_from_file,
    "tables": tables,
    "resume": resumed,
}
"""What reads a run folder; `export` is slow and opens a folder as `predict` does."""


def merged(store: Path) -> Any:
    """The cells of a store that another takes in, and as CSV."""
    target = store.parent / "merged.sqlite"
    for path in store.parent.glob("merged.sqlite*"):
        path.unlink()
    merge_stores(target, [store])
    export_store(store, store.parent / "cells.csv")
    with closing(sqlite3.connect(target)) as connection:
        cells = connection.execute("SELECT * FROM cells").fetchall()
        rounds = connection.execute("SELECT * FROM rounds").fetchall()
    return [cells, rounds, (store.parent / "cells.csv").read_text(encoding="utf-8")]


def compared(path: Path) -> Any:
    """The cells as a comparison asks for them."""
    store = Store(path)
    return [[store.get(one["identity"]), store.rounds(one["identity"])] for one in store.cells()]


@dataclass(frozen=True)
class Fault:
    """What went wrong with a reader of a damaged folder."""

    what: str
    reader: str
    how: str


def judge(readers: Mapping[str, Reader], place: Path, intact: Mapping[str, Any], what: str) -> tuple[int, list[Fault]]:
    """How many readers refused in one line, and the faults: a traceback, several lines, another answer."""
    refused = 0
    faults: list[Fault] = []
    for name, read in readers.items():
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                answer = read(place)
            if answer != intact[name] and not said:
                faults.append(Fault(what, name, "another answer without a word"))
        except FedfluxError as error:
            refused += 1
            if "\n" in str(error) or not str(error):
                faults.append(Fault(what, name, f"not one line: {error}"))
        except Exception as error:
            faults.append(Fault(what, name, f"{type(error).__name__}: {error}"))
    return refused, faults


def files_of(run: Path) -> list[Path]:
    """Every file of a run folder but the lock."""
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")


def flip(path: Path, rng: np.random.Generator) -> str:
    """Change one byte of a file; what was done."""
    before = path.read_bytes()
    place, bits = int(rng.integers(len(before))), int(rng.integers(1, 256))
    path.write_bytes(before[:place] + bytes([before[place] ^ bits]) + before[place + 1 :])
    return f"{path.name}: byte {place} ^ {bits}"


def flips(run: Path, count: int, seed: int, readers: Mapping[str, Reader] = READERS) -> tuple[int, list[Fault]]:
    """So many flips of a byte of a file, one after another; how often somebody refused, and what went wrong."""
    rng, intact = np.random.default_rng(seed), {name: read(run) for name, read in readers.items()}
    refused = 0
    faults: list[Fault] = []
    before = {path: path.read_bytes() for path in (files_of(run) if run.is_dir() else [run])}
    places = [path for path, content in before.items() if content]
    for _ in range(count):
        what = flip(places[int(rng.integers(len(places)))], rng)
        told, found = judge(readers, run, intact, what)
        put_back(before)
        refused, faults = refused + told, faults + found
    return refused, faults


def put_back(kept: Mapping[Path, bytes]) -> None:
    """The files as they were."""
    for path, content in kept.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


__all__ = ["READERS", "STORE_FILE", "Fault", "exported", "files_of", "flip", "flips", "judge", "make_run", "merged"]
