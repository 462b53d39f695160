"""Checkpoints: the last two rounds' states, each whole or not there, so that a run goes on where it was stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedflux.engine import Kept
from fedflux.files import read_object, write_json, written_whole
from fedflux.savable import put_together, take_apart

KEPT = 2
KEPT_BY_CLIENTS = "kept."
"""Before the names of tensors that are clients' own."""


@dataclass(frozen=True)
class Checkpoint:
    """An algorithm's state after a round, with what else is needed to go on from there."""

    round: int
    state: Any
    kept: Kept
    """The models that simulated clients keep to themselves."""
    memory: Mapping[str, Any]
    """What the engine needs to find its clients again."""
    seconds: float
    """Time spent up to here, over all sessions."""
    log_bytes: int
    """How much of the round log belongs to the rounds up to here."""


class CheckpointFolder:
    """`round-0003.safetensors` beside `round-0003.json`, which is written last and vouches for it by its digest."""

    def __init__(self, path: Path, identity: str, states: Sequence[type]) -> None:
        self._path = path
        self._identity = identity
        self._states = tuple(states)
        self.saved = 0
        """The round of the last whole checkpoint, 0 where there is none: a run goes on after it."""

    def save(self, checkpoint: Checkpoint, log_digest: str) -> None:
        """Write one, then drop all but the newest two."""
        self._path.mkdir(exist_ok=True)
        tensors, outline = take_apart(checkpoint.state)
        own, own_outline = take_apart(checkpoint.kept)
        content = save({**tensors, **{f"{KEPT_BY_CLIENTS}{name}": tensor for name, tensor in own.items()}})
        document = self._document(checkpoint.round)
        with written_whole(document.with_suffix(".safetensors")) as handle:
            handle.write(content)
        told = {
            "identity": self._identity,
            "round": checkpoint.round,
            "seconds": checkpoint.seconds,
            "log_bytes": checkpoint.log_bytes,
            "log_digest": log_digest,
            "tensors_digest": sha256(content).hexdigest(),
            "state": self._states.index(type(checkpoint.state)),
            "outline": outline,
            "kept": own_outline,
            "memory": checkpoint.memory,
        }
        write_json(document, {**told, "digest": _digest(told)})
        self.saved = checkpoint.round
        self._keep(self._documents()[:KEPT])

    def forget_after(self, round: int) -> None:
        """Drop checkpoints of later rounds: the run goes on from this one (0: from the start)."""
        if self._path.is_dir():
            earlier = [document for document in self._documents() if int(document.stem[6:]) <= round]
            self._keep(earlier[:KEPT])

    def _keep(self, documents: list[Path]) -> None:
        kept = {document.stem for document in documents}
        for suffix in (".json", ".safetensors"):  # first what vouches, then what it vouched for
            for path in self._path.glob(f"*{suffix}"):
                if path.stem not in kept:
                    path.unlink()

    def newest(self, device: str, log: bytes) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole checkpoint whose rounds are in `log`, and a line for each newer one that is damaged."""
        complaints: list[str] = []
        for document in self._documents():
            try:
                found = self._load(document, device, log)
                self.saved = found.round
                return found, complaints
            except _DamagedError as fault:
                complaints.append(f"checkpoint {document.stem} is damaged ({fault}): taking the one before it")
        if complaints:
            complaints[-1] = complaints[-1].replace("taking the one before it", "starting from the first round")
        return None, complaints

    def _load(self, document: Path, device: str, log: bytes) -> Checkpoint:
        told = read_object(document)
        if told is None:
            raise _DamagedError("its JSON cannot be read")
        if told.pop("digest", None) != _digest(told):
            raise _DamagedError("its JSON was changed")
        if told["identity"] != self._identity:
            raise _DamagedError("it belongs to a run with other settings")
        if sha256(log[: told["log_bytes"]]).hexdigest() != told["log_digest"]:
            raise _DamagedError("the round log does not reach it")
        try:
            content = document.with_suffix(".safetensors").read_bytes()
            if sha256(content).hexdigest() != told["tensors_digest"]:
                raise _DamagedError("its tensors were cut off or changed")
            tensors = load(content)
            state: Any = put_together(self._states[told["state"]], tensors, told["outline"], device)
            begin = len(KEPT_BY_CLIENTS)
            own = {name[begin:]: tensor for name, tensor in tensors.items() if name.startswith(KEPT_BY_CLIENTS)}
            kept = put_together(Kept, own, told["kept"], device)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
            raise _DamagedError(f"{type(error).__name__}: {error}") from error
        return Checkpoint(told["round"], state, kept, told["memory"], told["seconds"], told["log_bytes"])

    def _document(self, round: int) -> Path:
        return self._path / f"round-{round:04d}.json"

    def _documents(self) -> list[Path]:
        """Newest first."""
        found = [path for path in self._path.glob("round-*.json") if path.stem[6:].isdigit()]
        return sorted(found, key=lambda path: int(path.stem[6:]), reverse=True)


class _DamagedError(Exception):
    """Why a checkpoint cannot be used."""


def _digest(told: dict[str, Any]) -> str:
    return sha256(dumps(told, sort_keys=True).encode()).hexdigest()
