"""What a node keeps between questions: models by digest, its own models in slots, and private releases.

They lie in the node's `state-dir`, where they outlive its processes, or else wherever the transport keeps something.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from safetensors.numpy import load_file, save

from fedflux.files import written_whole
from fedflux.operations import Arrays

Memory = MutableMapping[str, Arrays]
"""Named arrays (`model/…`, `slot/…`, `release/…`), those that were not used for longest first."""
MODELS, MODEL_BYTES = 32, 2**28
"""How many models a node holds, at most, and how much they weigh; those of the last question stay in any case."""
SUFFIX = ".safetensors"


class OnDisk(Memory):
    """A folder, one file an entry, in a folder for each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, name: str) -> Path:
        kind, _, entry = name.partition("/")
        return self.folder / kind / (quote(entry, safe="@") + SUFFIX)

    def __getitem__(self, name: str) -> Arrays:
        path = self._path(name)
        if not path.exists():
            raise KeyError(name)
        os.utime(path)
        found: Arrays = load_file(path)
        return found

    def __setitem__(self, name: str, arrays: Arrays) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as handle:
            handle.write(save(dict(arrays)))

    def __delitem__(self, name: str) -> None:
        self._path(name).unlink()

    def __iter__(self) -> Any:
        paths = sorted(self.folder.glob(f"*/*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        return (f"{path.parent.name}/{unquote(path.name.removesuffix(SUFFIX))}" for path in paths)

    def __len__(self) -> int:
        return len(list(iter(self)))


def trim_models(memory: Memory, used: int, model_bytes: int) -> None:
    """Forget models that were not used for long, but none that was used last."""
    held = [name for name in memory if name.startswith("model/")]
    for name in held[: -max(used, min(MODELS, MODEL_BYTES // max(model_bytes, 1)), 1)]:
        del memory[name]


def slot_rounds(memory: Memory, run: str, slot: str | None = None) -> list[tuple[int, str]]:
    """(round, entry) of the models that a client keeps to itself in a run, oldest round first."""
    found = [(entry, *entry.rsplit("@", 2)) for entry in memory if entry.startswith("slot/")]
    return sorted((int(made), e) for e, name, of, made in found if of == run and slot in (None, name[5:]))


def put_slot(memory: Memory, run: str, slot: str, round: int, arrays: Arrays) -> None:
    """Keep a model that was made in a round; of a slot, that round and the one before stay."""
    others = [(made, entry) for made, entry in slot_rounds(memory, run, slot) if made != round]
    memory[f"slot/{slot}@{run}@{round}"] = arrays
    last = max((made for made, _ in others if made < round), default=round)
    for made, entry in others:
        if made != last:
            del memory[entry]
