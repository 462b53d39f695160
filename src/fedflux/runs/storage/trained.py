"""What a finished run leaves for later: its last state, and what models must be told of the data.

`trained.json` holds the outline and `trained.safetensors` the tensors. `files.json` names every file of the run with
its digest, so that whoever opens a run years later knows that nothing was lost or changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedflux.data import Federation
from fedflux.data.scaling import Scaling
from fedflux.engine import Kept, Stack
from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json, written_whole
from fedflux.runs.storage.folder import FILES_FILE, PERSONAL_FILE, RESULT_FILE, TRAINED_FILE, TRAINED_TENSORS
from fedflux.savable import put_together, take_apart

FORMAT = 1
"""Raised when a trained run can no longer be read as before."""


@dataclass(frozen=True)
class Form:
    """What models, and whoever answers with them, must know of the data: no example, and nothing of any client."""

    input_shape: tuple[int, ...]
    """Of one input as clients have it."""
    channels: int | None
    """How many channels models are given, where grey images are repeated to more."""
    classes: int
    kind: str
    """The kind of number that inputs are: `u` bytes, `i` integers, `f` floating point."""
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    scaling: Mapping[str, Any]
    true_clusters: int | None
    """How many clusters there are, where the data says so: some methods are told."""

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Of one input as models see it."""
        return self.input_shape if self.channels is None else (self.channels, *self.input_shape[1:])

    @property
    def integers(self) -> bool:
        """Whether models are given integers, such as token ids."""
        return self.scaling["kind"] == "none" and self.kind in "ui"

    @staticmethod
    def of(federation: Federation, scaling: Scaling) -> "Form":
        """Of these clients."""
        dataset, truth = federation.dataset, federation.truth
        return Form(
            dataset.input_shape,
            federation.channels,
            federation.classes,
            "u" if dataset.train.x.dtype == np.uint8 else dataset.train.x.dtype.kind.replace("u", "i"),
            federation.class_names or tuple(map(str, range(federation.classes))),
            federation.names or tuple(map(str, range(len(federation)))),
            scaling.as_plain(),
            None if truth is None else len(np.unique(truth)),
        )

    @staticmethod
    def read(told: Mapping[str, Any]) -> "Form":
        """From plain values."""
        kept = {one.name: told[one.name] for one in fields(Form)}
        lists = {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
        return Form(**{**kept, **lists})


@dataclass(frozen=True, eq=False)
class Trained:
    """A method's last state with the models that clients keep, and the form of their data."""

    state: Any
    kept: Kept
    form: Form


def save_trained(folder: Path, state: Any, states: Sequence[type], form: Form) -> None:
    """Write the state; personal models have files of their own already."""
    tensors, outline = take_apart(state)
    with written_whole(folder / TRAINED_TENSORS) as handle:
        handle.write(save(tensors))
    told = {"format": FORMAT, "state": states.index(type(state)), "outline": outline, "form": asdict(form)}
    write_json(folder / TRAINED_FILE, told)


def save_digests(folder: Path, names: Sequence[str], result: bytes) -> None:
    """Write down what the files of a finished run are; its result is about to be written."""
    digests = {name: sha256((folder / name).read_bytes()).hexdigest() for name in names if (folder / name).is_file()}
    told = {"format": FORMAT, "files": {**digests, RESULT_FILE: sha256(result).hexdigest()}}
    write_json(folder / FILES_FILE, {**told, "digest": _digest(told)})


def check_digests(folder: Path, needed: Sequence[str]) -> None:
    """Refuse a folder in which a file is not as the run left it; those that are needed must be there."""
    told = read_object(folder / FILES_FILE)
    if told is None:
        raise FedfluxError(f"{folder / FILES_FILE} is missing or damaged: the run cannot be trusted; run it again")
    if told.pop("digest", None) != _digest(told):
        raise FedfluxError(f"{folder / FILES_FILE} was changed: the run cannot be trusted; run it again")
    if told["format"] != FORMAT:
        raise _newer(folder, told["format"])
    for name in needed:
        if name not in told["files"]:
            raise FedfluxError(f"{folder}: {name} is not among the run's files; run it again")
    for name, digest in told["files"].items():
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise FedfluxError(f"{folder / name} cannot be read: {error.strerror}") from error
        if sha256(content).hexdigest() != digest:
            raise FedfluxError(f"{folder / name} was changed or cut off since the run; run it again")


def load_trained(folder: Path, states: Sequence[type], device: str) -> Trained:
    """The state that `save_trained` wrote, with the clients' own models."""
    told = read_object(folder / TRAINED_FILE)
    if told is None:
        raise FedfluxError(f"{folder / TRAINED_FILE} is missing or damaged; run it again")
    if told.get("format") != FORMAT:
        raise _newer(folder, told.get("format"))
    try:
        tensors = load((folder / TRAINED_TENSORS).read_bytes())
        state = put_together(states[told["state"]], tensors, told["outline"], device)
        form = Form.read(told["form"])
        return Trained(state, _kept(folder, device), form)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        words = f"does not hold what this version of its method keeps ({type(error).__name__}: {error})"
        raise FedfluxError(f"{folder / TRAINED_FILE} {words}; load it with the version that made it") from error


def _kept(folder: Path, device: str) -> Kept:
    clients, models = {}, {}
    before, after = PERSONAL_FILE.split("{slot}")
    for path in sorted(folder.glob(PERSONAL_FILE.format(slot="*"))):
        slot = path.name.removeprefix(before).removesuffix(after)
        with safe_open(path, framework="pt", device=device) as file:
            clients[slot] = np.array([int(one) for one in file.metadata()["clients"].split(",")], dtype=np.int64)
            models[slot] = Stack({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return Kept(clients, models)


def _newer(folder: Path, format: object) -> FedfluxError:
    return FedfluxError(f"{folder} has format {format} of trained runs, this version reads {FORMAT}: update fedflux")


def _digest(told: Mapping[str, Any]) -> str:
    return sha256(dumps(told, sort_keys=True).encode()).hexdigest()
