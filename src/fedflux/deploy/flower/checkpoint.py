"""Checkpoints of a Flower run: the state after each round in one file, whole or not there; the newest two are kept."""

from json import dumps, loads
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedflux.deploy.flower.state import FederationState
from fedflux.errors import FedfluxError
from fedflux.files import written_whole
from fedflux.savable import put_together, take_apart

KEPT = 2


def save_checkpoint(folder: Path, state: FederationState) -> Path:
    """Write `round-0003.safetensors`, then drop all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, outline = take_apart(state)
    path = folder / f"round-{state.round:04d}.safetensors"
    with written_whole(path) as handle:
        handle.write(save(tensors, {"outline": dumps(outline)}))
    for older in _newest_first(folder)[KEPT:]:
        older.unlink()
    return path


def forget_checkpoints(folder: Path) -> None:
    """A run that begins anew in a folder is not to be mistaken for the one before it."""
    for path in _newest_first(folder):
        path.unlink()


def load_checkpoint(folder: Path) -> tuple[FederationState | None, list[str]]:
    """The newest checkpoint that can be read, None where there is none, and a line for each that cannot."""
    complaints: list[str] = []
    for path in _newest_first(folder):
        try:
            return _load(path), complaints
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            complaints.append(f"checkpoint {path.name} is damaged ({type(error).__name__}): taking the one before it")
    if complaints:
        raise FedfluxError(f"no checkpoint in {folder} can be read: {complaints[0]}")
    return None, complaints


def _load(path: Path) -> FederationState:
    with safe_open(path, framework="pt") as file:
        outline = loads((file.metadata() or {})["outline"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    state: FederationState = put_together(FederationState, tensors, outline, "cpu")
    return state


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("round-*.safetensors") if path.stem[6:].isdigit()]
    return sorted(found, key=lambda path: int(path.stem[6:]), reverse=True)
