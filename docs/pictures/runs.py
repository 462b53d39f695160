"""Finished runs as pictures need them: figures from `result.json`, images from `samples.npz`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError


@dataclass(frozen=True)
class Finished:
    """One run's folder, read."""

    folder: Path
    result: dict[str, Any]
    config: dict[str, Any]

    @property
    def known(self) -> list[float]:
        """Every client's accuracy with the model of its cluster, in percent."""
        return [float(value) for value in self.result["known_per_client"]]

    @property
    def assignment(self) -> NDArray[np.int64]:
        """The cluster that was found for each client."""
        return np.array(self.result["assignment"])

    @property
    def truth(self) -> NDArray[np.int64]:
        """The distribution that each client's data was made by."""
        return np.array(self.result["truth"])

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """What was written down after each round."""
        lines = (self.folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def image(self, client: int, label: int) -> NDArray[np.uint8] | None:
        """An image that the client calls so, None where it has no such."""
        with np.load(self.folder / "samples.npz") as samples:
            rows = np.flatnonzero((samples["client"] == client) & (samples["label"] == label))
            return None if len(rows) == 0 else np.asarray(samples["image"][rows[0]], dtype=np.uint8)


def finished(runs: Path, **wanted: Any) -> list[Finished]:
    """The runs in a folder whose settings are these, by level and seed."""
    found = []
    for path in sorted(runs.glob("*/result.json")):
        config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
        if all(config.get(name) == value for name, value in wanted.items()):
            found.append(Finished(path.parent, json.loads(path.read_text(encoding="utf-8")), config))
    if not found:
        raise FedfluxError(f"{runs} holds no finished run with {wanted}: `make demo` makes what pictures need")
    return sorted(found, key=lambda run: (run.config["level"], run.config["seed"]))


def scores(runs: Sequence[Finished]) -> NDArray[np.float64]:
    """The accuracy of every client of every run."""
    return np.array([value for run in runs for value in run.known])
