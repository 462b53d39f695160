"""Small federations as .npz files, and a run that leaves its folder where a test can look."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedflux

Client = tuple[NDArray[np.float32], NDArray[np.int64]]
SIDE = 6


def make_client(
    seed: int, size: int, classes: Sequence[int] = (0, 1, 2), *, negative: bool = False, noise: float = 0.05
) -> Client:
    """Noisy copies of one random image per class, the same images for every seed; `negative` inverts them."""
    images = np.random.default_rng(7).random((10, 1, SIDE, SIDE))
    y = np.resize(np.array(classes, dtype=np.int64), size)
    x = images[y] + noise * np.random.default_rng(seed).standard_normal((size, 1, SIDE, SIDE))
    return (1 - x if negative else x).clip(0, 1).astype(np.float32), y


def save_clients(path: Path, train: Sequence[Client], test: Sequence[Client] | None = None, **more: Any) -> Path:
    """One .npz with the clients numbered in order; without `test` the source cuts a test part off."""
    arrays: dict[str, Any] = dict(zip(("x", "y", "client"), _joined(train), strict=True))
    if test is not None:
        arrays |= dict(zip(("x_test", "y_test", "client_test"), _joined(test), strict=True))
    np.savez(path, **arrays, **more)
    return path


def _joined(clients: Sequence[Client]) -> tuple[NDArray[Any], ...]:
    owner = np.repeat(np.arange(len(clients)), [len(y) for _, y in clients])
    return np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients]), owner


def run_npz(data: Path, out: Path, **options: Any) -> dict[str, Any]:
    """A short run on an .npz file, clustered in the second of three rounds."""
    settings = {"shift": "none", "rounds": 3, "cluster_round": 2, "device": "cpu"}
    return fedflux.run(dataset="npz", data_dir=data, out=out, **{**settings, **options}).to_dict()


def read_json(path: Path) -> Any:
    """Strict JSON: NaN and Infinity are refused."""
    return strict_json(path.read_text(encoding="utf-8"))


def read_rounds(folder: Path) -> list[Any]:
    """The lines of a run's round log."""
    return [strict_json(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def strict_json(text: str) -> Any:
    """Parse JSON, refusing the constants that Python adds to it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
