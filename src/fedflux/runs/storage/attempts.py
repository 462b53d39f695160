"""Work of a private run that was begun, lost and begun again: whatever it released is released once more.

Noise is drawn afresh each time, so a round that was interrupted after its clients had described themselves costs
privacy twice. Every attempt is on disk before it begins; the result counts those that were repeated.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from fedflux.files import append_line, read_lines
from fedflux.runs.storage.folder import ATTEMPTS_FILE

AFTERWARDS = 0
"""The stage after the last round, in which late clients are described."""
SCALING = -1
"""The stage before the first round, in which clients tell how inputs are to be scaled."""


def record_attempt(folder: Path, stage: int) -> None:
    """Say that this round, or what follows the last one, begins now."""
    append_line(folder / ATTEMPTS_FILE, {"stage": stage})


def repeated(folder: Path, describing: Collection[int]) -> int:
    """How often a stage among those that describe clients was begun again."""
    lines = [line for line in read_lines(folder / ATTEMPTS_FILE) if isinstance(line, dict)]
    begun = Counter(line.get("stage") for line in lines)
    return sum(begun[stage] - 1 for stage in set(describing) if begun[stage] > 1)
