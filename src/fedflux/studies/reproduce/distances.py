"""tab:eps_R1 is no comparison of runs: descriptor distances against W2, measured once and kept beside the runs."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fedflux.files import read_object, write_json
from fedflux.studies.fidelity import KEYS, POINTS, fidelity
from fedflux.studies.reproduce.asking import Asked, key
from fedflux.studies.reproduce.rows import COLUMNS, CURVE, Row
from fedflux.version import __version__

FOLDER = "distances"
ROW_FILE = "row.json"


def measured(asked: Asked, out: Path) -> Row | None:
    """What is kept of an earlier measurement."""
    return read_object(_folder(asked, out) / ROW_FILE)


def measure(
    asked: Asked, machine: Mapping[str, Any], out: Path, tell: Callable[[str, float], None], points: int = POINTS
) -> Row:
    """One level; kept in a folder of its own."""
    begin = perf_counter()
    told = {name: value for name, value in {**machine, **asked}.items() if name not in ("algorithm", "level")}
    folder = _folder(asked, out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    answer = fidelity(told, [asked["level"]], points, folder, tell)
    row: Row = dict.fromkeys(COLUMNS) | {
        **{name: asked.get(name) for name in ("dataset", "algorithm", "shift", "level", "seed")},
        **{name: answer[name] for name in KEYS},
        "asked": key(asked),
        "identity": _digest(asked),
        "rounds": answer["rounds"],
        "seconds": perf_counter() - begin,
        CURVE: [],
        "device": answer["machine"]["device"],
        "torch": torch.__version__,
        "fedflux": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(folder / ROW_FILE, row)
    return row


def _folder(asked: Asked, out: Path) -> Path:
    return out / FOLDER / _digest(asked)[:8]


def _digest(asked: Asked) -> str:
    return sha256(key(asked).encode()).hexdigest()[:32]
