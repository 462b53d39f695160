"""Engine speed here, side by side: our engines, the loop that research code writes, and peers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedflux.engine import PRECISIONS, pick_device
from fedflux.errors import FedfluxError, unknown
from fedflux.files import make_folder, write_json
from fedflux.models import MODELS
from fedflux.studies.bench.machine import busy, describe
from fedflux.studies.bench.plot import save_plot
from fedflux.studies.bench.runners import RUNNERS
from fedflux.studies.bench.side_by_side import measure
from fedflux.studies.bench.work import Work

__all__ = ["RUNNERS", "Work", "bench"]
RESULT = "bench.json"
PLOT = "bench.png"


def bench(
    works: list[Work],
    runners: list[str],
    repeats: int = 5,
    out: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure every runner on every work; the answer is what `fedflux bench --json` prints, and `out` keeps it."""
    for work in works:
        _check(work)
    folder = None if out is None else make_folder(out, "benchmark", RESULT, {"rows", "machine"})
    machine = describe(works[0].device)
    if busy(machine):
        tell(f"this machine is busy (load {machine['load'][0]:.1f}, {machine['cores']} cores): figures will be off")
    answer = {**measure(works, runners, repeats, tell), "repeats": repeats, "machine": machine}
    if folder is not None:
        answer["path"] = str(folder)
        save_plot(answer["rows"], folder / PLOT)
        write_json(folder / RESULT, answer)
    return answer


def on_device(device: str) -> str:
    """The device by its own name, so that every runner is given the same one."""
    return pick_device(device)


def _check(work: Work) -> None:
    if work.model not in MODELS:
        raise unknown("model", work.model, MODELS)
    if work.precision not in PRECISIONS:
        raise unknown("precision", work.precision, PRECISIONS)
    for name in ("clients", "samples", "epochs", "batch_size"):
        if getattr(work, name) < 1:
            raise FedfluxError(f"--{name.replace('_', '-')} must be 1 or more, not {getattr(work, name)}")
