"""Where the files of a dataset lie that nobody may hand on: its users fetch them and say where."""

from collections.abc import Callable
from pathlib import Path

from fedflux.errors import FedfluxError


def find_root(
    name: str, data_dir: Path | None, subfolders: tuple[str, ...], fits: Callable[[Path], bool], how: str
) -> Path:
    """The folder that fits: `data_dir`, or one of these below it. `how` says what to fetch and where to put it."""
    if data_dir is None:
        raise FedfluxError(f"{name}: {how}; then say where by --data-dir")
    if not data_dir.is_dir():
        problem = "is not a folder" if data_dir.exists() else "does not exist"
        raise FedfluxError(f"{name}: data folder {data_dir} {problem}; {how}")
    for folder in (data_dir, *(data_dir / sub for sub in subfolders)):
        if fits(folder):
            return folder
    raise FedfluxError(f"{name}: nothing of it in {data_dir} and its sub-folders {', '.join(subfolders)}; {how}")
