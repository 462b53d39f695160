"""What a node keeps between questions: models by digest, its own models in slots, private releases and their ledger.

They lie in the node's `state-dir`, where they outlive the node's processes, or else in Flower's own context, which
lives as long as the SuperNode.
"""

import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from safetensors.numpy import load_file, save

from fedflux.deploy.flower.records import pack, unpack
from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json, written_whole
from fedflux.operations import Arrays

MODELS, MODEL_BYTES = 32, 2**28
"""How many models a node holds beyond those of the last question, at most, and how much they weigh."""
LEDGER = "ledger.json"


class Memory(Protocol):
    """Named arrays, oldest first."""

    def names(self, kind: str) -> list[str]:
        """What is kept of a kind."""

    def get(self, kind: str, name: str) -> Arrays | None:
        """One entry, which is the newest from now on; None where there is none."""

    def put(self, kind: str, name: str, arrays: Arrays) -> None:
        """Keep an entry."""

    def drop(self, kind: str, name: str) -> None:
        """Forget one."""


class OnDisk:
    """One file an entry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self, kind: str) -> list[str]:
        """By when they were last used."""
        paths = (self.folder / kind).glob("*.safetensors")
        return [unquote(path.stem) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)]

    def get(self, kind: str, name: str) -> Arrays | None:
        """From its file."""
        path = self._path(kind, name)
        if not path.exists():
            return None
        os.utime(path)
        found: Arrays = load_file(path)
        return found

    def put(self, kind: str, name: str, arrays: Arrays) -> None:
        """Whole or not at all."""
        path = self._path(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as handle:
            handle.write(save(dict(arrays)))

    def drop(self, kind: str, name: str) -> None:
        """Delete its file."""
        self._path(kind, name).unlink(missing_ok=True)

    def _path(self, kind: str, name: str) -> Path:
        return self.folder / kind / f"{quote(name, safe='')}.safetensors"


class InContext:
    """Flower's records."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def names(self, kind: str) -> list[str]:
        """In the order in which they were last used."""
        return [key.partition("/")[2] for key in self.state if key.partition("/")[0] == kind]

    def get(self, kind: str, name: str) -> Arrays | None:
        """From its record, which goes to the end."""
        record = self.state.pop(f"{kind}/{name}", None)
        if record is None:
            return None
        self.state[f"{kind}/{name}"] = record
        return unpack(record)

    def put(self, kind: str, name: str, arrays: Arrays) -> None:
        """As a record."""
        self.state[f"{kind}/{name}"] = pack(arrays)

    def drop(self, kind: str, name: str) -> None:
        """Delete its record."""
        self.state.pop(f"{kind}/{name}", None)


def trim_models(memory: Memory, used: int, model_bytes: int) -> None:
    """Forget models that were not used for long, but none that was used last."""
    room = max(used, min(MODELS, MODEL_BYTES // max(model_bytes, 1)))
    for name in memory.names("models")[:-room]:
        memory.drop("models", name)


def slot_rounds(memory: Memory, run: str, slot: str | None = None) -> list[tuple[str, int, str]]:
    """(slot, round, entry) of the models that a node keeps to itself in a run, oldest round first."""
    found = [(*entry.rsplit("@", 2), entry) for entry in memory.names("slots")]
    mine = [(name, int(round), entry) for name, of, round, entry in found if of == run and slot in (None, name)]
    return sorted(mine, key=lambda one: one[1])


def put_slot(memory: Memory, run: str, slot: str, round: int, arrays: Arrays) -> None:
    """Keep a model that was made in a round; of a slot, the last two rounds stay."""
    before = [entry for _, made, entry in slot_rounds(memory, run, slot) if made < round]
    after = [entry for _, made, entry in slot_rounds(memory, run, slot) if made > round]
    memory.put("slots", f"{slot}@{run}@{round}", arrays)
    for entry in (*before[:-1], *after):
        memory.drop("slots", entry)


class Ledger:
    """ε that the node has spent; on disk, since a restart must not make it forget."""

    def __init__(self, folder: Path, most: float | None) -> None:
        self.path = folder / LEDGER
        self.most = most

    def charge(self, run: str, privacy: Any, key: str, splits: frozenset[str]) -> None:
        """Enter a release before it is made, or refuse it.

        A run's ε is paid once, for as many releases of the same records as it is for; parts of the data that share no
        record cost together what one of them costs. Different promises add up.
        """
        told = f"{run}: {privacy.mechanism}, epsilon {privacy.epsilon:g}, delta {privacy.delta:g}"
        accounts = self._accounts()
        mine = accounts.setdefault(f"{told}, {privacy.releases} releases", {"epsilon": privacy.epsilon, "releases": {}})
        if key in mine["releases"]:
            return
        for split in sorted(splits):
            count = sum(split in of for of in mine["releases"].values())
            if count >= privacy.releases:
                raise FedfluxError(f"its {split} part was released {count} times, and ε is for {privacy.releases}")
        mine["releases"][key] = sorted(splits)
        total = sum(one["epsilon"] for one in accounts.values())
        if self.most is not None and total > self.most + 1e-9:
            raise FedfluxError(f"ε would be {total:g} in all, and this node's max-epsilon is {self.most:g}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, accounts)

    def _accounts(self) -> dict[str, Any]:
        found = read_object(self.path)
        if found is None and self.path.exists():
            raise FedfluxError(f"{self.path} is damaged, so nobody knows what was spent: mend it, or name another")
        return found or {}
